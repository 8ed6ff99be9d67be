"""Devices that wait for launches: where hosts wait for them after every batch of messages, or are held up.

After such a wait the device stands still until the host has launched something, and again wherever kernels are shorter
than their launches, until the host is ahead. That is no compute: it goes with how messages are issued, and some of it
with whatever else the host had to do. So it is taken out of the actions' own time, and told by the launches that were
least disturbed: of those of one op in one place of the model, on all ranks, the ones that took at most twice the least.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.pipeline import Launch
from tracetool.readers import SYNCHRONISATIONS
from tracetool.reconstruction.closeup.contention import pieces
from tracetool.reconstruction.steps.reading import SPANS
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel, Segment
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.steps.reading import Span, StepReading

_MOSTLY = 0.5
_DISTURBED = 2
"""So many times the least that a wait or launch of its kind took, it was disturbed."""
_CONTEXT = 2
"""So many ops ahead of a launch tell the place in the model, with one after it."""
_WORTH = 0.01
"""Share of a rank's actions from which on gaps for want of a launch are looked into."""
_HELD_BACK = 0.05
"""Share of its own time from which on an action counts as held back by the host beyond what a wait costs."""

_SQL = f"""
WITH {SPANS}
SELECT s.number, e.start_ns, e.start_ns + e.duration_ns AS end_ns
FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns >= s.first AND e.start_ns < s.last
WHERE e.category IN ('launch', 'op') AND regexp_matches(e.name, $synchronisations)
ORDER BY s.number, e.start_ns
"""

_Key = tuple[int, ActionKind]
_Place = tuple[bool | str, ...]


class Waits(NamedTuple):
    """When a host waited for its device, on its own clock: starts and ends, in order."""

    starts: Sequence[int]
    ends: Sequence[int]

    def within(self, first_ns: int, last_ns: int) -> int | None:
        """Start of the last wait that lies within two moments; None if there is none."""
        at = bisect_right(self.starts, last_ns) - 1
        return self.starts[at] if at >= 0 and self.starts[at] >= first_ns and self.ends[at] <= last_ns else None


class Turn(NamedTuple):
    """An action of a rank with what came ahead of it.

    Attributes:
        segment: The action.
        after: The action before it; None for a rank's first.
        has_batch: Whether messages were posted between the two.
        batch_end_ns: Where the host waited for the device after that: end of the last message on the device.
        is_held: Per kernel, whether the host waited for the device just ahead of its launch.
    """

    segment: Segment
    after: Segment | None
    has_batch: bool
    batch_end_ns: int | None
    is_held: list[bool]


@dataclass(frozen=True, slots=True)
class Launches:
    """What launching takes, and gaps that are no part of what actions cost.

    Attributes:
        of: Per stage and kind of action, what its launches take; empty where hosts do not wait.
        gaps_ns: Per action of the step (by its ``id``), for how long each kernel's start waited for its launch.
        ranks: Global ranks whose actions have such gaps.
    """

    of: Mapping[_Key, Launch] = field(default_factory=dict)
    gaps_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()

    def gaps_of(self, segment: Segment) -> Sequence[int]:
        """Per kernel of an action, for how long its start waited for its launch."""
        return self.gaps_ns.get(id(segment)) or [0] * len(segment.kernels)


def read_waits(reading: StepReading, rank: int, span: Span) -> Waits:
    """When a rank's host waited for its device within a span of host time."""
    rows = reading.rows(_SQL, rank, span, synchronisations=SYNCHRONISATIONS)
    return Waits([start for start, _ in rows], [end for _, end in rows])


