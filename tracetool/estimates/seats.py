"""A job's ranks on a network, where everything alike happens at the same time and shares what it passes.

Groups of one kind run their collectives together, and all pipelines send from one stage to the next together: what
several of them pass has for each only its share. Of a kind the slowest group stands for all. Pipelines that differ in
where they cross the outermost tier are told apart. Where that tier is shared, messages that cross it pass one link per
pair of its groups and direction, first come first served; its latency occupies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.network.placement import DIMENSIONS, offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from tracetool.estimates.training import Group
    from tracetool.network.placement import Degrees, Dimension, Placement
    from tracetool.network.tiers import Network

    Int64s = np.ndarray[Any, np.dtype[np.int64]]

_VARIED: Mapping[Group, tuple[Dimension, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "gradients": ("dp", "ep", "cp"),
    "expert_gradients": ("dp", "cp"),
}
"""Dimensions that a group reaches over: of expert parallel ranks each has its own experts."""
_OUTWARD = tuple(reversed(DIMENSIONS))


@dataclass(frozen=True)
class Groups:
    """All groups of one kind.

    Attributes:
        unlike: Devices of one of each sort of them: those of a sort lie alike.
        sharing: By tier, how many of them at most pass the same of it.
        edges: By tier, how many neighbours in rings through all groups meet there.
        pairs: By tier, how many ordered pairs of members of all groups meet there; of expert parallel groups alone.
    """

    unlike: tuple[tuple[int, ...], ...]
    sharing: tuple[int, ...]
    edges: tuple[int, ...]
    pairs: tuple[int, ...]


class SeatHop(NamedTuple):
    """The way from a pipeline rank to the next one.

    Attributes:
        devices: Both, of one pipeline.
        crossed: The tier at which they meet, by number.
        sharing: By tier, how many messages at most pass the same of it where all pipelines send together.
        of_one: Of these, those of one pipeline: of its tensor and context parallel ranks.
        pairs: By tier, how many messages of all pipelines meet there.
    """

    devices: tuple[int, int]
    crossed: int
    sharing: tuple[int, ...]
    of_one: tuple[int, ...]
    pairs: tuple[int, ...]


@dataclass(frozen=True)
class PipelineLine:
    """Pipelines that cross the same tiers at the same hops.

    Attributes:
        hops: From each rank to the next, the last one's to the first.
        places: The group of the outermost tier that each rank is in, numbered from 0; none where nothing is shared.
    """

    hops: tuple[SeatHop, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Seats:
    """A job on a network.

    Attributes:
        network: The network, as wide as it is.
        groups: By kind.
        lines: Pipelines that are unlike.
    """

    network: Network
    groups: Mapping[Group, Groups]
    lines: tuple[PipelineLine, ...]


@lru_cache(maxsize=512)
def seats(network: Network, rule: str, degrees: Degrees) -> Seats:
    """Put a job on a network.

    Args:
        network: Where it runs.
        rule: By which (``network.placement``).
        degrees: How wide it is.

    Raises:
        BadTopology: If it does not fit by that rule.
    """
    import numpy as np

    along = offsets(degrees, network, rule)
    grid = np.zeros((), np.int64)
    for name in _OUTWARD:
        grid = grid[..., None] + np.array(along[name], np.int64)
    return _seated(network, grid, degrees)


def seats_of(network: Network, placement: Placement) -> Seats:
    """A job on a network whose ranks have their devices."""
    import numpy as np

    wide = [placement.degrees.wide(name) for name in _OUTWARD]
    return _seated(network, np.array(placement.devices, np.int64).reshape(wide), placement.degrees)


def _seated(network: Network, grid: Int64s, degrees: Degrees) -> Seats:
    """A job of which the devices are known by place along each dimension."""
    groups = {kind: _groups(network, grid, varied) for kind, varied in _VARIED.items()}
    apart = grid.transpose([_OUTWARD.index(name) for name in ("pp", "dp", "ep", "cp", "tp")])
    return Seats(network, groups, _lines(network, apart.reshape(degrees.pp, -1), degrees.cp * degrees.tp))


def _groups(network: Network, grid: Int64s, varied: Sequence[Dimension]) -> Groups:
    import numpy as np

    axes = [_OUTWARD.index(name) for name in varied]
    members = np.moveaxis(grid, axes, range(-len(axes), 0))
    members = np.sort(members.reshape(-1, int(np.prod(members.shape[-len(axes) :]))), axis=1)
    if members.shape[1] == 1:
        return Groups((), (), (), ())
    following = np.roll(members, -1, axis=1)
    # Of what a group's members have in order, one at most leaves each group of a tier on a ring.
    pairs = members.reshape(1, -1), following.reshape(1, -1)
    sharing = (int(_together(network, number, *pairs)[0]) for number in range(1, len(network.tiers)))
    return Groups(
        tuple(map(tuple, _unlike(network, members).tolist())),
        (1, *sharing),
        _meeting(network, members, following),
        _pairs(network, members) if varied == ("ep",) else (),
    )


def _crossed(network: Network, src: Int64s, dst: Int64s) -> Int64s:
    """The tier at which devices meet, by number."""
    import numpy as np

    crossed = np.zeros_like(src)
    for number in range(1, len(network.tiers)):
        crossed[src // network.inner_size(number) != dst // network.inner_size(number)] = number
    return crossed


def _meeting(network: Network, src: Int64s, dst: Int64s) -> tuple[int, ...]:
    import numpy as np

    return tuple(np.bincount(_crossed(network, src, dst).ravel(), minlength=len(network.tiers)).tolist())


def _pairs(network: Network, members: Int64s) -> tuple[int, ...]:
    import numpy as np

    rows = np.arange(len(members))[:, None]
    within = []
    for tier in network.tiers:
        key = members // tier.size + rows * (network.devices // tier.size + 1)
        within.append(int((np.unique(key, return_counts=True)[1] ** 2).sum()))
    return tuple(more - fewer for fewer, more in pairwise((members.size, *within)))


def _together(network: Network, number: int, src: Int64s, dst: Int64s) -> Int64s:
    """Of pairs in rows, how many of a row at most pass the same of a tier; 1 where devices have it for themselves."""
    import numpy as np

    tier, inner = network.tiers[number], network.inner_size(number)
    one, other = src // inner, dst // inner
    crossing = one != other
    if (tier.shared_by == "device" and tier.oversubscription == 1) or not crossing.any():
        return np.ones(len(src), np.int64)
    wide = network.devices // inner + 1
    if tier.shared_by == "pair":
        one, wide = one * wide + other, wide * wide
    rows = np.arange(len(src))[:, None] * wide
    counts = np.bincount((one + rows)[crossing], minlength=len(src) * wide).reshape(len(src), wide)
    most: Int64s = np.maximum(counts.max(axis=1), 1)
    return most


def _unlike(network: Network, members: Int64s) -> Int64s:
    """The first of each sort of rows, which lie alike in all tiers."""
    import numpy as np

    if len(network.tiers) == 1:
        return members[:1]
    inner = np.concatenate([members // network.inner_size(number) for number in range(1, len(network.tiers))], axis=1)
    wide = members.shape[1]
    firsts = np.repeat(inner[:, ::wide], wide, axis=1)
    draw = np.random.default_rng(0).integers(1, 1 << 40, inner.shape[1])
    return members[np.sort(np.unique((inner - firsts) @ draw, return_index=True)[1])]


def _lines(network: Network, ranks: Int64s, of_one: int) -> tuple[PipelineLine, ...]:
    """Of each sort of pipelines the first one.

    Args:
        network: Where they are.
        ranks: Devices by stage, and by tensor and context parallel rank of each pipeline.
        of_one: How many of these a pipeline has.
    """
    import numpy as np

    following = np.roll(ranks, -1, axis=0)
    tiers = range(1, len(network.tiers))
    crossed = _crossed(network, ranks, following)

    def together(src: Int64s, dst: Int64s) -> list[tuple[int, ...]]:
        counts = [np.ones(len(src), np.int64), *(_together(network, number, src, dst) for number in tiers)]
        return list(map(tuple, np.stack(counts, axis=1).tolist()))

    meeting = np.stack([(crossed == number).sum(axis=1) for number in range(len(network.tiers))], axis=1)
    shared = list(
        zip(
            together(ranks, following),
            together(ranks[:, :of_one], following[:, :of_one]),
            map(tuple, meeting.tolist()),
            strict=True,
        )
    )
    outer = ranks // network.inner_size(len(network.tiers) - 1)
    apart = network.tiers[-1].shared_by != "device" or network.tiers[-1].oversubscription > 1
    sorts = np.concatenate([crossed, outer - outer[:1] if apart else outer[:0]])
    draw = np.random.default_rng(0).integers(1, 1 << 40, len(sorts))
    lines = []
    for column in np.sort(np.unique(draw @ sorts, return_index=True)[1]).tolist():
        numbers = {place: number for number, place in enumerate(dict.fromkeys(outer[:, column].tolist()))}
        places = tuple(numbers[place] for place in outer[:, column].tolist()) if apart and len(numbers) > 1 else ()
        pairs = zip(ranks[:, column].tolist(), following[:, column].tolist(), strict=True)
        hops = zip(pairs, crossed[:, column].tolist(), shared, strict=True)
        lines.append(PipelineLine(tuple(SeatHop(pair, level, *by) for pair, level, by in hops), places))
    return tuple(lines)
