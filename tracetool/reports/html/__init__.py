"""The report as one HTML file, and its tables: texts for people, each with the value that it is sorted by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from tracetool.model.action import ActionKind
from tracetool.model.schedule import OBSERVED
from tracetool.reports.advice import sentences
from tracetool.reports.answer import COLUMNS, FITS
from tracetool.reports.answer.text import compared_results, is_baseline, result_details, result_name
from tracetool.reports.answer.verdict import fit_of
from tracetool.reports.picture import SERIES
from tracetool.units import format_bandwidth, format_bits, format_duration, format_ranks, format_size
from tracetool.whatif.best import error_text, plan_name
from tracetool.whatif.decision import Decision
from tracetool.whatif.wording import links_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics
    from tracetool.model.topology import Topology
    from tracetool.sweeps import Best, Grid, Sweep
    from tracetool.whatif.results import Answer, Result

_Value = TypeVar("_Value")

MOST_RANKS = 128
"""Ranks, and stages, that are listed one by one."""

Sortable = int | float | str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, what it is sorted by if not that, a remark below it, columns it takes, and its data."""

    text: str
    sort: Sortable = None
    below: str = ""
    span: int = 1
    data: tuple[tuple[str, Sortable], ...] = ()


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


@dataclass(frozen=True, slots=True)
class Slider:
    """What a reader moves: its name, what it is called, its values for people, and which one is asked about."""

    name: str
    label: str
    values: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What other links and limits would give, replayed beforehand.

    Attributes:
        sliders: Bandwidth, latency and memory limit.
        tables: One per memory limit: latencies down, bandwidths across; each cell has what the panel shows of it.
        sentence: What is said of the offer that is asked about.
        about: Which links, where others stay as they are; empty for all.
        marks: Schedules that are best somewhere, each with its colour.
        now: What the dashed line is of.
        today: The recorded step, as text and in ms.
        ticks_ms: Of the axis of steps.
    """

    sliders: tuple[Slider, Slider, Slider]
    tables: tuple[PageTable, ...]
    sentence: str
    about: str
    marks: tuple[tuple[str, str], ...]
    now: str
    today: Cell
    ticks_ms: tuple[int, ...]


_COLUMNS = sorted(COLUMNS, key=attrgetter("place"))


def comparison(answer: Answer, best: Result) -> PageTable:
    """Every schedule: as recorded, the baseline, the results, and those that could not be replayed."""
    order = answer.observed_schedule or "an order without a name"
    rows = [
        Row(
            Cell("as recorded", below=f"{order}, without the scenario"),
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
    """What each result rests on; what several rest on stands once, below their names."""
    results = compared_results(answer)
    by_line: dict[str, list[int]] = {}
    for at, result in enumerate(results):
        for line in result_details(answer, result):
            by_line.setdefault(line, []).append(at)
    cards: dict[tuple[int, ...], list[str]] = {(at,): [] for at in range(len(results))}
    for line, places in by_line.items():
        cards.setdefault(tuple(places), []).append(line)
    names = [result_name(result) for result in results]
    return tuple(
        Details("all" if len(places) == len(results) > 1 else ", ".join(names[at] for at in places), tuple(lines))
        for places, lines in cards.items()
        if lines
    )


def what_if(swept: Sweep, grid: Grid, asked: Scenario) -> WhatIf | None:
    """The panel of what other links and limits would give: every number and sentence of it; None without a recording.

    Args:
        swept: The sweep.
        grid: What was swept (``grid_around``).
        asked: The scenario that it opens with.
    """
    if swept.today is None:
        return None
    links = [link for link in asked.topology.links if (link.src_dc, link.dst_dc) in grid.between]
    sliders = (
        _slider("bandwidth", "Bandwidth", grid.bandwidths_bytes_per_s, format_bits, links[0].bandwidth_bytes_per_s),
        _slider("latency", "Latency, one way", grid.latencies_ns, _latency_text, links[0].latency_ns),
        _slider("limit", "HBM limit per rank", grid.hbm_bytes, _limit_text, asked.hbm_bytes),
    )
    names = dict.fromkeys(each.point.schedule for each in swept.best if each.point is not None)
    # The last colour is black, which a dark page does not show.
    marks = {name: SERIES[number % (len(SERIES) - 1)] for number, name in enumerate(names)}
    cells: dict[tuple[int, int, int], Cell] = {}
    for best in swept.best:
        bandwidth, latency_ns = best.among.bandwidth_bytes_per_s or 0, best.among.latency_ns or 0
        at = (
            grid.bandwidths_bytes_per_s.index(bandwidth),
            grid.latencies_ns.index(latency_ns),
            grid.hbm_bytes.index(best.among.hbm_bytes),
        )
        laid = [
            replace(link, bandwidth_bytes_per_s=bandwidth, latency_ns=latency_ns) if link in links else link
            for link in asked.topology.links
        ]
        offer = replace(best.offer(links_text(laid)), is_lower_bound=asked.activation_bytes is not None)
        sentence = sentences(Decision(today=swept.today, offers=(offer,)))[0]
        cells[at] = _what_if_cell(best, at, sentence, marks)
    first = sliders[0].at, sliders[1].at, sliders[2].at
    steps = [point.step_ns or 0 for each in swept.best for point in (each.point, each.now) if point is not None]
    now = next((each.now.schedule for each in swept.best if each.now is not None), "")
    pairs = dict.fromkeys("-".join(sorted(pair)) for pair in grid.between)
    return WhatIf(
        sliders=sliders,
        tables=tuple(_what_if_table(sliders, cells, number) for number in range(len(grid.hbm_bytes))),
        sentence=str(dict(cells[first].data)["told"]),
        about="" if len(links) == len(asked.topology.links) else ", ".join(pairs),
        marks=tuple(marks.items()),
        now="the recorded order" if now == OBSERVED else now,
        today=Cell(format_duration(swept.today.step_ns), swept.today.step_ns / 1e6),
        ticks_ms=_ticks(max(*steps, swept.today.step_ns) / 1e6),
    )


def _what_if_table(sliders: Sequence[Slider], cells: Mapping[tuple[int, int, int], Cell], limit: int) -> PageTable:
    bandwidths, latencies, limits = (slider.values for slider in sliders)
    rows = tuple(
        Row(Cell(text, row), tuple(cells[column, row, limit] for column in range(len(bandwidths))))
        for row, text in enumerate(latencies)
    )
    return PageTable(f"What to run and its step, HBM limit: {limits[limit]}", ("Latency", *bandwidths), rows)


def _slider(name: str, label: str, values: Sequence[_Value], text: Callable[[_Value], str], at: _Value) -> Slider:
    return Slider(name, label, tuple(map(text, values)), values.index(at))


def _latency_text(latency_ns: int) -> str:
    return f"{latency_ns / 1e6:g} ms"


def _limit_text(size: int | None) -> str:
    return "no limit" if size is None else format_size(size)


def _what_if_cell(best: Best, at: tuple[int, int, int], sentence: str, marks: Mapping[str, str]) -> Cell:
    data: list[tuple[str, Sortable]] = [("at", ",".join(map(str, at))), ("told", sentence)]
    if best.now is not None and best.now.step_ns:
        data.append(("now", best.now.step_ns / 1e6))
    point = best.point
    if point is None or point.step_ns is None:
        return Cell("nothing fits", data=tuple(data))
    data += [("step", point.step_ns / 1e6), ("colour", marks[point.schedule]), ("run", plan_name(point))]
    error = f" ±{text}" if (text := error_text(point)) else ""
    return Cell(plan_name(point), point.step_ns, f"{format_duration(point.step_ns)}{error}", data=tuple(data))


def _ticks(most: float) -> tuple[int, ...]:
    """Round numbers from 0 on, at most eleven, the last one at or above the most."""
    size = next(n * 10**e for e in range(12) for n in (1, 2, 5) if n * 10**e * 10 >= most)
    return tuple(n * size for n in range(1 + max(1, ceil(most / size))))


def fidelity(answer: Answer) -> PageTable:
    """Replay of the observed order beside what was observed."""
    check = answer.fidelity
    cells = (
        Cell(format_duration(check.observed_ns), check.observed_ns),
        Cell(format_duration(check.replayed_ns), check.replayed_ns),
        Cell(f"{check.error_ratio:+.2%}", check.error_ratio),
    )
    row = Row(Cell("pipeline window"), cells)
    return PageTable("The recorded order, replayed at its own costs", ("", "As recorded", "Replayed", "Error"), (row,))


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
        *_between(what.topology),
        ("HBM limit per rank", "none given" if what.hbm_bytes is None else _exact_size(what.hbm_bytes)),
        ("Transfers", what.p2p or f"as recorded ({answer.pipeline.p2p}), or as the schedule needs them"),
        ("Microbatches", str(what.microbatches or f"{answer.pipeline.observed.shape.microbatches}, as recorded")),
        *_unusual(what),
    ]
    return PageTable("The scenario", ("What", "Value"), tuple(Row(Cell(a), (Cell(b),)) for a, b in rows), words=True)


def _between(topology: Topology) -> list[tuple[str, str]]:
    """What lies between places."""
    if topology.seating is None:
        return [(f"Link {k.src_dc}→{k.dst_dc}", _link(k.bandwidth_bytes_per_s, k.latency_ns)) for k in topology.links]
    network = topology.seating.network
    return [("Network", network.name), *((f"Tier {tier.name}", tier.text) for tier in network.tiers)]


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