def turns_of(segments: Sequence[Segment], posts: Sequence[P2POp], waits: Waits) -> list[Turn]:
    """The actions of a rank in the order of their launches, each with what came ahead of it."""
    order = sorted((s for s in segments if s.kernels), key=lambda s: s.issue_ns)
    posted = sorted(posts, key=lambda op: op.posted_ns)
    times = [op.posted_ns for op in posted]
    turns = []
    for after, segment in zip([None, *order[:-1]], order, strict=True):
        first = after.issued_ns if after is not None else min([segment.issue_ns, *times])
        batch = posted[bisect_left(times, first) : bisect_left(times, segment.issue_ns)]
        end = None
        if batch and waits.within(batch[-1].posted_ns, segment.issue_ns) is not None:
            end = max((op.end_ns for op in batch if op.end_ns is not None), default=None)
        launches = [kernel.launch_ns for kernel in segment.kernels]
        held = [False, *(waits.within(then, now) is not None for then, now in pairwise(launches))]
        turns.append(Turn(segment, after, bool(batch), end, held))
    return turns


def mostly_waits(ranks: Mapping[int, Sequence[Turn]]) -> bool:
    """Whether every rank's host waits for its device after most batches of messages."""
    return bool(ranks) and all(_mostly_waits(turns) for turns in ranks.values())


def _mostly_waits(turns: Sequence[Turn]) -> bool:
    batches = [turn.batch_end_ns is not None for turn in turns if turn.has_batch]
    return sum(batches) > _MOSTLY * len(batches)


def has_late_launches(ranks: Mapping[int, Sequence[Turn]]) -> bool:
    """Whether devices wait for launches in a step to an extent that matters; never where launches are not recorded."""
    kernels = [k for turns in ranks.values() for turn in turns for k in turn.segment.kernels]
    if not any(kernel.launch_ns != kernel.start_ns for kernel in kernels):
        return False
    return mostly_waits(ranks) or any(_has_late_launches([turn.segment for turn in turns]) for turns in ranks.values())


def _has_late_launches(segments: Sequence[Segment]) -> bool:
    """Whether a rank's actions stand still for want of a launch for much of their time."""
    late = whole = 0
    for segment in segments:
        for kernel, (gap, run) in zip(segment.kernels, pieces(segment.kernels), strict=True):
            late += gap if _is_late(kernel, gap) else 0
            whole += gap + run
    return late > _WORTH * whole


def _is_late(kernel: Kernel, gap_ns: int) -> bool:
    """Whether a launch came when the device had nothing left to do, as its kernel waited ahead of its start."""
    return gap_ns > 0 and kernel.launch_ns >= kernel.start_ns - gap_ns


def find_launches(steps: Sequence[Mapping[int, Sequence[Turn]]], account: Account) -> Launches:
    """What launching takes, from all steps that were looked at.

    Args:
        steps: Per step and global rank, its actions; the chosen step is the first one.
        account: Takes up what was found.
    """
    chosen = steps[0]
    if not has_late_launches(chosen):
        return Launches()
    by_key: dict[_Key, list[_ActionRun]] = defaultdict(list)
    for turn in (turn for step in steps for turns in step.values() for turn in turns):
        by_key[turn.segment.stage, turn.segment.kind].append(_run_of(turn))
    of = {}
    usual = _usual_launches([run for runs in by_key.values() for run in runs])
    for key, runs in by_key.items():
        _settle_gaps(runs)
        of[key] = _launch(runs, usual)
    by_segment = {id(run.turn.segment): run for runs in by_key.values() for run in runs}
    shown = {rank: [by_segment[id(turn.segment)] for turn in turns] for rank, turns in chosen.items()}
    if mostly_waits(chosen):
        of = _with_known_waits(of)
        _record_launches(chosen, of, [run for runs in shown.values() for run in runs], account)
        known = {key: launch.known() for key, launch in of.items()}
        return Launches(known, {id(run.turn.segment): run.gaps_ns for run in by_segment.values()}, frozenset(chosen))
    ranks = frozenset(rank for rank, runs in shown.items() if _is_held_up(rank, runs, of, account))
    return Launches({}, {id(run.turn.segment): run.gaps_ns for rank in ranks for run in shown[rank]}, ranks)


