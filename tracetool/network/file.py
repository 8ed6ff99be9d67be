"""A network in a TOML file, as people write it.

The structs below are its form: ``schemas/network.schema.json`` is made from them, with examples beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import BadTopology, ScenarioError, named
from tracetool.network.collectives import ALGORITHMS, Algorithm
from tracetool.network.placement import DIMENSIONS, Dimension, parse_dimension, place, read_placement, spread_over
from tracetool.network.tiers import Network, SharedBy, Tier
from tracetool.tables.fields import doc, parsed, read_toml
from tracetool.units import parse_bandwidth_bytes_per_s, parse_latency_ns, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracetool.network.link import Sizes
    from tracetool.network.placement import Degrees, Placement
    from tracetool.network.tiers import Figure

_HINT = "schemas/network.schema.json; examples are beside it"


class TierTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tier: what joins the groups of the tier before it (of the first one: single devices)."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="What it is called: hb, rail.")]
    size: Annotated[
        int, msgspec.Meta(ge=1, le=1 << 24, description="Devices that it joins, a multiple of the one before.")
    ]
    bandwidth: Annotated[
        str | dict[str, str],
        doc(
            "Of what shares it, in one direction: 450GB/s; or as measured, by size of message: "
            '{ "1MB" = "13.1GB/s", "64MB" = "102GB/s" }.'
        ),
    ]
    latency: Annotated[
        str, doc("One way, of a message that passes this tier, over its time on the bandwidth: 5us.")
    ] = "0ns"
    shared_by: Annotated[
        SharedBy,
        doc("What has this bandwidth: each device, a group that the tier joins, or each pair of those groups."),
    ] = "device"
    price: Annotated[str | None, doc("What bytes that meet at it cost, as egress between regions: 0.02USD/GB.")] = None
    rail_only: Annotated[
        bool,
        doc(
            "Whether it joins devices of the same number in their HB domains alone (the first tier's groups); messages "
            "between others are forwarded through the HB domain."
        ),
    ] = False
    oversubscription: Annotated[
        float,
        msgspec.Meta(ge=1, description="Bandwidth of a group's ports over that of its uplink (shared_by device)."),
    ] = 1.0
    connections: Annotated[
        int, msgspec.Meta(ge=1, le=4096, description="Connections that fill it; two devices have one.")
    ] = 1
    collective_blocks: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Thread blocks that NCCL's collectives over it run, as traces show: 24 over NVLink.",
        ),
    ] = 0


class NetworkFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tiers of a network from the inside out, and how jobs are placed on it."""

    tier: Annotated[list[TierTable], msgspec.Meta(min_length=1, description="The innermost first.")]
    name: Annotated[str | None, doc("What it is called; by default its tiers.")] = None
    placement: Annotated[
        str,
        doc(
            "An order of dimensions, that of neighbouring devices first (tp,cp,ep,dp,pp); what stays in or is spread "
            "across a tier (tp in hb, pp across dc); or a CSV file beside this one with the columns rank and device."
        ),
    ] = ""
    price: Annotated[str | None, doc("What all of it costs while it is used, devices included: 2500USD/h.")] = None
    collectives: Annotated[
        dict[Dimension, Algorithm],
        doc("How collectives of a dimension (tp, cp, ep, dp, pp) run; by default the fastest (auto)."),
    ] = {}


@dataclass(frozen=True, slots=True)
class FleetPrice:
    """What a network costs with all that it joins.

    Attributes:
        per_hour: While it is used.
        per_gigabyte: By tier, for 10^9 bytes of pairs that meet there.
        currency: In which currency.
    """

    per_hour: float
    per_gigabyte: tuple[float, ...]
    currency: str

    def of_step(self, step_ns: int, tier_bytes: Sequence[int]) -> float:
        """What a step costs: the time that it takes, and the bytes that it moves."""
        moved = sum(size / 1e9 * price for size, price in zip(tier_bytes, self.per_gigabyte, strict=False))
        return self.per_hour * step_ns / 3.6e12 + moved


