"""What to run, what binds and what one more unit buys: advice for the HTML report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.reports.advice.text import binds_text, listed
from tracetool.reports.answer.text import compared_results
from tracetool.reports.html.tables import Cell, PageTable, Row
from tracetool.units import format_duration
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from tracetool.advice import Advice, Gain
    from tracetool.whatif.results import Answer, Result


@dataclass(frozen=True, slots=True)
class Advised:
    """Lines of text, and what more of each resource buys; no table if nothing fits."""

    lines: tuple[str, ...]
    gains: PageTable | None


def advised_result(answer: Answer, advice: Advice | None) -> Result | None:
    """The result of an answer that is the plan to run; None if there is no advice or the answer lacks that plan."""
    if advice is None or advice.best is None:
        return None
    best = advice.best.result

    def what(result: Result) -> tuple[object, ...]:
        return result.schedule, result.extra_forwards, result.p2p, result.microbatches

    return next((result for result in compared_results(answer) if what(result) == what(best)), None)


def advised(answer: Answer, advice: Advice) -> Advised:
    """The advice in words and a table."""
    best = advice.best
    if best is None:
        return Advised(("HBM binds: none of these schedules fits.",), None)
    lines = []
    if advised_result(answer, advice) is None:
        lines.append(f"To run: {best.label} with {best.result.p2p} transfers, {format_duration(best.step_ns)} a step.")
    lines.append(f"What binds is {binds_text(advice)}.")
    if advice.other_transfers:
        lines.append(
            "With transfers issued otherwise it would be shorter (against the recorded order; "
            f"{UNPROVEN_MARK}: {UNPROVEN_TEXT}): {listed(advice, advice.other_transfers)}."
        )
    lines += [f"{more}: cannot be told: {reason}" for more, reason in advice.missing]
    lines.append(
        f"Best is the shortest step of what is predicted most surely; of steps within {RELEVANT_RATIO:.0%} of it the "
        "one that needs least memory, and the recorded order where the lead over it is within the error."
    )
    columns = ("One more unit", "Gain", "Share of step", "Step", "With")
    rows = tuple(_row(gain, best.label) for gain in advice.gains)
    return Advised(tuple(lines), PageTable("What one more unit buys, replayed", columns, rows))


def _row(gain: Gain, best: str) -> Row:
    label = gain.plan.label
    return Row(
        Cell(gain.more.text),
        (
            Cell(f"{gain.gained_ns / 1e6:.1f} ms", gain.gained_ns),
            Cell(f"{gain.gain_ratio:.1%}", gain.gain_ratio),
            Cell(format_duration(gain.plan.step_ns), gain.plan.step_ns),
            Cell("the same" if label == best else label),
        ),
    )