def _is_held_up(rank: int, runs: Sequence[_ActionRun], of: Mapping[_Key, _Partly], account: Account) -> bool:
    """Whether a host that could keep ahead of its device fell behind it: what the device waited for then goes.

    A host that needs longer for its launches than the device for their kernels is slow in any order: gaps stay.
    """
    launches = [of[run.turn.segment.stage, run.turn.segment.kind] for run in runs]
    host = sum((launch.turn_ns or 0) + launch.issue_ns for launch in launches)
    late = sum(sum(run.gaps_ns) for run in runs)
    device = sum(sum(run.times_ns) + sum(run.before_ns) for run in runs) - late
    if host > device or late <= _WORTH * (device + late):
        return False
    account.find(
        "launches", SubjectKind.RANK(rank),
        f"kernels waited {format_duration(late)} for their launches ({late / (device + late):.0%} of its actions), "
        "which costs leave out", "kernels", 1.0,
        f"all launches of the step need {format_duration(host)}, all kernels {format_duration(device)}: a host that is "
        "not held up keeps ahead",
    )  # fmt: skip
    return True


@dataclass(slots=True)
class _ActionRun:
    """One run of an action.

    Attributes:
        turn: The action, and what came ahead of it.
        signature: What it launched.
        launches_ns: Host time of each launch after the one before.
        times_ns: What each kernel adds to the action, without the gap ahead of it.
        before_ns: The gap ahead of each kernel.
        is_late: Whether its launch came when the device had nothing left to do.
        gaps_ns: What of the gap is the wait for the launch.
    """

    turn: Turn
    signature: tuple[str, ...]
    launches_ns: list[int]
    times_ns: list[int]
    before_ns: list[int]
    is_late: list[bool]
    gaps_ns: list[int]


def _run_of(turn: Turn) -> _ActionRun:
    kernels = turn.segment.kernels
    parts = pieces(kernels)
    launches = [kernel.launch_ns for kernel in kernels]
    before = [kernels[0].launch_ns, *launches[:-1]]
    return _ActionRun(
        turn,
        tuple(kernel.op_name or kernel.name for kernel in kernels),
        [now - then for now, then in zip(launches, before, strict=True)],
        [piece.run_ns for piece in parts],
        [piece.gap_ns for piece in parts],
        [_is_late(kernel, piece.gap_ns) for kernel, piece in zip(kernels, parts, strict=True)],
        gaps_ns=[0] * len(kernels),
    )


def _settle_gaps(runs: Sequence[_ActionRun]) -> None:
    """Tell what of each gap was the wait for a launch: all but what the device itself takes between the two kernels."""
    own: dict[tuple[tuple[str, ...], int], list[int]] = defaultdict(list)
    every: list[int] = []
    for run in runs:
        for at, (gap, late) in enumerate(zip(run.before_ns, run.is_late, strict=True)):
            if not late and run.times_ns[at]:
                own[run.signature, at].append(gap)
                every.append(gap)
    usual = median(every) if every else 0
    for run in runs:
        for at, (gap, late, held) in enumerate(zip(run.before_ns, run.is_late, run.turn.is_held, strict=True)):
            if late and not held:
                known = own.get((run.signature, at))
                run.gaps_ns[at] = max(0, gap - round(median(known) if known else usual))


@dataclass(frozen=True, slots=True)
class _Partly:
    """A ``Launch`` of which some is not known yet."""

    sync_ns: int | None
    turn_ns: int | None
    lag_ns: int
    issue_ns: int

    def known(self) -> Launch:
        return Launch(self.sync_ns or 0, self.turn_ns or 0, self.lag_ns, self.issue_ns)


def _undisturbed(times: Sequence[int]) -> int:
    """Mean of what took at most twice the least."""
    most = _DISTURBED * max(0, min(times))
    return round(fmean(time for time in times if time <= most or time == min(times)))


def _places(run: _ActionRun) -> list[_Place]:
    """Per launch, what tells the place in the model, whichever layer, stage or rank it is of."""
    is_forward, names = run.turn.segment.kind is ActionKind.FORWARD, ("",) * _CONTEXT + run.signature + ("",)
    return [(is_forward, *names[at : at + _CONTEXT + 2]) for at in range(len(run.signature))]