@dataclass(frozen=True)
class NetworkChoice:
    """A network as it was asked for.

    Attributes:
        network: Its tiers.
        placement: The rule that places jobs, or the text of a file that does.
        file: The name of that file; empty of a rule.
        algorithms: How collectives of a dimension run, where that was said.
        price: What it costs, where that was said.
    """

    network: Network
    placement: str = ""
    file: str = ""
    algorithms: Mapping[Dimension, Algorithm] = field(default_factory=dict)
    price: FleetPrice | None = None

    def __hash__(self) -> int:
        """Of its tiers: mappings have no hash, and in what else choices differ, equality tells."""
        return hash((self.network, self.placement))

    def place(self, degrees: Degrees, *, all_used: bool = True) -> Placement:
        """Put a job on it.

        Args:
            degrees: How wide the job is.
            all_used: Whether each tier is to join something of it.

        Raises:
            BadTopology: If the job does not fit.
        """
        if self.file:
            return read_placement(self.placement, self.file, degrees, self.network, all_used=all_used)
        return place(degrees, self.network, self.placement, all_used=all_used)

    def with_collectives(self, asked: Sequence[str]) -> NetworkChoice:
        """The same with collectives that run otherwise.

        Args:
            asked: As in ``dp=hierarchical``, or an algorithm alone for all dimensions.

        Raises:
            UnknownName: If there is no such dimension or algorithm.
        """
        algorithms = dict(self.algorithms)
        for text in asked:
            name, is_pair, wanted = (part.strip() for part in text.rpartition("="))
            algorithm = named("algorithm of collectives", wanted, ALGORITHMS)
            algorithms |= dict.fromkeys([parse_dimension(name)] if is_pair else DIMENSIONS, algorithm)
        return replace(self, algorithms=algorithms)

    def with_figure(self, tier: str, figure: Figure, value: float) -> NetworkChoice:
        """The same with another figure of a tier; a bandwidth takes the place of a measured one, too.

        Raises:
            UnknownName: If there is no such tier.
            BadTopology: If a size does not fit the other tiers, or moves the borders of what jobs are spread over.
        """
        tiers = list(self.network.tiers)
        number = self.network.number(tier)
        if figure == "size" and number + 1 < len(tiers) and value != tiers[number].size:
            self._check_borders(number)
        tiers[number] = tiers[number].with_figure(figure, value)
        return replace(self, network=replace(self.network, tiers=tuple(tiers)))

    def _check_borders(self, number: int) -> None:
        """Refuse another size of what a tier joins by pairs, or a placement spreads a dimension over."""
        inner, outer = self.network.tiers[number : number + 2]
        over = () if self.file else spread_over(self.placement, self.network)
        if outer.shared_by == "pair" or outer.name in over:
            raise BadTopology(
                f"what tier {outer.name} joins are groups of {inner.name}, {inner.size} devices each: another size of "
                f"{inner.name} would be another border of each {outer.name}.",
                hint=f"add a tier between both, of {inner.size} devices: what joins groups of {inner.name} inside one "
                f"{outer.name}",
            )


def read_network(path: Path) -> NetworkChoice:
    """Read a file of tiers.

    Raises:
        ScenarioError: If it cannot be read, is no TOML, or a key is unknown, missing or of another type.
        BadQuantity: If a figure has no unit, or the wrong one.
        BadTopology: If the tiers do not fit into each other.

    Example:
        >>> from pathlib import Path
        >>> tier = '[[tier]]\\nname = "{}"\\nsize = {}\\nbandwidth = "{}"\\n'
        >>> _ = Path("n.toml").write_text(tier.format("hb", 2, "450GB/s") + tier.format("dc", 4, "25Gbit/s"))
        >>> choice = tt.read_network(Path("n.toml"))
        >>> choice.network.text, choice.network.transfer_ns(25_000_000, 0, 2)
        ('hb 2 · dc 4', 8000000)
    """
    asked = read_toml(path, NetworkFile, hint=_HINT)
    tiers = tuple(_tier(table, f"{path}: tier[{number}]") for number, table in enumerate(asked.tier))
    try:
        network = Network(asked.name or " · ".join(f"{tier.name} {tier.size}" for tier in tiers), tiers)
        if not asked.placement.lower().endswith(".csv"):
            return NetworkChoice(network, asked.placement, algorithms=asked.collectives, price=_price(asked, path))
    except BadTopology as error:
        raise BadTopology(f"{path}: {error.message}", hint=error.hint) from error
    beside = path.parent / asked.placement
    try:
        text = beside.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTopology(f"cannot read the placement {beside}: {error}.", hint="give a CSV file in UTF-8") from error
    return NetworkChoice(network, text, str(beside), asked.collectives, _price(asked, path))


