"""Which device each rank of a job is on: by a rule over the parallel dimensions, or as a file says.

Ranks count as Megatron's do: tensor parallel fastest, then context, expert, data and pipeline parallel. A rule is an
order of the dimensions, the one that varies fastest from device to device first (``tp,cp,ep,dp,pp``), or says which
dimension stays in which tier and which is spread over one (``tp in hb, pp across dc``): those that stay come first,
from the inside out, those that are spread last. A spread dimension is cut into as many equal runs of neighbours as the
tier joins groups.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import TYPE_CHECKING, Literal, get_args

from tracetool.errors import BadTopology, TraceToolError, named
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracetool.network.tiers import Network

Dimension = Literal["tp", "cp", "ep", "dp", "pp"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""In the order that ranks are counted in."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """How wide a job is along each dimension.

    Attributes:
        tp: Tensor parallel.
        cp: Context parallel.
        dp: Data parallel; the expert parallel groups are runs of neighbours among its ranks.
        pp: Pipeline parallel.
        ep: Expert parallel, a divisor of the data parallel degree.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        """Refuse what no job can be.

        Raises:
            BadTopology: If a degree is below 1, or the expert parallel one does not divide the data parallel one.
        """
        for name in DIMENSIONS:
            if getattr(self, name) < 1:
                raise BadTopology(f"{name} is {getattr(self, name)}.", hint="degrees are whole numbers from 1")
        if self.dp % self.ep:
            raise BadTopology(
                f"expert parallel groups of {self.ep} do not fit into {self.dp} data parallel ranks.",
                hint=f"{_divisors_text(self.dp)} would fit",
            )

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    def wide(self, dimension: Dimension) -> int:
        """The degree along a dimension as ranks are counted: of dp, how many expert parallel groups there are."""
        return self.dp // self.ep if dimension == "dp" else int(getattr(self, dimension))

    @property
    def text(self) -> str:
        """The degrees above 1, as ``tp 8 · dp 16``."""
        return " · ".join(f"{name} {getattr(self, name)}" for name in DIMENSIONS if getattr(self, name) > 1) or "1 rank"


