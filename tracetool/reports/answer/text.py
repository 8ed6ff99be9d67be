"""The report for people: the answer in a table, what it rests on, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.schedule import OBSERVED
from tracetool.reports import Report, RunFacts
from tracetool.reports.answer import COLUMNS, NEEDS, result_cells
from tracetool.reports.lines import WIDTH, Note, table_width, terminal_width, wrapped
from tracetool.units import format_duration, format_size
from tracetool.whatif.best import recorded_test, rows_of
from tracetool.whatif.job import times_lines
from tracetool.whatif.wording import sharing_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.timeline import Metrics
    from tracetool.whatif.memory_limit import Shortage
    from tracetool.whatif.results import Answer, Result
    from tracetool.whatif.variation import Spread

_MOST_LISTED = 8
_LEAST_NAME = 12


def render(answer: Answer, facts: RunFacts, suffix: str = "") -> bytes:
    """The report as text: of 80 columns in a file, else as wide as the terminal."""
    warnings = [f"warning: {text}" for text in answer.warnings]
    width = WIDTH if suffix else terminal_width()
    lines = [*warnings, *([""] if warnings else []), *title(answer, facts), ""]
    lines += [*results_table(answer, width), "", *_details(answer)]
    lines += map(Note, answer.notes)
    return ("\n".join(wrapped(lines, width)) + "\n").encode()


REPORT = Report((".txt",), render)


def title(answer: Answer, facts: RunFacts) -> list[str]:
    """What was recorded, and what is asked about it."""
    shape = answer.pipeline.observed.shape
    topology, hbm = answer.scenario.topology, answer.scenario.hbm_bytes
    ranks = answer.observed.global_ranks
    stages = f"{shape.stages} stages" + (f" on {shape.ranks} ranks" if shape.chunks > 1 else "")
    if ranks != tuple(range(len(ranks))):
        stages += f" (ranks {', '.join(map(str, ranks))})"
    dcs = len(set(topology.dcs))
    several = "s" if dcs > 1 else ""
    places = f" in {dcs} DC{several}" if dcs else ""
    if topology.seating is not None:
        places = f" in {dcs} group{several} of tier {topology.seating.network.tiers[0].name}"
    nameless = "an order without a name" if answer.pipeline.observed.has_backwards else "forwards alone"
    order = answer.observed_schedule or nameless
    replayed = answer.baseline.microbatches
    lines = [
        facts.name,
        f"  step {answer.pipeline.step}: {order} on {stages}{places}, {shape.microbatches} microbatches, "
        f"{answer.pipeline.p2p} transfers",
        *([f"  replayed with {replayed} microbatches"] if replayed != shape.microbatches else []),
    ]
    lines += [f"  {line}" for line in topology.lines()]
    lines += [f"  {line}" for line in sharing_lines(answer.scenario)]
    if hbm is not None:
        lines.append(f"  HBM limit {format_size(hbm)} per rank")
    return lines


def results_table(answer: Answer, width: int) -> list[str]:
    """What was observed, and every result; columns that say nothing, or have no room, are left out."""
    rows = [
        ("", *(column.head for column in COLUMNS)),
        (f"recorded {answer.observed_schedule or ''}".rstrip(), *_texts(answer, answer.observed_metrics, None)),
    ]
    rows += [(result_name(r), *_texts(answer, r.metrics, r)) for r in compared_results(answer)]
    heads = [column.head for column in COLUMNS]
    rows += [
        (refused.schedule, *("not replayed" if head == "step" else "" for head in heads)) for refused in answer.refused
    ]
    idle = set() if answer.scenario.hbm_bytes is not None else {NEEDS.head}
    columns = {head: cells for head, *cells in zip(*rows, strict=True) if any(cells) and head not in idle}
    # Against a limit it is the need that counts.
    less = ("peak HBM", "transfers", "bubble") if NEEDS.head in columns else ("transfers", "peak HBM")
    kept = columns_with_room(columns, ["cross-DC"], (*less, NEEDS.head), width)
    dropped = [head for head in columns if head not in kept]
    return columns_table(kept, width) + ([f"  no room: {', '.join(dropped)}"] if dropped else [])


def columns_with_room(
    columns: Mapping[str, Sequence[str]], first: Sequence[str], then: Sequence[str], width: int
) -> Mapping[str, Sequence[str]]:
    """Cells by the head of their column, without those of which there is no room.

    Args:
        columns: The first is of names.
        first: Heads left out, in this order, while the rest is too wide.
        then: Heads left out while it is too wide with single blanks between columns, too.
        width: Columns there are.
    """
    kept = dict(columns)
    for head, gap in (*((head, 2) for head in first), *((head, 1) for head in then)):
        if 2 - gap + sum(gap + max(map(len, (name, *cells))) for name, cells in kept.items()) > width:
            kept.pop(head, None)
    return kept


def columns_table(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Columns by their heads as lines."""
    return table(list(zip(*((head, *cells) for head, cells in columns.items()), strict=True)), width)