_PRICE = re.compile(r"^(\d+(?:\.\d+)?)\s*([A-Z]{3})/(h|GB)$")


def _price(asked: NetworkFile, path: Path) -> FleetPrice | None:
    """What the fleet costs; None if nothing of it has a price."""
    tiers = [_amount(table.price, "GB", f"{path}: tier[{number}].price") for number, table in enumerate(asked.tier)]
    whole = _amount(asked.price, "h", f"{path}: price")
    currencies = sorted({currency for _, currency in (whole, *tiers) if currency})
    if len(currencies) > 1:
        raise ScenarioError(
            f"{path} has prices in {' and '.join(currencies)}.", hint="give all of them in one currency"
        )
    return FleetPrice(whole[0], tuple(amount for amount, _ in tiers), currencies[0]) if currencies else None


def _amount(text: str | None, unit: str, at: str) -> tuple[float, str]:
    """A price, and its currency; nothing in none where there is none."""
    if text is None:
        return 0.0, ""
    match = _PRICE.match(text.strip())
    if match is None or match[3] != unit:
        raise ScenarioError(
            f"{at}: {text!r} is no price per {unit}.", hint=f"as in 2500USD/{unit}: tracetool help network"
        )
    return float(match[1]), match[2]


def _tier(table: TierTable, at: str) -> Tier:
    times: Sizes = ()
    if isinstance(table.bandwidth, dict):
        times = _measured(table.bandwidth, f"{at}.bandwidth")
        if table.connections > 1:
            raise ScenarioError(
                f"{at}.connections: bandwidth is given by size of message, as one connection was measured.",
                hint="leave connections out, or give one bandwidth",
            )
        bandwidth = max(round(size * 10**9 / ns) for size, ns in times)
    else:
        bandwidth = parsed(f"{at}.bandwidth", table.bandwidth, parse_bandwidth_bytes_per_s)
    if table.oversubscription > 1 and table.shared_by != "device":
        raise ScenarioError(
            f"{at}.oversubscription is about ports of devices, and what has the bandwidth is each {table.shared_by}.",
            hint='give what is shared as bandwidth, or shared_by = "device"',
        )
    return Tier(
        name=table.name,
        size=table.size,
        bandwidth_bytes_per_s=bandwidth,
        latency_ns=parsed(f"{at}.latency", table.latency, parse_latency_ns),
        shared_by=table.shared_by,
        oversubscription=table.oversubscription,
        connections=table.connections,
        times=times,
        rail_only=table.rail_only,
        collective_blocks=table.collective_blocks,
    )


def _measured(table: Mapping[str, str], at: str) -> Sizes:
    times = []
    for size_text, bandwidth_text in table.items():
        size = parsed(at, size_text, parse_size_bytes)
        bandwidth = parsed(f"{at}.{size_text}", bandwidth_text, parse_bandwidth_bytes_per_s)
        times.append((size, round(size * 10**9 / bandwidth)))
    times.sort()
    if not times or times[0][0] < 1:
        raise ScenarioError(f"{at}: no size of message above 0 is given.", hint='as in { "1MB" = "13.1GB/s" }')
    for (low, low_ns), (high, high_ns) in pairwise(times):
        if high == low or high_ns < low_ns:
            raise ScenarioError(
                f"{at}: a message of {high} bytes would take {high_ns} ns and one of {low} bytes {low_ns} ns.",
                hint="larger messages take longer; give each size once",
            )
    return tuple(times)
