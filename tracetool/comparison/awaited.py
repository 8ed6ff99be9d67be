"""Collectives that actions wait for, as a cause: tensor, context and expert parallel ranks meet inside actions.

Their time is part of the actions', and no compute: where it is what changed, it is named instead.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from tracetool.ingestion.recording import CollectiveRecord, Recording

_EXPLAINS = 0.5
"""Collectives are why actions changed if they did by that share of it."""
_WORTH_TELLING = 0.1
"""They are told of from that share on."""

Action = tuple[int, str]
"""Stage and kind."""


class Awaited(NamedTuple):
    """What an action waits for on average.

    Attributes:
        ns: Time of these collectives.
        number: How many they are.
        group_ranks: Ranks of their group.
    """

    ns: float
    number: float
    group_ranks: tuple[int, ...]


class CollectiveKey(NamedTuple):
    """Which collective it is, of whichever pipeline.

    Attributes:
        operation: Its name.
        apart: Ranks of its group, counted from the first.
    """

    operation: str
    apart: tuple[int, ...]


class AwaitedChange(NamedTuple):
    """A collective for which actions changed.

    Attributes:
        name: Which one.
        detail: Its time in actions, before and now.
        may_wait: Whether that may hold waits for ranks that were not recorded.
        is_cause: Whether such collectives are most of the change.
    """

    name: str
    detail: str
    may_wait: bool
    is_cause: bool


AwaitedBy = dict[Action, dict[CollectiveKey, Awaited]]
"""Per stage and kind, what its actions wait for; actions are left out of which that was not looked at."""


def awaited_by(recordings: Sequence[Recording]) -> AwaitedBy:
    """What actions wait for, on average over steps.

    Args:
        recordings: At least one; actions are left out of which one of their steps does not tell.
    """
    each: dict[Action, list[Sequence[CollectiveRecord] | None]] = defaultdict(list)
    for recording in recordings:
        for step in recording.steps:
            for name, action in step.actions.items():
                each[int(name[:-1]), name[-1]].append(action.collectives)
    known = {key: [uses for uses in of_steps if uses is not None] for key, of_steps in each.items()}
    return {key: _averaged(of_steps) for key, of_steps in known.items() if len(of_steps) == len(each[key])}


def _averaged(of_steps: Sequence[Sequence[CollectiveRecord]]) -> dict[CollectiveKey, Awaited]:
    uses: dict[CollectiveKey, list[CollectiveRecord]] = defaultdict(list)
    for one in (one for of_step in of_steps for one in of_step):
        first = min(one.group_ranks, default=0)
        uses[CollectiveKey(one.operation, tuple(rank - first for rank in one.group_ranks))].append(one)
    steps = len(of_steps)
    return {
        which: Awaited(
            sum(one.own_ns * one.count for one in ones) / steps,
            sum(one.count for one in ones) / steps,
            tuple(ones[-1].group_ranks),
        )
        for which, ones in uses.items()
    }


def awaited_change(
    base: AwaitedBy, new: AwaitedBy, changes_ns: Mapping[Action, float], recorded: AbstractSet[int]
) -> AwaitedChange | None:
    """The collective for which actions changed most; None if that is little of it, or not known.

    Args:
        base: What they waited for.
        new: What they wait for.
        changes_ns: By stage and kind, how much longer its actions take on average.
        recorded: Global ranks of the new side whose traces tell when they came to a collective.
    """
    if not all(action in side for action in changes_ns for side in (base, new)):
        return None
    total_ns = sum(changes_ns.values())
    each: dict[CollectiveKey, dict[Action, tuple[Awaited, Awaited]]] = defaultdict(dict)
    for action in changes_ns:
        for which in sorted(base[action].keys() | new[action].keys()):
            each[which][action] = base[action].get(which, _NONE), new[action].get(which, _NONE)
    rises = {which: sum(after.ns - before.ns for before, after in uses.values()) for which, uses in each.items()}
    alike = {which: ns for which, ns in rises.items() if ns * total_ns > 0}
    share = sum(alike.values()) / total_ns if total_ns else 0.0
    if share < _WORTH_TELLING:
        return None
    first = max(alike, key=lambda which: abs(alike[which]))
    ranks = next(after.group_ranks or before.group_ranks for before, after in each[first].values())
    words = [f"in each {stage}{kind} {_words(*uses)}" for (stage, kind), uses in each[first].items()]
    return AwaitedChange(
        name=f"{first.operation}{_members(ranks)}",
        detail=", ".join(words),
        may_wait=not recorded >= set(ranks),
        is_cause=share >= _EXPLAINS,
    )


_NONE = Awaited(0.0, 0.0, ())
_MOST_LISTED = 8


def _members(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f" of {format_ranks(ranks) if len(ranks) <= _MOST_LISTED else format_count(len(ranks), 'rank')}"


def _words(before: Awaited, after: Awaited) -> str:
    more = f" ({before.number:g} → {after.number:g} of them)" if before.number != after.number else ""
    return f"{format_duration(before.ns)} → {format_duration(after.ns)}{more}"


def ranks_recorded(recordings: Sequence[Recording]) -> frozenset[int]:
    """Global ranks that all of several recordings have."""
    each = []
    for one in recordings:
        stages = [] if one.job is UNSET else one.job.stages
        others = {rank for stage in stages for rank in stage.ranks if rank not in stage.unrecorded}
        each.append({*one.global_ranks, *others})
    return frozenset(set.intersection(*each)) if each else frozenset()