def _texts(answer: Answer, metrics: Metrics, result: Result | None) -> list[str]:
    return [cell.text for cell in result_cells(answer, metrics, result)]


def compared_results(answer: Answer) -> list[Result]:
    """The baseline, and each result that is another one."""
    others = [result for result in answer.results if not is_baseline(answer, result)]
    return rows_of([answer.baseline, *others], answer.baseline.schedule, recorded_test(answer.pipeline))


def is_baseline(answer: Answer, result: Result) -> bool:
    """Whether a result is the schedule that the others are compared with, its transfers issued as there."""
    return result.schedule == answer.baseline.schedule and result.p2p == answer.baseline.p2p


def table(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Rows in columns, by default as wide as the terminal at most: a name that is too long has lines of its own.

    Args:
        rows: Cells; the first of each row is its name.
        width: Columns there are.
    """
    width = width or terminal_width()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = 2 if sum(2 + w for w in widths) <= width else 1
    room = max(_LEAST_NAME, width - 2 - sum(gap + w for w in widths[1:]))
    widths[0] = max((len(name) for name, *_ in rows if len(name) <= room), default=0)
    lines = []
    for name, *cells in rows:
        if len(name) > room:
            lines += [f"  {name[at : at + width - 2]}" for at in range(0, len(name), width - 2)]
        lines.append(aligned([name if len(name) <= room else "", *cells], widths, gap))
    return lines


Cells = dict[str, str]
"""Cells of a row by the head of their column; in a head of two lines the second follows a line break."""


def fitted_table(rows: Sequence[Cells], expendable: Sequence[str]) -> list[str]:
    """Columns without any cell are left out, and expendable ones, first to last, as long as the rest is too wide.

    What is too wide even so gets single blanks between columns, then its first cells in lines of their own.
    """
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    while True:
        top = [head.partition("\n") for head in heads]
        lines = [[part[0] for part in top], [part[2] for part in top], *([row[head] for head in heads] for row in rows)]
        lines = [line for number, line in enumerate(lines) if number != 1 or any(line)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        drop = next((head for head in expendable if head in heads), None)
        if sum(widths) + 2 * len(widths) <= table_width():
            return [aligned(line, widths) for line in lines]
        if drop is None:
            return _squeezed(lines, widths)
        heads.remove(drop)


def _squeezed(lines: Sequence[Sequence[str]], widths: list[int]) -> list[str]:
    if sum(widths) + len(widths) + 1 <= table_width():
        return [aligned(line, widths, 1) for line in lines]
    widths = [max(2, table_width() - sum(widths[1:]) - len(widths) - 1), *widths[1:]]
    parted = [[f"  {line[0]}", aligned(["", *line[1:]], widths, 1)] for line in lines]
    return [text.rstrip() for pair in parted for text in pair if text.strip()]


def aligned(row: Sequence[str], widths: Sequence[int], gap: int = 2) -> str:
    """Cells of a table's row: the first to the left, the others to the right, with so many blanks between."""
    (name, *cells), (room, *rooms) = row, widths
    numbers = [cell.rjust(width) for cell, width in zip(cells, rooms, strict=True)]
    return "  " + (" " * gap).join([name.ljust(room), *numbers]).rstrip()


def result_name(result: Result) -> str:
    """A result's schedule, with its extra forwards."""
    extra = result.extra_forwards
    if result.schedule == OBSERVED:
        return "recorded, replayed"
    return result.schedule + (f" +{','.join(map(str, extra))}" if extra is not None else "")


def short_name(result: Result) -> str:
    """The same, where a number per rank would be too long."""
    name, extra = result_name(result), result.extra_forwards
    return name if extra is None or len(extra) <= _MOST_LISTED else f"{result.schedule} up to +{max(extra)}"


def _details(answer: Answer) -> list[str]:
    lines = []
    base = answer.baseline
    if base.spread is not None and not any(is_baseline(answer, result) for result in answer.results):
        lines += [f"  {result_name(base)}: baseline, {base.p2p} transfers", f"    {_spread(base.spread)}", ""]
    for result in answer.results:
        first, *rest = result_details(answer, result)
        lines += [f"  {result_name(result)}: {first}", *(f"    {line}" for line in rest), ""]
    for refused in answer.refused:
        hint = f" ({refused.hint})" if refused.hint else ""
        lines += [f"  {refused.schedule}: not replayed: {refused.reason}{hint}", ""]
    check = answer.fidelity
    lines.append(
        f"  fidelity: the recorded order, replayed, takes a window of {format_duration(check.replayed_ns)} for the "
        f"recorded {format_duration(check.observed_ns)}{check.held_up} ({check.error_ratio:+.2%}; the model on its own "
        "recording)"
    )
    return lines


def shortage_lines(shortage: Shortage) -> list[str]:
    """Who lacks most, and who exceeds the limit first."""
    first = shortage.first
    running = f"with {first.op.text}" if first.op else "before its first action"
    return [
        f"does not fit: rank {shortage.global_rank} lacks {format_size(shortage.missing_bytes)} "
        f"({shortage.missing_bytes:,} bytes)",
        f"first exceeded on rank {shortage.global_ranks[first.rank]} after {format_duration(first.at_ns)}, {running}",
    ]


def result_details(answer: Answer, result: Result) -> list[str]:
    """What is said of a result below the table, its transfers and window first."""
    lines = [f"{result.p2p} transfers, window {format_duration(result.metrics.window_ns)}"]
    if result.extra_forwards is not None:
        lines.append(f"extra warm-up forwards per rank: {', '.join(f'+{n}' for n in result.extra_forwards)}")
    if result.slowest is not None:
        lines += times_lines(result.slowest)
    if result.spread is not None:
        lines.append(_spread(result.spread))
    if result.remark:
        lines.append(result.remark)
    if None not in result.metrics.peak_hbm_bytes:
        peaks = [format_size(p or 0) for p in result.metrics.peak_hbm_bytes]
        lines.append(f"peak HBM per rank: {', '.join(peaks)}")
    if any(size is not None for size in result.metrics.overhead_bytes) and _is_first_to_need(answer, result):
        beyond = ["?" if size is None else format_size(size) for size in result.metrics.overhead_bytes]
        lines.append(f"needed beyond it, as measured: {', '.join(beyond)}{_of_all(answer, result)}")
    if result.shortage is not None:
        lines += shortage_lines(result.shortage)
    if not is_baseline(answer, result):
        lines += _reductions(answer, result)
    return lines


def _is_first_to_need(answer: Answer, result: Result) -> bool:
    """Whether no result above needs as much beyond its peaks: it is the recording's, so mostly the same for all."""
    return next(r for r in answer.results if r.metrics.overhead_bytes == result.metrics.overhead_bytes) is result


def _of_all(answer: Answer, result: Result) -> str:
    alike = [r for r in answer.results if r.metrics.overhead_bytes == result.metrics.overhead_bytes]
    return " (the same for all results)" if len(alike) == len(answer.results) > 1 else ""


def _spread(spread: Spread) -> str:
    return (
        f"with costs drawn anew {spread.resamples} times: half the steps take up to "
        f"{format_duration(spread.p50_ns)}, 95 % up to {format_duration(spread.p95_ns)}"
    )


def _reductions(answer: Answer, result: Result) -> list[str]:
    """How much idle time is won back against the baseline, as mean time per rank."""
    base = answer.baseline
    compared = (
        ("bubble", base.metrics.bubble_ns, result.metrics.bubble_ns, answer.bubble_reduction(result)),
        (
            "cross-DC bubble",
            base.cross_dc_bubble_ns,
            result.cross_dc_bubble_ns,
            answer.cross_dc_bubble_reduction(result),
        ),
    )
    return [
        f"{what} {format_duration(before)} → {format_duration(after)} ({_compared(change)} {base.schedule})"
        for what, before, after, change in compared
        if change is not None
    ]


def _compared(reduction: float) -> str:
    if round(reduction, 3) == 0:
        return "as much as"
    return f"{abs(reduction):.1%} {'less' if reduction > 0 else 'more'} than"