@dataclass(frozen=True)
class Placement:
    """A job on devices.

    Attributes:
        degrees: How wide it is.
        devices: Device of each rank.
    """

    degrees: Degrees
    devices: tuple[int, ...]

    def rank(self, coordinates: Mapping[Dimension, int]) -> int:
        """The rank at a place; of dp counted over all data parallel ranks if ep is left out."""
        at = dict(coordinates)
        if "ep" not in at and "dp" in at:
            at["dp"], at["ep"] = divmod(at["dp"], self.degrees.ep)
        rank = 0
        for name in reversed(DIMENSIONS):
            rank = rank * self.degrees.wide(name) + at.get(name, 0)
        return rank

    def groups(self, *along: Dimension) -> list[tuple[int, ...]]:
        """Ranks of each group along dimensions, in order.

        Args:
            along: The dimensions. Those of dp alone reach over expert parallel ranks; those of several if ep is one.
        """
        varied: set[Dimension] = {"dp", "ep"} if along == ("dp",) else set(along)

        def ranks(names: list[Dimension]) -> list[int]:
            """With every other dimension at 0."""
            places = product(*(range(self.degrees.wide(name)) for name in names))
            return [self.rank({**dict.fromkeys(DIMENSIONS, 0), **dict(zip(names, at, strict=True))}) for at in places]

        outward = DIMENSIONS[::-1]
        within = ranks([name for name in outward if name in varied])
        return [
            tuple(first + rank for rank in within) for first in ranks([name for name in outward if name not in varied])
        ]

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Rank of each device that has one."""
        return {device: rank for rank, device in enumerate(self.devices)}


_RULE = re.compile(r"^(?P<name>[a-z]+)\s+(?P<how>in|across)\s+(?P<tier>\S+)$")


def place(degrees: Degrees, network: Network, rule: str = "", *, all_used: bool = True) -> Placement:
    """Put a job on a network's devices by a rule.

    Args:
        degrees: How wide the job is.
        network: Where it runs.
        rule: An order of dimensions, or which stay in or are spread across which tier; see this module. By default the
            order that ranks are counted in.
        all_used: Whether each tier is to join something of the job.

    Raises:
        BadTopology: If the rule cannot be read, the job does not fit the network by it, or a tier is left unused.
        UnknownName: If it names no dimension or tier.

    Example:
        >>> place(Degrees(tp=4, pp=4), two_dcs, "tp in hb, pp across dc").devices[::4]
        (0, 4, 256, 260)
    """
    devices = _devices(degrees, network, rule)
    unused = network.unused(devices) if all_used else []
    if unused:
        raise _nothing_uses(network, unused[0], _using_all(degrees, network, rule))
    return Placement(degrees, devices)


def _devices(degrees: Degrees, network: Network, rule: str) -> tuple[int, ...]:
    """The device of each rank by a rule."""
    along = offsets(degrees, network, rule)
    return tuple(map(sum, product(*(along[name] for name in reversed(DIMENSIONS)))))


def offsets(degrees: Degrees, network: Network, rule: str) -> dict[Dimension, list[int]]:
    """By a rule, what each place along a dimension adds to a rank's device; of dp along its expert parallel groups.

    Raises:
        BadTopology: If the rule cannot be read, or the job does not fit the network by it.
        UnknownName: If it names no dimension or tier.
    """
    order, inside, spread = _read(rule, network)
    if degrees.ranks > network.devices:
        raise BadTopology(
            f"the job has {degrees.ranks} ranks ({degrees.text}), {network.name} has {network.devices} devices "
            f"({network.text}): {degrees.ranks - network.devices} ranks are left over.",
            hint=f"make {network.tiers[-1].name} larger, or a degree smaller",
        )
    steps: dict[Dimension, tuple[int, int, int]] = {}  # per dimension: devices between neighbours, run, between runs
    used = 1
    for name in order:
        wide = degrees.wide(name)
        if name in spread:
            steps[name], used = _spread(name, wide, used, network, spread[name])
            continue
        steps[name] = (used, wide, 0)
        used *= wide
        if name in inside:
            _check_inside(name, wide, used, network, inside[name])
    if used > network.devices:
        raise BadTopology(
            f"by {rule!r} the job reaches over {used} devices, {network.name} has {network.devices}.",
            hint="spread fewer dimensions, or in another order",
        )
    return {name: [_offset(at, steps[name]) for at in range(degrees.wide(name))] for name in DIMENSIONS}


def _nothing_uses(network: Network, number: int, fits: str) -> BadTopology:
    tier, inner = network.tiers[number], network.tiers[number - 1]
    return BadTopology(
        f"nothing uses tier {tier.name}: each part of the job that it could join sits in one group of {inner.name} "
        f"({inner.size}).",
        hint=fits,
    )


def _using_all(degrees: Degrees, network: Network, rule: str) -> str:
    """What would leave no tier unused, as it was tried: another rule, fewer tiers, or both."""
    unused = [network.tiers[number].name for number in network.unused(_devices(degrees, network, rule))]
    parts = {part.split()[0]: part for part in _parts(rule)}
    spread = (
        ", ".join((parts | {name: f"{name} across {tier}"}).values())
        for name in reversed(DIMENSIONS)
        for tier in unused
        if degrees.wide(name) > 1 and " in " not in parts.get(name, "")
    )
    tried = filter(None, (_trimmed(degrees, network, text) for text in (rule, *spread)))
    trimmed, text = max(tried, key=lambda one: len(one[0].tiers), default=(network, rule))
    says = [f'placement = "{text}"'] if text != rule else []
    gone = [tier.name for tier in network.tiers if tier.name not in {one.name for one in trimmed.tiers}]
    says += [f"leave tier {name} out" for name in gone]
    sizes = {tier.name: tier.size for tier in network.tiers}
    says += [f"give tier {one.name} size = {one.size}" for one in trimmed.tiers if one.size != sizes[one.name]]
    return " and ".join(says)


def _trimmed(degrees: Degrees, network: Network, rule: str) -> tuple[Network, str] | None:
    """The network without what a job leaves unused by a rule, and the rule without it; None if it does not fit."""
    try:
        while unused := network.unused(_devices(degrees, network, rule)):
            gone = network.tiers[unused[0]].name
            rule = ", ".join(part for part in _parts(rule) if part.split()[-1] != gone)
            network = network.without(unused[0])
    except TraceToolError:
        return None
    return network, rule


def _offset(at: int, step: tuple[int, int, int]) -> int:
    stride, run, between = step
    return at % run * stride + at // run * between


def _read(rule: str, network: Network) -> tuple[list[Dimension], dict[Dimension, int], dict[Dimension, int]]:
    """The order of all dimensions, those that stay inside a tier, and those that are spread over one."""
    inside: dict[Dimension, int] = {}
    spread: dict[Dimension, int] = {}
    named: list[Dimension] = []
    for part in _parts(rule):
        match = _RULE.match(part)
        name = parse_dimension(match["name"] if match else part)
        if name in named:
            raise BadTopology(f"placement {rule!r} says two things of {name}.", hint="name each dimension once")
        named.append(name)
        if match:
            (inside if match["how"] == "in" else spread)[name] = network.number(match["tier"])
    if not inside and not spread:
        return [*named, *(name for name in DIMENSIONS if name not in named)], inside, spread
    kept = sorted(inside, key=lambda name: (inside[name], DIMENSIONS.index(name)))
    over = sorted(spread, key=lambda name: (spread[name], DIMENSIONS.index(name)))
    middle = [name for name in DIMENSIONS if name not in inside and name not in spread]
    return [*kept, *middle, *over], inside, spread


def _parts(rule: str) -> list[str]:
    return [part.strip() for part in rule.split(",") if part.strip()]


def spread_over(rule: str, network: Network) -> set[str]:
    """Names of the tiers that a rule spreads dimensions over.

    Raises:
        BadTopology: If the rule cannot be read.
        UnknownName: If it names no dimension or tier.
    """
    return {network.tiers[number].name for number in _read(rule, network)[2].values()}


def narrowed_rule(rule: str, degrees: Degrees, tiers: Collection[str]) -> str | None:
    """A rule without what it says of some tiers and dimensions one wide; None if it says more of these tiers.

    Args:
        rule: The rule.
        degrees: How wide the job is.
        tiers: Names of tiers that the job does not reach over.
    """
    matches = [(part, _RULE.match(part)) for part in _parts(rule)]
    if not any(match for _, match in matches):
        return rule
    said = [(part, parse_dimension(match["name"]), match["tier"]) for part, match in matches if match]
    if any(tier in tiers and degrees.wide(name) > 1 for _, name, tier in said):
        return None
    return ", ".join(part for part, _, tier in said if tier not in tiers)


def parse_dimension(text: str) -> Dimension:
    """A dimension of parallelism by its name.

    Raises:
        UnknownName: If there is none of this name.
    """
    return named("parallel dimension", text, DIMENSIONS)


def _check_inside(name: Dimension, wide: int, used: int, network: Network, tier: int) -> None:
    size = network.tiers[tier].size
    if size % used == 0:
        return
    inner = used // wide
    fits = [degree for degree in range(1, wide) if size % (inner * degree) == 0]
    raise BadTopology(
        f"{name} {wide} is to stay in {network.tiers[tier].name} ({size} devices), where its groups reach over {used}.",
        hint=f"{name} {', '.join(map(str, fits))} would fit" if fits else "keep fewer dimensions inside that tier",
    )


def _spread(name: Dimension, wide: int, used: int, network: Network, tier: int) -> tuple[tuple[int, int, int], int]:
    inner, size = network.inner_size(tier), network.tiers[tier].size
    groups = size // inner
    runs = min(groups, wide)
    if wide % runs:
        fits = [runs * factor for factor in (wide // runs, wide // runs + 1) if factor]
        raise BadTopology(
            f"{name} {wide} is to be spread across {network.tiers[tier].name}, which joins {groups} groups: "
            "they would not be equal.",
            hint=f"{name} {' or '.join(map(str, fits))} would fit",
        )
    if used * (wide // runs) > inner:
        raise BadTopology(
            f"with {name} {wide} across {network.tiers[tier].name} each of its {runs} groups needs "
            f"{used * (wide // runs)} devices, and has {inner}.",
            hint="make the tier inside larger, or a degree smaller",
        )
    return (used, wide // runs, inner), inner * runs


def read_placement(text: str, name: str, degrees: Degrees, network: Network, *, all_used: bool = True) -> Placement:
    """Read CSV with the columns ``rank`` and ``device``.

    Args:
        text: The file's content.
        name: What to call it in messages.
        degrees: How wide the job is.
        network: Where it runs.
        all_used: Whether each tier is to join something of the job.

    Raises:
        BadTopology: If a column or cell is missing or malformed, a rank has no device, or two have the same.
    """
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    if not {"rank", "device"} <= set(rows.fieldnames or ()):
        raise BadTopology(f"{name} needs the columns rank and device.", hint="write a first line: rank,device")
    seats: dict[int, int] = {}
    for row in rows:
        cells = [(row[column] or "").strip() for column in ("rank", "device")]
        if not all(cell.isascii() and cell.isdecimal() for cell in cells):
            raise BadTopology(f"{name}, line {rows.line_num}: {','.join(cells)!r} is no rank and device.")
        rank, device = map(int, cells)
        if rank in seats:
            raise BadTopology(f"{name}, line {rows.line_num}: rank {rank} is listed before.")
        seats[rank] = device
    absent = [rank for rank in range(degrees.ranks) if rank not in seats]
    beyond = [rank for rank in seats if rank >= degrees.ranks]
    for ranks, fault in ((absent, "has no device for"), (beyond, "is no placement of this job: it names")):
        if ranks:
            raise BadTopology(
                f"{name} {fault} {format_ranks(ranks)}.", hint=f"the job has ranks 0..{degrees.ranks - 1}"
            )
    taken = sorted(seats.values())
    shared = next((one for one, other in pairwise(taken) if one == other), None)
    if shared is not None:
        raise BadTopology(f"{name} puts two ranks on device {shared}.", hint="each rank has a device of its own")
    if taken[-1] >= network.devices:
        raise BadTopology(f"{name} names device {taken[-1]}, {network.name} has 0..{network.devices - 1}.")
    devices: Sequence[int] = [seats[rank] for rank in range(degrees.ranks)]
    unused = network.unused(devices) if all_used else []
    if unused:
        inner = network.tiers[unused[0] - 1].name
        raise _nothing_uses(network, unused[0], f"leave the tier out, or name devices in several groups of {inner}")
    return Placement(degrees, tuple(devices))


def _divisors_text(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
