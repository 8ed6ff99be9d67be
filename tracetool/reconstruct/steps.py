"""Training steps: where each begins and ends on each rank, which are complete, and which one to look at."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from tracetool.errors import ReconstructError
from tracetool.reconstruct.step_cuts import Cut, cuts_of
from tracetool.units import format_count, format_duration, format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account, Evidence
    from tracetool.reconstruct.clocks import Clocks
    from tracetool.store import Run

_ONE_RUN_NS = 100_000
"""Messages and collectives of one run agree on its clocks within this: recorded H100 and Ascend ranks did within 9 us,
ranks of two runs of one program missed each other by 350 us and more, whichever offset is taken."""

Status = Literal["complete", "first", "last", "partial"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        number: As the trace counts, else from 0.
        spans: Per global rank, the span of host time (device time on Ascend) it covers, on the rank's own clock.
        status: Whether it is complete; first and last: the capture begins or ends inside it; partial: it lacks
            messages for another reason, or some ranks do not have it.
        messages: Sends and receives in it, all ranks.
        evidence: How its ends are known.
        aligned: The spans on the reference rank's clock, as far as clocks are known; of ranks that were not recorded
            together as they are.
    """

    number: int
    spans: Mapping[int, tuple[int, int]]
    status: Status = "complete"
    messages: int = 0
    evidence: Evidence = "label"
    aligned: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def at_one_time(self) -> Mapping[int, tuple[int, int]]:
        """Its spans as they may be compared between ranks."""
        return self.aligned or self.spans

    @property
    def start_ns(self) -> int:
        """Earliest start on its ranks."""
        return min(start for start, _ in self.at_one_time.values())

    @property
    def duration_ns(self) -> int:
        """From the earliest start to the latest end on its ranks."""
        return max(end for _, end in self.at_one_time.values()) - self.start_ns


def steps_of(run: Run, ranks: Sequence[int], account: Account, clocks: Clocks) -> list[Step]:
    """All steps of a pipeline in order of time, with their status.

    Taken are the trace's own marks (ProfilerStep, STEP_TIME); else it is cut where the optimizer ends (its
    annotation, or its kernels); else where the pipeline has run empty, if the messages between two such places
    repeat.

    Args:
        run: The Run.
        ranks: The pipeline's ranks in stage order.
        account: Told how the steps were found.
        clocks: How the ranks' clocks differ.

    A step is complete if every rank has it and, on each rank, as many sends and receives (and as many kernels of
    them) as most steps have, of equally many the fuller ones.
    """
    marked: dict[int, dict[int, tuple[int, int]]] = {}
    for number, rank, start, end in run.rows(
        "SELECT step, rank, min(start_ns), max(end_ns) FROM steps "
        "WHERE list_contains(?, rank) GROUP BY ALL ORDER BY ALL",
        [list(ranks)],
    ):
        marked.setdefault(number, {})[rank] = (start, end)
    cut = Cut(marked, "label") if marked else cuts_of(run, ranks, account, clocks)
    posted = _posted(run, ranks)
    counts = {number: _counted(spans, posted) for number, spans in cut.spans.items()}
    steps = [
        Step(
            number,
            spans,
            messages=sum(total for total, _ in counts[number].values()),
            evidence=cut.evidence,
            aligned=_aligned(spans, clocks),
        )
        for number, spans in cut.spans.items()
    ]
    steps.sort(key=lambda step: (step.start_ns, step.number))
    return _with_status(steps, counts, ranks)


