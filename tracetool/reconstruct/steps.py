"""Training steps: which one to look at, and where it begins and ends on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import multimode
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class Step:
    """One step: per global rank, the span of host time (device time on Ascend) it covers."""

    number: int
    spans: Mapping[int, tuple[int, int]]


def choose_step(run: Run, ranks: Sequence[int], wanted: int | None, account: Account) -> Step:
    """The wanted step, or the complete one of median length (of an even number, the shorter middle one).

    A step is complete if every rank of the pipeline marks it and sends and receives as often in it as
    in most steps (of equally many, in the fuller ones).

    Raises:
        ReconstructError: If the wanted step does not exist, or no step is complete.
    """
    rows = run.rows(
        "SELECT step, rank, min(start_ns), max(end_ns) FROM steps WHERE list_contains(?, rank) GROUP BY ALL",
        [list(ranks)],
    )
    steps: dict[int, dict[int, tuple[int, int]]] = {}
    for number, rank, start, end in rows:
        steps.setdefault(number, {})[rank] = (start, end)
    if not steps:
        steps = _between_optimizers(run, ranks, account)
    counts = {number: _p2p_count(run, spans) for number, spans in steps.items()}
    usual = max(multimode(counts.values()))
    whole = [n for n, s in steps.items() if len(s) == len(ranks) and counts[n] == usual]
    if wanted is not None:
        return _at_one_time(Step(wanted, _on_all_ranks(wanted, steps, ranks)))
    if not whole:
        raise ReconstructError(
            f"none of the steps {sorted(steps)} was recorded on all pipeline ranks {list(ranks)}.",
            hint="record the same steps on every rank",
        )
    partial = sorted(set(steps) - set(whole))
    if partial:
        account.note(f"incomplete steps left out: {', '.join(map(str, partial))}")
    by_length = sorted(whole, key=lambda n: (_length(steps[n]), n))
    number = by_length[(len(by_length) - 1) // 2]
    return _at_one_time(Step(number, steps[number]))


def _between_optimizers(run: Run, ranks: Sequence[int], account: Account) -> dict[int, dict[int, tuple[int, int]]]:
    """Steps of a trace without marks: cut where the optimizer ends, or all of it as one."""
    bounds = {
        rank: (first, last)
        for rank, first, last in run.rows(
            "SELECT rank, min(start_ns), max(start_ns + duration_ns) FROM events GROUP BY rank"
        )
    }
    ends: dict[int, list[int]] = {rank: [] for rank in ranks}
    for rank, end in run.rows(
        "SELECT rank, start_ns + duration_ns AS end_ns FROM events "
        "WHERE category = 'annotation' AND starts_with(name, 'Optimizer.step') ORDER BY end_ns"
    ):
        if rank in ends:
            ends[rank].append(end)
    count = min(len(cuts) for cuts in ends.values())
    if count == 0:
        account.note("the trace marks neither steps nor the optimizer: all of it is taken as one step, number 0")
        return {0: {rank: bounds[rank] for rank in ranks}}
    account.note("the trace marks no steps: they are cut where the optimizer ends, and numbered from 0")
    return {
        number: {rank: (cuts[number - 1] if number else bounds[rank][0], cuts[number]) for rank, cuts in ends.items()}
        for number in range(count)
    }


def _at_one_time(step: Step) -> Step:
    latest = max(step.spans, key=lambda rank: step.spans[rank][0])
    earliest = min(step.spans, key=lambda rank: step.spans[rank][1])
    apart = step.spans[latest][0] - step.spans[earliest][1]
    if apart >= 0:
        raise ReconstructError(
            f"step {step.number} of rank {latest} begins {format_duration(apart)} after that of rank {earliest} ended.",
            hint="the traces are of different runs, or the hosts' clocks are far apart",
        )
    return step


def _on_all_ranks(
    wanted: int, steps: Mapping[int, dict[int, tuple[int, int]]], ranks: Sequence[int]
) -> dict[int, tuple[int, int]]:
    if wanted not in steps:
        raise ReconstructError(f"there is no step {wanted}; the traces hold steps {sorted(steps)}.")
    missing = [rank for rank in ranks if rank not in steps[wanted]]
    if missing:
        raise ReconstructError(f"step {wanted} was not recorded on ranks {missing} of the pipeline {list(ranks)}.")
    return steps[wanted]


def _length(spans: Mapping[int, tuple[int, int]]) -> int:
    return max(end for _, end in spans.values()) - min(start for start, _ in spans.values())


def _p2p_count(run: Run, spans: Mapping[int, tuple[int, int]]) -> int:
    total = 0
    for rank, (start, end) in spans.items():
        ((count,),) = run.rows(
            "SELECT count(*) FROM comms WHERE rank = ? AND operation IN ('send', 'recv') "
            "AND posted_ns >= ? AND posted_ns < ?",
            [rank, start, end],
        )
        total += count
    return total
