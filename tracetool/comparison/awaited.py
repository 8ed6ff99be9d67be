"""Collectives that actions wait for, as a cause: tensor, context and expert parallel ranks meet inside actions.

Their time is part of the actions', and no compute: what of a change is theirs is taken apart from it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from tracetool.units import format_count, format_duration, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.ingestion.recording import CollectiveRecord, Recording

Action = tuple[int, str]
"""Stage and kind."""


class Awaited(NamedTuple):
    """What an action waits for on average.

    Attributes:
        ns: Time of these collectives.
        number: How many they are.
        group_ranks: Ranks of their group.
        payload_bytes: Bytes of each, where they are alike and known.
    """

    ns: float = 0.0
    number: float = 0.0
    group_ranks: tuple[int, ...] = ()
    payload_bytes: int | None = None


class CollectiveKey(NamedTuple):
    """Which collective it is, of whichever pipeline.

    Attributes:
        operation: Its name.
        apart: Ranks of its group, counted from the first.
    """

    operation: str = ""
    apart: tuple[int, ...] = ()


AwaitedBy = dict[Action, dict[CollectiveKey, Awaited]]
"""Per stage and kind, what its actions wait for; actions are left out of which that was not looked at."""
AwaitedChanges = dict[Action, dict[CollectiveKey, int]]
"""Per stage and kind, by how much what its actions wait for changed, in ns."""


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
            ones[-1].payload_bytes if len({one.payload_bytes for one in ones}) == 1 else None,
        )
        for which, ones in uses.items()
    }


def awaited_changes(base: AwaitedBy, new: AwaitedBy) -> AwaitedChanges:
    """How much longer an action waits for each collective, where both sides tell; what did not change is left out.

    Args:
        base: What its actions wait for.
        new: What those of the new side wait for.
    """
    changes: AwaitedChanges = {}
    for action in base.keys() & new.keys():
        before, after = base[action], new[action]
        rises = {
            which: round(after.get(which, NOTHING).ns - before.get(which, NOTHING).ns)
            for which in sorted(before.keys() | after.keys())
        }
        changes[action] = {which: ns for which, ns in rises.items() if ns}
    return changes


NOTHING = Awaited()
"""What is awaited of a collective that actions do not have."""
_MOST_LISTED = 8


def collective_name(which: CollectiveKey, ranks: Sequence[int]) -> str:
    """A collective with the ranks of its group, as far as they can be listed."""
    if not ranks:
        return which.operation
    members = format_ranks(ranks) if len(ranks) <= _MOST_LISTED else format_count(len(ranks), "rank")
    return f"{which.operation} of {members}"


def from_to(before: Awaited, after: Awaited) -> str:
    """What an action waited, and waits."""
    sizes = [one.payload_bytes for one in (before, after)]
    more = [
        *([f"{before.number:g} → {after.number:g} of them"] if before.number != after.number else []),
        *([" → ".join(format_size(size) for size in sizes if size)] if all(sizes) and len(set(sizes)) > 1 else []),
    ]
    return f"{format_duration(before.ns)} → {format_duration(after.ns)}" + (f" ({', '.join(more)})" if more else "")


def are_recorded(uses: Iterable[Awaited], recordings: Iterable[Recording]) -> bool:
    """Whether all ranks that meet in collectives were recorded: else their times may hold waits for others.

    Args:
        uses: The collectives.
        recordings: Those that tell of them.
    """
    members = {rank for use in uses for rank in use.group_ranks}
    return all(members <= _recorded(recording) for recording in recordings)


def _recorded(recording: Recording) -> set[int]:
    stages = [] if recording.job is UNSET else recording.job.stages
    others = {rank for stage in stages for rank in stage.ranks if rank not in stage.unrecorded}
    return {*recording.global_ranks, *others}
