"""Which steps do the same work: as many messages of each rank to each other one and back.

Steps differ in more than being cut off. Batch sizes ramp up, so that a step has another number of microbatches; an
evaluation runs forwards alone. Such steps are complete, but of another kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.store.run import Run

Way = tuple[int, int | None, bool]
"""Rank, the other one, and whether the rank sends."""


class Posts(NamedTuple):
    """How many operations of a way a step holds.

    Attributes:
        posted: All of them.
        ran: Those that have a kernel.
    """

    posted: int
    ran: int


class Exchanged(NamedTuple):
    """The sends and receives of a step.

    Attributes:
        ways: How many there are of each way.
        ranks: Ranks that have the step.
    """

    ways: frozenset[tuple[Way, Posts]]
    ranks: frozenset[int]

    @property
    def total(self) -> int:
        """All sends and receives."""
        return sum(posts.posted for _, posts in self.ways)


def exchanged_by_step(
    run: Run, spans: Mapping[int, Mapping[int, tuple[int, int]]], ranks: Sequence[int]
) -> dict[int, Exchanged]:
    """What each step exchanges.

    Args:
        run: The Run.
        spans: Per step and rank, where it begins and ends.
        ranks: The pipeline's ranks.
    """
    counted: dict[int, dict[Way, list[int]]] = {number: defaultdict(lambda: [0, 0]) for number in spans}
    by_rank: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, of_step in spans.items():
        for rank, (start, end) in of_step.items():
            by_rank[rank].append((start, end, number))
    for of_rank in by_rank.values():
        of_rank.sort()
    at: Counter[int] = Counter()
    for rank, peer, is_send, time, ran in run.rows(
        "SELECT rank, peer, operation = 'send', posted_ns, start_ns IS NOT NULL FROM comms "
        "WHERE operation IN ('send', 'recv') AND list_contains(?, rank) ORDER BY rank, posted_ns",
        [list(ranks)],
    ):
        steps = by_rank[rank]
        while at[rank] < len(steps) and steps[at[rank]][1] <= time:
            at[rank] += 1
        if at[rank] < len(steps) and steps[at[rank]][0] <= time:
            counts = counted[steps[at[rank]][2]][rank, peer, is_send]
            counts[0] += 1
            counts[1] += ran
    return {
        number: Exchanged(
            frozenset((way, Posts(*counts)) for way, counts in ways.items()), frozenset(spans[number])
        )
        for number, ways in counted.items()
    }  # fmt: skip


def usual_of(exchanged: Iterable[Exchanged], ranks: Sequence[int]) -> Exchanged | None:
    """What most steps exchange that every rank has; of equally many the fuller ones, steps with gradients first."""
    whole = Counter(one for one in exchanged if set(ranks) <= one.ranks)
    return max(whole, key=lambda one: (goes_both_ways(one, ranks), whole[one], one.total), default=None)


def goes_both_ways(one: Exchanged, ranks: Sequence[int]) -> bool:
    """Whether messages go down the pipeline and back up."""
    return {_is_downstream(way, ranks) for way, _ in one.ways} >= {True, False}


def has_another_size(one: Exchanged, usual: Exchanged) -> bool:
    """Whether a step exchanges the same as usual in another number everywhere: that of its microbatches."""
    return one.ranks >= usual.ranks and _ratio(dict(one.ways), dict(usual.ways)) is not None


def has_forwards_alone(one: Exchanged, usual: Exchanged, ranks: Sequence[int]) -> bool:
    """Whether a step exchanges the activations of usual ones, in whatever number, and no gradients."""
    down = {way: posts for way, posts in usual.ways if _is_downstream(way, ranks)}
    return one.ranks >= usual.ranks and len(down) < len(usual.ways) and _ratio(dict(one.ways), down) is not None


def is_balanced(one: Exchanged, ranks: Sequence[int]) -> bool:
    """Whether every rank has the step, and whatever one of them sends another one receives in it."""
    ways = dict(one.ways)
    sides = all(
        peer is None or peer not in ranks or ways.get((peer, rank, not is_send)) == posts
        for (rank, peer, is_send), posts in one.ways
    )
    return set(ranks) <= one.ranks and bool(ways) and sides


def _ratio(ways: Mapping[Way, Posts], usual: Mapping[Way, Posts]) -> Fraction | None:
    """How many times as many there are of every way; None if that differs."""
    if not usual or set(ways) != set(usual):
        return None
    ratios = {Fraction(ways[way].posted, posts.posted) for way, posts in usual.items()}
    ran = all(ways[way].ran * posts.posted == posts.ran * ways[way].posted for way, posts in usual.items())
    return ratios.pop() if len(ratios) == 1 and ran else None


def _is_downstream(way: Way, ranks: Sequence[int]) -> bool | None:
    """Whether messages of a way go from a rank to the next one (behind the last is the first); None if elsewhere."""
    rank, peer, is_send = way
    if rank not in ranks or peer not in ranks:
        return None
    src, dst = (ranks.index(rank), ranks.index(peer)) if is_send else (ranks.index(peer), ranks.index(rank))
    apart = dst - src if len(ranks) == 2 else (dst - src + 1) % len(ranks) - 1
    return {1: True, -1: False}.get(apart)
