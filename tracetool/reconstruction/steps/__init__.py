"""Where steps begin and end, which do the same work, and what crosses between data centres in one.

Training steps: where each begins and ends on each rank, which are complete, and which one to look at.

Kernels that a capture lost, where the vendor says for how long a rank computed in a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from tracetool.errors import Option, ReconstructError
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.reconstruction.steps.cuts import Cut, cuts_of
from tracetool.reconstruction.steps.kinds import (
    Exchanged,
    exchanged_by_step,
    goes_both_ways,
    has_another_size,
    has_forwards_alone,
    is_balanced,
    usual_of,
)
from tracetool.units import format_count, format_duration, format_ranges, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.store.run import Run


LEAST_LOST_RATIO = 0.01
"""On whole captures of text and database exports the vendor's figure and the kernels agree to 3e-6."""

_SQL = """
WITH told AS (
    SELECT rank, step, start_ns, end_ns, vendor_computing_ns FROM steps
    WHERE vendor_computing_ns > 0 AND list_contains(?, rank)
),
kernels AS (
    SELECT t.rank, t.step, t.vendor_computing_ns, k.start_ns, k.start_ns + k.duration_ns AS end_ns,
           max(k.start_ns + k.duration_ns) OVER (
               PARTITION BY t.rank, t.step ORDER BY k.start_ns, k.duration_ns
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS busy_ns
    FROM told AS t JOIN events AS k ON k.rank = t.rank AND k.category = 'kernel'
        AND k.start_ns >= t.start_ns AND k.start_ns < t.end_ns
)
SELECT step, rank, 1 - sum(greatest(end_ns - greatest(start_ns, coalesce(busy_ns, start_ns)), 0))
                       / any_value(vendor_computing_ns)
FROM kernels GROUP BY step, rank ORDER BY step, rank
"""


def lost_ratios(run: Run, ranks: Sequence[int]) -> dict[int, dict[int, float]]:
    """Per step and rank, the share of the vendor's computing time in which no recorded kernel ran, if any is lost.

    Ranks without any kernel in a step are left out: they were recorded without kernels.
    """
    by_step: dict[int, dict[int, float]] = {}
    for step, rank, ratio in run.rows(_SQL, [list(ranks)]):
        if ratio > LEAST_LOST_RATIO:
            by_step.setdefault(step, {})[rank] = float(ratio)
    return by_step


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
        exchanged: Which those are: steps with the same do the same work.
        lost: Per rank, the share of the vendor's computing time whose kernels are missing.
    """

    number: int
    spans: Mapping[int, tuple[int, int]]
    status: Status = "complete"
    messages: int = 0
    evidence: Evidence = "label"
    aligned: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    exchanged: Exchanged | None = field(default=None, repr=False)
    lost: Mapping[int, float] = field(default_factory=dict)

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

    A step is complete if every rank has it and, from each rank to each other one, as many sends and receives (and as
    many kernels of them) as most steps have, of equally many the fuller ones. So is one of another kind: with the same
    in another number everywhere (of microbatches), with the activations alone (an evaluation), or a marked one between
    others whose messages all have both sides. Where the vendor says for how long each rank computed (Ascend), the
    kernels must be there too.
    """
    marked: dict[int, dict[int, tuple[int, int]]] = {}
    for number, rank, start, end in run.rows(
        "SELECT step, rank, min(start_ns), max(end_ns) FROM steps "
        "WHERE list_contains(?, rank) GROUP BY ALL ORDER BY ALL",
        [list(ranks)],
    ):
        marked.setdefault(number, {})[rank] = (start, end)
    cut = Cut(marked, "label") if marked else cuts_of(run, ranks, account, clocks)
    exchanged = exchanged_by_step(run, cut.spans, ranks)
    lost = lost_ratios(run, ranks) if marked else {}
    steps = [
        Step(
            number,
            spans,
            messages=exchanged[number].total,
            evidence=cut.evidence,
            aligned=_aligned(spans, clocks),
            exchanged=exchanged[number],
            lost=lost.get(number, {}),
        )
        for number, spans in cut.spans.items()
    ]
    steps.sort(key=lambda step: (step.start_ns, step.number))
    return _with_status(run, steps, ranks)