def _usual_launches(runs: Sequence[_ActionRun]) -> dict[_Place, int]:
    """What a launch takes the host, by its place in the model."""
    taken_at: dict[_Place, list[int]] = defaultdict(list)
    for run in runs:
        for place, taken, held in zip(_places(run), run.launches_ns, run.turn.is_held, strict=True):
            if not held:
                taken_at[place].append(taken)
    return {place: _undisturbed(times) for place, times in taken_at.items()}


def _launch(runs: Sequence[_ActionRun], usual: Mapping[_Place, int]) -> _Partly:
    """What the launches of one stage and kind take."""
    syncs, turns = [], []
    for turn in (run.turn for run in runs):
        if turn.batch_end_ns is not None:
            syncs.append(turn.segment.start_ns - turn.batch_end_ns)
        elif turn.after is not None and not turn.has_batch:
            turns.append(turn.segment.issue_ns - turn.after.issued_ns)
    alike: dict[tuple[str, ...], list[_ActionRun]] = defaultdict(list)
    for run in runs:
        alike[run.signature].append(run)
    lag, issue = _lag_and_issue(max(alike.values(), key=len), usual)
    return _Partly(_undisturbed(syncs) if syncs else None, _undisturbed(turns) if turns else None, lag, issue)


def _lag_and_issue(runs: Sequence[_ActionRun], usual: Mapping[_Place, int]) -> tuple[int, int]:
    """How far launches fall behind kernels if both begin at once, and how long all launches take."""
    launched = ran = lag = 0
    columns = zip(
        [0, *(usual.get(place, 0) for place in _places(runs[0])[1:])],
        zip(*(run.times_ns for run in runs), strict=True),
        zip(*([b - g for b, g in zip(run.before_ns, run.gaps_ns, strict=True)] for run in runs), strict=True),
        zip(*(run.turn.is_held for run in runs), strict=True),
        strict=True,
    )
    for taken, times, gaps, held in columns:
        gap = round(median(gaps))
        # Where the host waits for the device inside an action, it is where the device is, and the gap the action's own.
        launched = ran + lag + gap if any(held) else launched + taken
        if any(times):
            lag = max(lag, launched - ran - gap)
        ran += gap + round(median(times))
    return lag, launched


def _with_known_waits(of: Mapping[_Key, _Partly]) -> dict[_Key, _Partly]:
    """What a wait costs ahead of an action that never came after one: as of its kind elsewhere, else of any."""
    syncs = {key: launch.sync_ns for key, launch in of.items() if launch.sync_ns is not None}

    def usual(kind: ActionKind) -> int | None:
        alike = [sync for (_, other), sync in syncs.items() if other is kind] or list(syncs.values())
        return round(median(alike)) if alike else None

    return {
        key: launch if launch.sync_ns is not None else replace(launch, sync_ns=usual(key[1]))
        for key, launch in of.items()
    }


def _record_launches(
    chosen: Mapping[int, Sequence[Turn]],
    of: Mapping[_Key, _Partly],
    shown: Sequence[_ActionRun],
    account: Account,
) -> None:
    batches = sum(turn.has_batch for turns in chosen.values() for turn in turns)
    waited = sum(turn.batch_end_ns is not None for turns in chosen.values() for turn in turns)
    costs = [(launch.sync_ns or 0) + launch.lag_ns for launch in of.values()]
    account.find(
        "launches", "all",
        f"hosts wait for their devices after {waited} of {batches} batches of messages, and take "
        f"{format_duration(min(costs))} to {format_duration(max(costs))} to get going again",
        "kernels", waited / batches,
        "that goes with blocking batches (grouped), not with the actions",
    )  # fmt: skip
    beyond = []
    for run in shown:
        more = sum(run.gaps_ns) - of[run.turn.segment.stage, run.turn.segment.kind].lag_ns
        if more > _HELD_BACK * (sum(run.times_ns) + sum(run.before_ns) - sum(run.gaps_ns)):
            beyond.append(more)
    if beyond:
        account.note(
            NoticeCode.HOSTS_LATE,
            f"hosts held {len(beyond)} of {format_count(len(shown), 'action')} back for longer than their waits for "
            f"devices explain, by {format_duration(sum(beyond))}: costs leave that out",
        )
