"""An answer as text and as JSON.

What a table of results shows of each: one list for texts and pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.units import format_duration, format_size
from tracetool.whatif.accuracy import format_error
from tracetool.whatif.best import error_text
from tracetool.whatif.memory_limit import is_near_the_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.timeline import Metrics
    from tracetool.whatif.results import Answer, Result


class Shown(NamedTuple):
    """A cell: its text, and what a page sorts it by."""

    text: str = ""
    sort: float | None = None


class ResultColumn(NamedTuple):
    """A column.

    Attributes:
        head: Its head in a text.
        title: Its head on a page.
        place: Where a page has it: what decides first.
        cell: What it shows of a result, or of what was observed.
    """

    head: str
    title: str
    place: int
    cell: Callable[[Answer, Metrics, Result | None], Shown]


def _transfers(answer: Answer, _metrics: Metrics, result: Result | None) -> Shown:
    """How transfers are issued, where that differs."""
    issued = {answer.pipeline.p2p, answer.baseline.p2p, *(each.p2p for each in answer.results)}
    return Shown("" if len(issued) == 1 else (answer.pipeline if result is None else result).p2p)


def _step(_answer: Answer, metrics: Metrics, _result: Result | None) -> Shown:
    return Shown(format_duration(metrics.step_ns), metrics.step_ns)


def _error(_answer: Answer, _metrics: Metrics, result: Result | None) -> Shown:
    return Shown() if result is None else Shown(error_text(result), result.seen_error_ratio)


def _change(answer: Answer, _metrics: Metrics, result: Result | None) -> Shown:
    """A change of step time with its error, marked where it is within that."""
    if result is None:
        return Shown()
    change, error = answer.step_change(result), answer.step_change_error(result)
    if result is answer.baseline:
        return Shown("baseline", change)
    text = f"{change:+.1%}".replace("-0.0%", "+0.0%")
    marked = text if error is None else f"{'~' * (abs(change) <= error)}{text} ±{format_error(error)}"
    return Shown(marked, change)


def _bubble(_answer: Answer, metrics: Metrics, _result: Result | None) -> Shown:
    return Shown(f"{metrics.bubble_ratio:.1%}", metrics.bubble_ratio)


def _cross_dc(answer: Answer, _metrics: Metrics, result: Result | None) -> Shown:
    if result is None:
        return Shown()
    text = format_duration(result.cross_dc_step_ns) if answer.scenario.topology.dcs else ""
    return Shown(text, result.cross_dc_step_ns)


def _peak(answer: Answer, metrics: Metrics, result: Result | None) -> Shown:
    highest = max((peak or 0 for peak in metrics.peak_hbm_bytes), default=0)
    if None in metrics.peak_hbm_bytes:
        return Shown("unknown", highest)
    is_lower_bound = result is not None and answer.scenario.activation_bytes is not None
    return Shown(("≥ " if is_lower_bound else "") + format_size(highest), highest)


def _needs(_answer: Answer, metrics: Metrics, _result: Result | None) -> Shown:
    """Peak and what was measured beyond it: what is held against a limit; nothing where nothing beyond is known."""
    needed = [size for size in metrics.needed_hbm_bytes if size is not None]
    known = any(size is not None for size in metrics.overhead_bytes) and len(needed) == len(metrics.needed_hbm_bytes)
    return Shown(format_size(max(needed)), max(needed)) if known else Shown()


def _fits(answer: Answer, metrics: Metrics, result: Result | None) -> Shown:
    if result is None:
        return Shown()
    order = {True: 0, None: 1, False: 2}[result.feasible]
    if answer.scenario.hbm_bytes is None:
        return Shown("", order)
    fits = {True: "yes", False: "NO", None: "unknown"}[result.feasible]
    if result.feasible and (
        answer.scenario.activation_bytes is not None or is_near_the_limit(metrics, answer.scenario)
    ):
        fits = "maybe"
    return Shown(fits, order)


NEEDS = ResultColumn("needs", "Needs of HBM", 7, _needs)
FITS = ResultColumn("fits", "Fits", 1, _fits)
COLUMNS = (
    ResultColumn("transfers", "Transfers", 8, _transfers),
    ResultColumn("step", "Step", 0, _step),
    ResultColumn("±", "±", 3, _error),
    ResultColumn("Δ", "Change", 2, _change),
    ResultColumn("bubble", "Bubble", 4, _bubble),
    ResultColumn("cross-DC", "Cross-DC", 5, _cross_dc),
    ResultColumn("peak HBM", "Peak HBM", 6, _peak),
    NEEDS,
    FITS,
)


def result_cells(answer: Answer, metrics: Metrics, result: Result | None) -> list[Shown]:
    """Cells of a result after its name, as ``COLUMNS`` has them; None is what was observed."""
    return [column.cell(answer, metrics, result) for column in COLUMNS]
