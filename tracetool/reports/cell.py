"""Results as pictures, and as a cell of a notebook shows them."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from tracetool.advice import Advice
from tracetool.comparison import Comparison
from tracetool.comparison.summary import summary
from tracetool.errors import TraceToolError, WrongType
from tracetool.estimates.asked import Estimated
from tracetool.explanation import Explanation
from tracetool.reports.advice import decision_figure, sentences, step_text
from tracetool.reports.answer.verdict import verdict
from tracetool.reports.comparison.forms import lines_table, timelines_figure
from tracetool.reports.estimate.picture import estimate_figure
from tracetool.reports.estimate.text import MEASURED_HEAD, headline, measured_cells
from tracetool.reports.explanation.text import idle_sentences
from tracetool.reports.gantt.picture import drawn_result, gantt_figure, pair_figure, result_figure
from tracetool.reports.html import Cell, PageTable, Row, comparison
from tracetool.reports.html.page import advised, offers
from tracetool.reports.network import first_sentence
from tracetool.reports.network.picture import traffic_figure
from tracetool.reports.picture import drawn, save
from tracetool.reports.sweep import bars_of, best_sentences
from tracetool.reports.sweep.lines import sweep_figure
from tracetool.sweeps import Sweep
from tracetool.units import format_duration, format_size
from tracetool.whatif.best import error_text, plan_name
from tracetool.whatif.decision import Decision, today_of
from tracetool.whatif.on_network import OnNetwork
from tracetool.whatif.results import Answer, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from matplotlib.figure import Figure
    from tqdm import tqdm


def _advice_figure(advice: Advice) -> Figure:
    answer = replace(advice.asked.answer, scenario=advice.scenario)
    return pair_figure(answer, drawn_result(answer) if advice.best is None else advice.best.result)


_FIGURES: dict[type, Callable[[Any], Figure]] = {
    Answer: gantt_figure,
    Result: result_figure,
    Explanation: lambda explained: gantt_figure(explained.answer),
    Advice: _advice_figure,
    Decision: decision_figure,
    Sweep: sweep_figure,
    Comparison: timelines_figure,
    Estimated: estimate_figure,
    OnNetwork: traffic_figure,
}


def figure_of(result: object) -> Figure:
    """The picture of a result, as a matplotlib figure.

    Raises:
        ScenarioError: If there is nothing to draw.
        WrongType: If such results have none.
    """
    if type(result) not in _FIGURES:
        raise WrongType(f"a {type(result).__name__} is no result that has a picture")
    return drawn(lambda: _FIGURES[type(result)](result))


def html_of(result: object) -> str:
    """What a cell of a notebook shows of a result: what it says, its first table, and its picture.

    Raises:
        WrongType: If such results are not shown.
    """
    sentences, table = _said(result)
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in sentences)
    try:
        figure = figure_of(result)
        figure.set_dpi(_CELL_DPI)
        pixels = b64encode(save(lambda: figure, "png")).decode()
        picture = f'<img style="max-width:100%" alt="{escape(sentences[0])}" src="data:image/png;base64,{pixels}">'
    except TraceToolError as error:
        picture = f"<p>{escape(error.message)}</p>"
    return paragraphs + ("" if table is None else _table_html(table)) + picture


_MOST_ROWS = 12
_CELL_DPI = 90
"""Of pictures in cells, which notebooks keep: less than in files."""


def _table_html(table: PageTable) -> str:
    lines = [[(cell.text, cell.span) for cell in (row.head, *row.cells)] for row in table.rows]
    rows = ["".join(f'<td colspan="{span}">{escape(text)}</td>' for text, span in line) for line in lines[:_MOST_ROWS]]
    heads, rest = "".join(f"<th>{escape(head)}</th>" for head in table.columns), len(lines) - _MOST_ROWS
    more = f"<p>{rest:,} more: to_polars has all.</p>" if rest > 0 else ""
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{more}"


@singledispatch
def _said(result: object) -> tuple[list[str], PageTable | None]:
    raise WrongType(f"a {type(result).__name__} is no result that is shown")


@_said.register(Answer)
def _(result: Answer) -> tuple[list[str], PageTable | None]:
    chosen = verdict(result)
    return [*map(str, result.warnings), f"{chosen.headline}."], comparison(result, chosen.best)


@_said.register(Result)
def _(result: Result) -> tuple[list[str], PageTable | None]:
    sentence = f"{plan_name(result)} with {result.p2p} transfers: {step_text(result)} a step"
    return [f"{sentence}, {result.metrics.bubble_ratio:.1%} bubble.", *([result.remark] if result.remark else [])], None


@_said.register(Explanation)
def _(result: Explanation) -> tuple[list[str], PageTable | None]:
    rows = tuple(
        Row(Cell(cause.cause.words.label), (Cell(format_duration(cause.mean_ns)), Cell(cause.cause.words.meaning)))
        for cause in result.causes
    )
    return [*idle_sentences(result)], PageTable("", ("Cause", "Idle, mean over ranks", "Meaning"), rows)


@_said.register(Advice)
def _(result: Advice) -> tuple[list[str], PageTable | None]:
    answer = result.asked.answer
    today = today_of(answer.pipeline, answer.observed_metrics.step_ns)
    return sentences(Decision(today=today, offers=(result.offer(),))), advised(answer, result).gains


@_said.register(Decision)
def _(result: Decision) -> tuple[list[str], PageTable | None]:
    return sentences(result), offers(result)


@_said.register(Sweep)
def _(result: Sweep) -> tuple[list[str], PageTable | None]:
    rows = []
    for bar in bars_of(result):
        change = None if bar.now is None or not bar.now.step_ns else (bar.plan.step_ns or 0) / bar.now.step_ns - 1
        step = Cell(format_duration(bar.plan.step_ns or 0)), Cell(error_text(bar.plan))
        rows.append(Row(Cell(bar.label), (Cell(plan_name(bar.plan)), *step, Cell(f"{change:+.1%}" if change else ""))))
    return best_sentences(result), PageTable("", ("Scenario", "Run", "Step", "±", "Change"), tuple(rows))


@_said.register(Comparison)
def _(result: Comparison) -> tuple[list[str], PageTable | None]:
    return [summary(result), *result.failures], lines_table(result, result.shown, "")


@_said.register(Estimated)
def _(result: Estimated) -> tuple[list[str], PageTable | None]:
    rows = tuple(Row(Cell(name), tuple(map(Cell, cells))) for name, *cells in measured_cells(result))
    return [headline(result.job)], PageTable("", MEASURED_HEAD, rows) if rows else None


@_said.register(OnNetwork)
def _(result: OnNetwork) -> tuple[list[str], PageTable | None]:
    tiers = tuple(Row(Cell(name), (Cell(format_size(size)),)) for name, size in result.tier_bytes().items())
    return [first_sentence(result)], PageTable("", ("Tier", "Bytes a step"), tiers)


_DELAY_S = 1


class CellBar:
    """A bar below a cell that takes longer than a second; gone when it is done."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def start(self, total: int) -> None:
        """Show the bar."""
        with catch_warnings():
            simplefilter("ignore")  # that there are no widgets: then it is text
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, delay=_DELAY_S, leave=False, unit_scale=True)

    def advance(self, count: int) -> None:
        """Move it."""
        if self._bar is not None:
            self._bar.update(count)
            if self._bar.total is not None and self._bar.n >= self._bar.total:
                self._bar.close()
