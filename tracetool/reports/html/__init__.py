"""The report as one HTML file, and its tables: texts for people, each with the value that it is sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reports.answer import COLUMNS, FITS
from tracetool.reports.answer.text import compared_results, is_baseline, result_details, result_name
from tracetool.reports.answer.verdict import fit_of
from tracetool.units import format_bandwidth, format_duration, format_ranks, format_size

if TYPE_CHECKING:
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics
    from tracetool.whatif.results import Answer, Result


MOST_RANKS = 128
"""Ranks, and stages, that are listed one by one."""

Sortable = int | float | str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, what it is sorted by if not that, a remark below it, and how many columns it takes."""

    text: str
    sort: Sortable = None
    below: str = ""
    span: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the head that names it, its cells, and which kind of row it is (a class of the style sheet)."""

    head: Cell
    cells: tuple[Cell, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table.

    Attributes:
        caption: What it shows.
        columns: Heads of the columns, that of the rows' heads first.
        rows: Its rows.
        words: Whether cells are words, and read from the left.
        after: What is said below it.
        remarked: Whether only the last column is words.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    words: bool = False
    after: tuple[str, ...] = ()
    remarked: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """What is said about one schedule below the tables."""

    name: str
    lines: tuple[str, ...]


_COLUMNS = sorted(COLUMNS, key=attrgetter("place"))


def comparison(answer: Answer, best: Result) -> PageTable:
    """Every schedule: as observed, the baseline, the results, and those that could not be replayed."""
    observed = f"observed {answer.observed_schedule or 'order'}"
    rows = [
        Row(
            Cell(observed, below="as recorded, without the scenario"),
            tuple(_cells(answer, answer.observed_metrics, None)),
            "observed",
        ),
        *(_result_row(answer, result, best) for result in compared_results(answer)),
    ]
    shown = [i for i in range(len(_COLUMNS)) if any(row.cells[i].text for row in rows)]
    kept = [Row(row.head, tuple(row.cells[i] for i in shown), row.kind) for row in rows]
    for refused in answer.refused:
        why = Cell(f"not replayed: {refused.reason}", below=refused.hint or "", span=len(shown))
        kept.append(Row(Cell(refused.schedule), (why,), "refused"))
    columns = ("Schedule", *(_COLUMNS[i].title for i in shown))
    return PageTable("All schedules in this scenario", columns, tuple(kept))


def _result_row(answer: Answer, result: Result, best: Result) -> Row:
    cells = _cells(answer, result.metrics, result)
    is_best = result is best and result.feasible is not False
    kinds = ["best" * is_best, "baseline" * is_baseline(answer, result)]
    below = "best" if is_best else "lacks least" if result is best else ""
    return Row(Cell(result_name(result), below=below), tuple(cells), " ".join(filter(None, kinds)))


def _cells(answer: Answer, metrics: Metrics, result: Result | None) -> list[Cell]:
    """The cells of a result, in order of their columns; one that does not fit says below that by how much."""
    cells = []
    for column in _COLUMNS:
        text, sort = column.cell(answer, metrics, result)
        below = fit_of(answer, result) if column is FITS and result is not None and result.feasible is False else ""
        cells.append(Cell(text, sort, below))
    return cells


def details(answer: Answer) -> tuple[Details, ...]:
    """What each result rests on."""
    return tuple(Details(result_name(r), tuple(result_details(answer, r))) for r in compared_results(answer))


def fidelity(answer: Answer) -> PageTable:
    """Replay of the observed order beside what was observed."""
    check = answer.fidelity
    cells = (
        Cell(format_duration(check.observed_ns), check.observed_ns),
        Cell(format_duration(check.replayed_ns), check.replayed_ns),
        Cell(f"{check.error_ratio:+.2%}", check.error_ratio),
    )
    row = Row(Cell("pipeline window"), cells)
    return PageTable("The recorded order, replayed at its own costs", ("", "Observed", "Replayed", "Error"), (row,))


def stages(answer: Answer) -> PageTable:
    """Median costs of every stage, as measured."""
    kinds = (
        (ActionKind.FORWARD, "Forward"), (ActionKind.BACKWARD, "Backward"),
        (ActionKind.BACKWARD_INPUT, "Input gradient"), (ActionKind.BACKWARD_WEIGHT, "Weight gradient"),
    )  # fmt: skip
    pipeline = answer.pipeline
    rows = []
    for stage in pipeline.stages[:MOST_RANKS]:
        position = pipeline.observed.shape.rank_of(stage.stage)
        static = pipeline.ranks[position].static_bytes
        sizes = (stage.activation_bytes(), static, stage.forward_payload_bytes)
        cells = [_time(stage.median_ns(kind)) for kind, _ in kinds] + [_size(size) for size in sizes]
        cells.append(Cell(stage.evidence))
        rows.append(
            Row(Cell(f"stage {stage.stage} on rank {pipeline.ranks[position].rank}", stage.stage), tuple(cells))
        )
    names = (*(name for _, name in kinds), "Activation", "At rest", "Message on", "Known by")
    shown = [i for i in range(len(names)) if any(row.cells[i].text for row in rows)]
    return PageTable(
        f"What a microbatch takes on each stage (median, step {pipeline.step})",
        ("Stage", *(names[i] for i in shown)),
        tuple(Row(row.head, tuple(row.cells[i] for i in shown)) for row in rows),
        after=left_out(len(pipeline.stages), MOST_RANKS, "stages"),
        remarked=True,
    )


def left_out(count: int, most: int, what: str) -> tuple[str, ...]:
    """What is said below a table that lists only so many."""
    return (f"{count - most:,} more {what} are not listed.",) if count > most else ()


def _time(value: int | None) -> Cell:
    return Cell("") if value is None else Cell(format_duration(value), value)


def _size(value: int | None) -> Cell:
    return Cell("") if value is None else Cell(format_size(value), value)


def scenario(answer: Answer) -> PageTable:
    """What was asked: what differs from the measurement, and what is as measured."""
    what = answer.scenario
    rows = [
        ("Data centres", places(answer)),
        *((f"Link {k.src_dc}→{k.dst_dc}", _link(k.bandwidth_bytes_per_s, k.latency_ns)) for k in what.topology.links),
        ("HBM limit per rank", "none given" if what.hbm_bytes is None else _exact_size(what.hbm_bytes)),
        ("Transfers", what.p2p or f"as recorded ({answer.pipeline.p2p}), or as the schedule needs them"),
        ("Microbatches", str(what.microbatches or f"{answer.pipeline.observed.shape.microbatches}, as recorded")),
        *_unusual(what),
    ]
    return PageTable("The scenario", ("What", "Value"), tuple(Row(Cell(a), (Cell(b),)) for a, b in rows), words=True)


def _unusual(what: Scenario) -> list[tuple[str, str]]:
    rows = []
    if what.activation_bytes is not None and what.static_bytes is not None:
        rows.append(("Activation of a microbatch", _exact_size(what.activation_bytes)))
        rows.append(("At rest", _exact_size(what.static_bytes)))
    if what.pipelines_on_link > 1:
        rows.append(("Pipelines on the links", f"{what.pipelines_on_link}, {what.link_sharing} sharing"))
    if what.overlap_ratio != 1:
        rows.append(("Overlap ratio", f"{what.overlap_ratio:g}"))
    if not what.interference:
        rows.append(("Interference and sustained load", "left out"))
    return rows


def places(answer: Answer) -> str:
    """Which ranks sit in which DC."""
    ranks: dict[str, list[int]] = {}
    for dc, rank in zip(answer.scenario.topology.dcs, answer.observed.global_ranks, strict=False):
        ranks.setdefault(dc, []).append(rank)
    return "; ".join(f"{dc}: {format_ranks(members)}" for dc, members in ranks.items()) or "one: nothing was said"


def _link(bandwidth_bytes_per_s: int, latency_ns: int) -> str:
    return f"{format_bandwidth(bandwidth_bytes_per_s)}, {format_duration(latency_ns)} one way"


def _exact_size(value: int) -> str:
    return f"{format_size(value)} ({value:,} bytes)"