def choose_step(steps: Sequence[Step], ranks: Sequence[int], wanted: int | None, account: Account) -> Step:
    """The wanted step, or the complete one of median length (of an even number, the shorter middle one).

    Of steps of several kinds those count that are most: with gradients first, of equally many the fuller ones.

    Raises:
        ReconstructError: If the wanted step does not exist, or no step is complete.
    """
    numbers = sorted(step.number for step in steps)
    whole = [s for s in steps if s.status == "complete"]
    if wanted is not None:
        chosen = next((s for s in steps if s.number == wanted), None)
        if chosen is None:
            alike = _by_length(whole, steps, ranks)
            raise ReconstructError(
                f"there is no step {wanted}; the traces hold steps {format_ranges(numbers)}.",
                hint=f"{Option.STEP((alike or steps)[0].number)}, or leave it out for the complete step of median "
                "length",
            )
        missing = [rank for rank in ranks if rank not in chosen.spans]
        if missing:
            raise ReconstructError(f"step {wanted} was not recorded on ranks {missing} of the pipeline {list(ranks)}.")
        reason = "asked for"
    elif not (alike := _by_length(whole, steps, ranks)):
        unmarked = [rank for rank in ranks if not any(rank in s.spans for s in steps)]
        raise ReconstructError(
            f"none of the steps {numbers} was recorded on all pipeline ranks {list(ranks)}"
            + (f": no step is marked on {format_ranks(unmarked)}." if unmarked else f" ({_lacks(steps, ranks)})."),
            hint="record the same steps on every rank, with profiler.step() after each of them",
        )
    else:
        chosen = alike[(len(alike) - 1) // 2]
        reason = "of median length" if whole else "the one that lacks least"
    if chosen.lost if wanted is None else chosen.status != "complete":
        text = f"step {chosen.number} is not complete ({_why(chosen)})"
        account.note(NoticeCode.STEP_INCOMPLETE, text, subject=SubjectKind.STEP(chosen.number))
    incomplete = [s for s in steps if s.status != "complete" and s is not chosen]
    listed = ", ".join(f"{s.number} ({_why(s)})" for s in incomplete)
    if incomplete:
        account.note(NoticeCode.STEPS_LEFT_OUT, f"incomplete steps left out: {listed}")
    others = ", ".join(f"{s.number} ({_unlike(s, chosen, ranks)})" for s in whole if s.exchanged != chosen.exchanged)
    if others and chosen.status == "complete":
        account.note(NoticeCode.STEPS_LEFT_OUT, f"steps of other work left out: {others}")
    account.find(
        "steps",
        "all",
        f"{len(whole)} of {format_count(len(steps), 'step')} complete; step {chosen.number} is looked at ({reason})",
        chosen.evidence,
        len(whole) / len(steps),
        "; ".join(
            part
            for part in (f"incomplete: {listed}" if listed else "", f"of other work: {others}" if others else "")
            if part
        )
        or None,
    )
    return _at_one_time(chosen)


def _by_length(whole: Sequence[Step], steps: Sequence[Step], ranks: Sequence[int]) -> list[Step]:
    """The complete steps of the kind that is looked at, the shortest one first."""
    # With kernels missing on all steps, the one that lacks least is better than none.
    lacking = sorted((s for s in steps if s.lost and set(ranks) <= set(s.spans)), key=lambda s: max(s.lost.values()))
    return sorted(_of_most(whole or lacking[:1], ranks), key=lambda s: (s.duration_ns, s.number))


def _lacks(steps: Sequence[Step], ranks: Sequence[int]) -> str:
    """Which ranks lack which steps."""
    lacks = {s.number: [rank for rank in ranks if rank not in s.spans] for s in steps}
    return ", ".join(f"{number} is not on {format_ranks(lacking)}" for number, lacking in lacks.items() if lacking)


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
    if step.lost:
        listed = ", ".join(f"{ratio:.0%} on rank {rank}" for rank, ratio in sorted(step.lost.items()))
        return f"kernels are missing: of the computing time that the vendor tells {listed}"
    return {
        "first": "the capture begins inside it",
        "last": "the capture ends inside it",
        "partial": "messages or ranks are missing, or more than usual",
        "complete": "complete",
    }[step.status]


def _of_most(whole: Sequence[Step], ranks: Sequence[int]) -> list[Step]:
    """The complete steps of the kind that is looked at."""
    usual = usual_of((s.exchanged for s in whole if s.exchanged is not None), ranks)
    return [s for s in whole if s.exchanged == usual] or list(whole)


def _unlike(step: Step, chosen: Step, ranks: Sequence[int]) -> str:
    """How a complete step differs from the chosen one."""
    one, other = step.exchanged, chosen.exchanged
    if one is None or other is None:
        return "unknown"
    if has_another_size(one, other):
        more = Fraction(one.total, other.total)
        return f"{format_ratio(more)} the microbatches"
    if not goes_both_ways(one, ranks) and goes_both_ways(other, ranks):
        return "no backward"
    if goes_both_ways(one, ranks) and not goes_both_ways(other, ranks):
        return "with backwards"
    return f"{one.total} sends and receives instead of {other.total}"


def format_ratio(ratio: Fraction) -> str:
    """So many times, for people."""
    return f"{ratio.numerator}" + (f"/{ratio.denominator}" if ratio.denominator > 1 else "") + " times"


def _with_status(run: Run, steps: Sequence[Step], ranks: Sequence[int]) -> list[Step]:
    usual = usual_of((step.exchanged for step in steps if step.exchanged is not None), ranks)
    judged = []
    for place, step in enumerate(steps):
        at_end = place in {0, len(steps) - 1}
        status: Status = "complete"
        if (
            step.lost
            or usual is None
            or not _is_whole(run, step, [s for s in steps if s.exchanged == usual], ranks, at_end=at_end)
        ):
            status = "first" if place == 0 else "last" if at_end else "partial"
        judged.append(replace(step, status=status))
    return judged


def _is_whole(run: Run, step: Step, usual: Sequence[Step], ranks: Sequence[int], *, at_end: bool) -> bool:
    """Whether a step lacks nothing, as far as messages and marks tell."""
    own, other = step.exchanged, usual[0].exchanged
    if own is None or other is None or own == other or has_another_size(own, other):
        return own is not None
    if step.evidence != "label":
        return False
    if has_forwards_alone(own, other, ranks):
        # Where all forwards are ahead of the first backward, a capture may also have ended between them.
        return not at_end or not _builds_graphs(run, step, ranks[0]) or _turns_early(run, usual[0], ranks[-1])
    return not at_end and is_balanced(own, ranks)


def _builds_graphs(run: Run, step: Step, rank: int) -> bool:
    """Whether ops of the step carry autograd numbers: there are none in an evaluation without gradients."""
    sql = (
        "SELECT 1 FROM events WHERE rank = ? AND category = 'op' AND sequence_number IS NOT NULL "
        "AND start_ns >= ? AND start_ns < ? LIMIT 1"
    )
    return bool(run.rows(sql, [rank, *step.spans[rank]]))


def _turns_early(run: Run, step: Step, rank: int) -> bool:
    """Whether the last stage sends gradients ahead of its last forward in a step."""
    sql = (
        "SELECT min(posted_ns) FILTER (operation = 'send') < max(posted_ns) FILTER (operation = 'recv') FROM comms "
        "WHERE rank = ? AND posted_ns >= ? AND posted_ns < ?"
    )
    ((early,),) = run.rows(sql, [rank, *step.spans[rank]])
    return bool(early)


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