def choose_step(steps: Sequence[Step], ranks: Sequence[int], wanted: int | None, account: Account) -> Step:
    """The wanted step, or the complete one of median length (of an even number, the shorter middle one).

    Raises:
        ReconstructError: If the wanted step does not exist, or no step is complete.
    """
    numbers = sorted(step.number for step in steps)
    whole = sorted((s for s in steps if s.status == "complete"), key=lambda s: (s.duration_ns, s.number))
    if wanted is not None:
        chosen = next((s for s in steps if s.number == wanted), None)
        if chosen is None:
            raise ReconstructError(
                f"there is no step {wanted}; the traces hold steps {format_ranges(numbers)}.",
                hint=f"--step {(whole or steps)[0].number}, or leave it out for the complete step of median length",
            )
        missing = [rank for rank in ranks if rank not in chosen.spans]
        if missing:
            raise ReconstructError(f"step {wanted} was not recorded on ranks {missing} of the pipeline {list(ranks)}.")
        if chosen.status != "complete":
            account.note(f"step {wanted} is not complete ({_why(chosen)})")
        reason = "asked for"
    elif not whole:
        raise ReconstructError(
            f"none of the steps {numbers} was recorded on all pipeline ranks {list(ranks)}.",
            hint="record the same steps on every rank",
        )
    else:
        chosen = whole[(len(whole) - 1) // 2]
        reason = "of median length"
    incomplete = [s for s in steps if s.status != "complete" and s is not chosen]
    told = ", ".join(f"{s.number} ({_why(s)})" for s in incomplete)
    if incomplete:
        account.note(f"incomplete steps left out: {told}")
    account.find(
        "steps",
        "all",
        f"{len(whole)} of {format_count(len(steps), 'step')} complete; step {chosen.number} is looked at ({reason})",
        chosen.evidence,
        len(whole) / len(steps),
        f"incomplete: {told}" if told else None,
    )
    return _at_one_time(chosen)


def step_facts(steps: Sequence[Step], chosen: int) -> list[tuple[object, ...]]:
    """Rows of the table ``step_facts``.

    Args:
        steps: All of the pipeline's.
        chosen: Number of the one that was looked at.
    """
    return [
        (s.number, s.start_ns, s.duration_ns, s.status, s.number == chosen, s.messages, s.evidence)
        for s in sorted(steps, key=lambda s: s.start_ns)
    ]


def _aligned(spans: Mapping[int, tuple[int, int]], clocks: Clocks) -> dict[int, tuple[int, int]]:
    return {
        rank: (clocks.aligned_ns(rank, start), clocks.aligned_ns(rank, end))
        if clocks.agree_within(rank, _ONE_RUN_NS)
        else (start, end)
        for rank, (start, end) in spans.items()
    }


def _why(step: Step) -> str:
    return {
        "first": "the capture begins inside it",
        "last": "the capture ends inside it",
        "partial": "messages or ranks are missing, or more than usual",
        "complete": "complete",
    }[step.status]


def _posted(run: Run, ranks: Sequence[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Per rank, when its sends and receives were posted, and when those of them that have a kernel were."""
    posted: dict[int, tuple[list[int], list[int]]] = {rank: ([], []) for rank in ranks}
    for rank, time, ran in run.rows(
        "SELECT rank, posted_ns, start_ns IS NOT NULL FROM comms "
        "WHERE operation IN ('send', 'recv') AND list_contains(?, rank) ORDER BY rank, posted_ns",
        [list(ranks)],
    ):
        posted[rank][0].append(time)
        if ran:
            posted[rank][1].append(time)
    return posted


def _counted(
    spans: Mapping[int, tuple[int, int]], posted: Mapping[int, tuple[list[int], list[int]]]
) -> dict[int, tuple[int, int]]:
    def within(times: Sequence[int], start: int, end: int) -> int:
        return bisect_left(times, end) - bisect_left(times, start)

    return {
        rank: (within(posted[rank][0], start, end), within(posted[rank][1], start, end))
        for rank, (start, end) in spans.items()
    }


def _with_status(
    steps: Sequence[Step], counts: Mapping[int, dict[int, tuple[int, int]]], ranks: Sequence[int]
) -> list[Step]:
    patterns = {step.number: tuple(counts[step.number].get(rank) for rank in ranks) for step in steps}
    whole = [pattern for pattern in patterns.values() if None not in pattern]
    often = Counter(whole)
    usual = max(often, key=lambda p: (often[p], sum(pair[0] for pair in p if pair)), default=None)
    told = []
    for place, step in enumerate(steps):
        status: Status = "complete"
        if patterns[step.number] != usual:
            status = "first" if place == 0 else "last" if place == len(steps) - 1 else "partial"
        told.append(replace(step, status=status))
    return told


def _at_one_time(step: Step) -> Step:
    spans = step.at_one_time
    latest = max(spans, key=lambda rank: spans[rank][0])
    earliest = min(spans, key=lambda rank: spans[rank][1])
    apart = spans[latest][0] - spans[earliest][1]
    if apart >= 0:
        raise ReconstructError(
            f"step {step.number} of rank {latest} begins {format_duration(apart)} after that of rank {earliest} ended.",
            hint="the traces are of different runs, or the hosts' clocks are far apart",
        )
    return step
