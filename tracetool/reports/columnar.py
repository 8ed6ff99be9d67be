"""Results as tables: Arrow, or Polars over the same memory; and as a cell of a notebook shows them."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from tracetool.advice import Advice, Decided
from tracetool.comparison import Comparison
from tracetool.comparison.summary import summary
from tracetool.errors import TraceToolError, WrongType
from tracetool.explanation import Explanation
from tracetool.ingestion.runs import idle_table, observed_tables, timeline_tables
from tracetool.model.pipeline import max_if_known
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import Timeline
from tracetool.reconstruction import Reconstruction
from tracetool.replays import Replayed
from tracetool.reports.advice import decision_figure, sentences, step_text
from tracetool.reports.answer.verdict import verdict
from tracetool.reports.comparison.forms import lines_table, timelines_figure
from tracetool.reports.explanation.text import idle_sentences
from tracetool.reports.gantt.picture import drawn_result, gantt_figure, pair_figure, result_figure
from tracetool.reports.html import Cell, PageTable, Row, comparison
from tracetool.reports.html.page import advised, offers
from tracetool.reports.picture import drawn, save
from tracetool.reports.sweep import bars_of, best_sentences
from tracetool.reports.sweep.lines import sweep_figure
from tracetool.sweeps import Sweep
from tracetool.tables.results import (
    CAUSE_RANKS,
    CAUSES,
    CHANGES,
    CHECKS,
    GAINS,
    LINES,
    OFFERS,
    PATH,
    PLANS,
    RANKS,
    RESULTS,
)
from tracetool.units import format_duration
from tracetool.whatif.best import error_text, plan_name
from tracetool.whatif.decision import Decision, today_of
from tracetool.whatif.results import Answer, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    import polars as pl
    import pyarrow as pa
    from matplotlib.figure import Figure
    from tqdm import tqdm

    from tracetool.model.timeline import Metrics
    from tracetool.tables import Table

_HIGHEST = ("peak_hbm_bytes", "needed_hbm_bytes")
_OF_EACH_RANK = ("rank", "compute_ns", *_HIGHEST)

TableRow = tuple[object, ...]
"""What a row is of; see ``Table.arrow``."""

TabularResult = (
    Timeline
    | Reconstruction
    | Replayed
    | Result
    | Answer
    | Explanation
    | Advice
    | Decision
    | Decided
    | Sweep
    | Comparison
)
"""What can be made into tables."""


def to_arrow(result: TabularResult) -> dict[str, pa.Table]:
    """The tables of a result, by name, as Arrow; columns have their meaning as field metadata.

    ===================================  =====================================================================
    a Timeline, what was replayed        ops, transfers, memory_curve, metrics (as in a Run); of a Result idles
    a Reconstruction                     the same of the observed step, and stages
    an Answer                            results, ranks
    an Explanation                       causes, cause_ranks, path
    an Advice                            plans, gains
    a Decision, or what decide returns   offers
    a Sweep                              points, knees
    a Comparison                         lines, changes, checks
    ===================================  =====================================================================

    Args:
        result: What one of the verbs returned.

    Raises:
        WrongType: If it is nothing of these.

    Example:
        >>> tt.to_arrow(answer.results[0])["ops"].select(["rank", "kind", "microbatch", "duration_ns"]).to_pylist()[0]
        {'rank': 0, 'kind': 'F', 'microbatch': 0, 'duration_ns': 5680379}
    """
    return _tables(result)


def to_polars(result: TabularResult) -> dict[str, pl.DataFrame]:
    """The same as Polars frames, over the memory of the Arrow tables: numbers are not copied.

    Args:
        result: What one of the verbs returned.

    Raises:
        WrongType: If it cannot be made into tables.

    Example:
        >>> tt.to_polars(answer)["results"].select("role", "schedule", "step_ns").rows()[0]
        ('observed', '1f1b', 246370042)
    """
    import polars as pl

    frames = {}
    for name, rows in to_arrow(result).items():
        frame = pl.from_arrow(rows, rechunk=False)
        if isinstance(frame, pl.DataFrame):
            frames[name] = frame
    return frames


@singledispatch
def _tables(result: object) -> dict[str, pa.Table]:
    raise WrongType(f"a {type(result).__name__} is no result that has tables")


@_tables.register(Timeline)
def _(result: Timeline) -> dict[str, pa.Table]:
    return timeline_tables(result)


@_tables.register(Replayed)
def _(result: Replayed) -> dict[str, pa.Table]:
    return timeline_tables(result.timeline)


@_tables.register(Result)
def _(result: Result) -> dict[str, pa.Table]:
    return {**timeline_tables(result.timeline), "idles": idle_table(result.timeline, result.idles)}


@_tables.register(Reconstruction)
def _(result: Reconstruction) -> dict[str, pa.Table]:
    return observed_tables(result)


@_tables.register(Sweep)
def _(result: Sweep) -> dict[str, pa.Table]:
    return {"points": result.table(), "knees": result.knee_table()}


@_tables.register(Answer)
def _(result: Answer) -> dict[str, pa.Table]:
    observed = {"role": "observed", "schedule": result.observed_schedule or OBSERVED, "p2p": result.pipeline.p2p}
    every: list[tuple[Timeline, Metrics, TableRow]] = [
        (result.observed, result.observed_metrics, (observed, result.pipeline.observed.shape))
    ]
    for role, results in (("baseline", (result.baseline,)), ("result", result.results)):
        for each in results:
            change, error = result.step_change(each), result.step_change_error(each)
            told = {"role": role, "step_change_ratio": change, "step_change_error_ratio": error}
            every.append((each.timeline, each.metrics, (told, each)))
    by_rank: list[TableRow] = []
    for timeline, metrics, row in every:
        columns = [timeline.global_ranks, *(getattr(metrics, name) for name in ("rank_compute_ns", *_HIGHEST))]
        by_rank += [(dict(zip(_OF_EACH_RANK, figures, strict=True)), *row) for figures in zip(*columns, strict=True)]
    return _made({RESULTS: [(_highest(metrics), *row, metrics) for _, metrics, row in every], RANKS: by_rank})


@_tables.register(Explanation)
def _(result: Explanation) -> dict[str, pa.Table]:
    ranks = result.answer.observed.global_ranks
    causes: list[TableRow] = [
        (
            {
                "cause": found.cause.value, "idle_ns": found.mean_ns, "worst_rank": ranks[found.worst_rank],
                "removal": found.removal.how, "microbatches": found.removal.microbatches or None,
            },
            found.removal,
        )
        for found in result.causes
    ]  # fmt: skip
    by_rank: list[TableRow] = [
        ({"cause": found.cause.value, "rank": rank, "idle_ns": idle_ns},)
        for found in result.causes
        for rank, idle_ns in zip(ranks, found.rank_ns, strict=True)
    ]
    path: list[TableRow] = [
        ({"duration_ns": ns, **({"rank": ranks[what]} if isinstance(what, int) else {"cause": what.value})},)
        for what, ns in result.spent_ns.items()
    ]
    return _made({CAUSES: causes, CAUSE_RANKS: by_rank, PATH: path})


@_tables.register(Advice)
def _(result: Advice) -> dict[str, pa.Table]:
    verdicts = {id(plan): "rival" for plan in result.rivals} | {id(plan): "unproven" for plan in result.unproven}
    verdicts |= {} if result.best is None else {id(result.best): "best"}
    plans: list[TableRow] = [
        ({"verdict": verdicts.get(id(plan))}, _highest(plan.result.metrics), plan, plan.result)
        for plan in result.asked.plans
    ]
    gains: list[TableRow] = [
        ({"unit": gain.more.text}, gain, gain.plan, gain.plan.result, gain.more) for gain in result.gains
    ]
    return _made({PLANS: plans, GAINS: gains})


@_tables.register(Decision)
def _(result: Decision) -> dict[str, pa.Table]:
    rows: list[TableRow] = []
    for offer in result.offers:
        best, bought = offer.best, result.bought(offer)
        told = {
            "fee": None if offer.fee is None else str(offer.fee),
            "seen_error_ratio": None if best is None or best.known_error is None else best.known_error.step_ratio,
            "to_today_ratio": result.to_today(offer), "run_days": result.run_days(offer),
            "run_fee": result.run_fee(offer),
        }  # fmt: skip
        rows.append((told, *filter(None, (best, bought)), offer))
    return _made({OFFERS: rows})


@_tables.register(Decided)
def _(result: Decided) -> dict[str, pa.Table]:
    return _tables(result.decision)


@_tables.register(Comparison)
def _(result: Comparison) -> dict[str, pa.Table]:
    lines: list[TableRow] = [({"scope": line.key.scope or None}, line.key, line) for line in result.lines]
    changes: list[TableRow] = [
        ({"metric": metric, "value": float(cause.value)}, cause)
        for metric, causes in result.causes.items()
        for cause in causes
    ]
    checks: list[TableRow] = [({"limit": check.limit.text}, check) for check in result.checks]
    return _made({LINES: lines, CHANGES: changes, CHECKS: checks})


def _highest(metrics: Metrics) -> dict[str, int | None]:
    """Figures of each rank as one: the largest, or None if any is unknown, for that one may be larger."""
    of_ranks: dict[str, Sequence[int | None]] = {name: getattr(metrics, name) for name in _HIGHEST}
    return {name: max_if_known(sizes) for name, sizes in of_ranks.items()}


def _made(rows: Mapping[Table, Sequence[TableRow]]) -> dict[str, pa.Table]:
    return {table.name: table.arrow(of_table) for table, of_table in rows.items()}


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
    told = "".join(f"<p>{escape(line)}</p>" for line in sentences)
    try:
        figure = figure_of(result)
        figure.set_dpi(_CELL_DPI)
        pixels = b64encode(save(lambda: figure, "png")).decode()
        picture = f'<img style="max-width:100%" alt="{escape(sentences[0])}" src="data:image/png;base64,{pixels}">'
    except TraceToolError as error:
        picture = f"<p>{escape(error.message)}</p>"
    return told + ("" if table is None else _table_html(table)) + picture


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
    found = verdict(result)
    return [*map(str, result.warnings), f"{found.headline}."], comparison(result, found.best)


@_said.register(Result)
def _(result: Result) -> tuple[list[str], PageTable | None]:
    told = f"{plan_name(result)} with {result.p2p} transfers: {step_text(result)} a step"
    return [f"{told}, {result.metrics.bubble_ratio:.1%} bubble.", *([result.remark] if result.remark else [])], None


@_said.register(Explanation)
def _(result: Explanation) -> tuple[list[str], PageTable | None]:
    rows = tuple(
        Row(Cell(found.cause.words.label), (Cell(format_duration(found.mean_ns)), Cell(found.cause.words.meaning)))
        for found in result.causes
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
