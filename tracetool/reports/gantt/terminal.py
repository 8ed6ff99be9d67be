"""The schedule picture as text: what was observed above what was replayed, on one scale, a row per pipeline rank.

A cell stands for an equal piece of time. It shows something that filled part of that piece, chosen so that the busy
cells of a row add up to its busy time: what a cell does not show is carried over to the next ones of its row.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracetool.causes.cause import ON_LINKS
from tracetool.model.action import ActionKind
from tracetool.model.timeline import measure
from tracetool.reports.answer.text import is_baseline, short_name
from tracetool.reports.gantt.picture import drawn_result
from tracetool.reports.lines import wrapped
from tracetool.units import DURATION_NS, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from tracetool.causes.cause import Idle
    from tracetool.model.timeline import Timeline
    from tracetool.whatif.results import Answer

LEAST_WIDTH = 40

_ROWS = 24
"""Rows of all timelines together, about a screen; ranks beyond are left out, and counted."""

_LEAST_ROWS = 4
_LEAST_CELLS = 10
_LONGEST_DC = 8


class Mark(NamedTuple):
    """How a cell looks."""

    glyph: str
    style: str
    meaning: str


FORWARD = Mark("█", "blue", "forward")
BACKWARD = Mark("▓", "yellow", "backward")
BACKWARD_INPUT = Mark("▒", "yellow", "input gradient")
BACKWARD_WEIGHT = Mark("░", "green", "weight gradient")
RECOMPUTE = Mark("▚", "cyan", "recompute")
TAIL = Mark("▂", "magenta", "gradients, optimizer")
IDLE = Mark("·", "bright_black", "idle")
IDLE_LINK = Mark("×", "red", "idle for a link between DCs")
AFTER = Mark(" ", "", "")

_BUSY = {
    ActionKind.FORWARD: FORWARD,
    ActionKind.BACKWARD: BACKWARD,
    ActionKind.BACKWARD_INPUT: BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
    ActionKind.RECOMPUTE: RECOMPUTE,
}
_BUSY_MARKS = frozenset({*_BUSY.values(), TAIL})
_ORDER = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, RECOMPUTE, TAIL, IDLE, IDLE_LINK, AFTER)

Span = tuple[int, int, Mark]
"""From and to in ns, and what filled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPanel:
    """One timeline, with its title and the DCs of its ranks."""

    name: str
    figures: str
    timeline: Timeline
    step_ns: int
    window_ns: int
    idles: Sequence[Idle]
    dcs: tuple[str, ...]


def render(answer: Answer, width: int, *, colour: bool) -> str:
    """Draw what was observed, the baseline, and the shortest result that fits the memory.

    Args:
        answer: What to draw.
        width: Columns to fill; fewer than 40 are taken as 40.
        colour: Whether kinds are told apart by colour as well.
    """
    from rich.console import Console

    lines = _lines(_panels(answer), max(width, LEAST_WIDTH))
    out = io.StringIO()
    console = Console(
        file=out, width=max(width, LEAST_WIDTH), force_terminal=colour, color_system="standard" if colour else None,
        no_color=not colour, highlight=False, legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, soft_wrap=True)
    return out.getvalue()


def _panels(answer: Answer) -> list[TextPanel]:
    known = f"recorded {answer.observed_schedule or ''}".rstrip()
    # Where ranks sit is the scenario's; it holds for what was observed as well, the links do not.
    dcs = answer.scenario.topology.dcs
    best = drawn_result(answer)
    replayed = [answer.baseline, *([] if is_baseline(answer, best) else [best])]
    return [
        panel_of(known, answer.observed, answer.observed_idles, dcs),
        *(panel_of(short_name(r), r.timeline, r.idles, dcs) for r in replayed),
    ]


def panel_of(name: str, timeline: Timeline, idles: Sequence[Idle], dcs: tuple[str, ...]) -> TextPanel:
    """A timeline with its figures."""
    metrics = measure(timeline)
    figures = f"step {format_duration(metrics.step_ns)}, bubble {metrics.bubble_ratio:.1%}"
    return TextPanel(
        name=name, figures=figures, timeline=timeline, step_ns=metrics.step_ns, window_ns=metrics.window_ns,
        idles=idles, dcs=dcs,
    )  # fmt: skip


def _lines(panels: Sequence[TextPanel], width: int) -> list[Text]:
    from rich.text import Text

    rows = max(_LEAST_ROWS, _ROWS // len(panels))
    margin = max(len(label) for panel in panels for label in _labels(panel, rows).values()) + 1
    cells = max(_LEAST_CELLS, width - margin - 1)
    longest = max(panel.step_ns for panel in panels)
    lines: list[Text] = []
    used: set[Mark] = set()
    for panel in panels:
        lines += [Text(part, style="bold") for part in _title(panel, width)]
        labels = _labels(panel, rows)
        filled = max(1, (2 * cells * panel.step_ns + longest) // (2 * longest))
        for rank, spans in enumerate(spans_of(panel)):
            if rank in labels:
                row = resample(spans, panel.step_ns, filled)
                used.update(row)
                runs = ((mark.glyph * len(list(same)), mark.style) for mark, same in groupby(row))
                lines.append(Text.assemble(f"{labels[rank]:>{margin}} ", *runs))
        left_out = len(panel.timeline.global_ranks) - len(labels)
        if left_out:
            lines.append(Text(f"{'…':>{margin}} {left_out} more rank{'s' if left_out > 1 else ''}"))
    lines += [Text(" " * (margin + 1) + line) for line in _axis(longest, cells)]
    return [*lines, *_legend(used, longest, cells, width)]


def _title(panel: TextPanel, width: int) -> list[str]:
    return wrapped([f"{panel.name}: {panel.figures}"], width)


def _labels(panel: TextPanel, rows: int) -> dict[int, str]:
    """Labels of the ranks that are shown; the first of each DC names it."""
    global_ranks, dcs = panel.timeline.global_ranks, panel.dcs
    digits = len(str(max(global_ranks)))
    names = [_short(dc) for dc in dcs] or [""] * len(global_ranks)
    labels, before = {}, ""
    for rank in _shown(len(global_ranks), dcs, rows):
        dc = "" if names[rank] == before else names[rank]
        labels[rank] = f"{dc:<{max(map(len, names))}} rank {global_ranks[rank]:>{digits}}".removeprefix(" ")
        before = names[rank]
    return labels


def _short(dc: str) -> str:
    return dc if len(dc) <= _LONGEST_DC else dc[: _LONGEST_DC - 1] + "…"


def _shown(ranks: int, dcs: tuple[str, ...], rows: int) -> list[int]:
    """As many ranks as rows: first and last, those on both sides of DC boundaries if they fit, and some between."""
    if ranks <= rows:
        return list(range(ranks))
    apart = [r for r in range(ranks - 1) if dcs and dcs[r] != dcs[r + 1]]
    wanted = {0, ranks - 1, *(side for r in apart for side in (r, r + 1))}
    if len(wanted) == 2 or len(wanted) > rows:
        return [i * (ranks - 1) // (rows - 1) for i in range(rows)]
    kept = sorted(wanted)
    while len(kept) < rows:
        gap, after = max((b - a, -b) for a, b in pairwise(kept))
        kept = sorted([*kept, -after - gap // 2])
    return kept


def spans_of(panel: TextPanel) -> list[list[Span]]:
    """Per rank, what fills the step without a gap."""
    filled: list[list[Span]] = [[] for _ in panel.timeline.global_ranks]
    for op in panel.timeline.ops:
        filled[op.rank].append((op.start_ns, op.end_ns, _BUSY.get(op.kind, TAIL)))
    for idle in panel.idles:
        if idle.cause in ON_LINKS:
            filled[idle.rank].append((idle.start_ns, idle.end_ns, IDLE_LINK))
    return [_without_gaps(sorted(spans, key=lambda span: span[:2]), panel) for spans in filled]


def _without_gaps(spans: Iterable[Span], panel: TextPanel) -> list[Span]:
    whole: list[Span] = []
    at = 0
    for start, end, mark in [*spans, (panel.step_ns, panel.step_ns, AFTER)]:
        if start > at:
            middle = min(max(at, panel.window_ns), start)
            whole += [gap for gap in ((at, middle, IDLE), (middle, start, AFTER)) if gap[0] < gap[1]]
            at = start
        if end > at:
            whole.append((max(start, at), end, mark))
            at = end
    return whole


def resample(spans: Sequence[Span], total_ns: int, cells: int) -> list[Mark]:
    """Divide a row into cells, each showing something that filled part of it.

    Whether a cell is busy is decided by the busy time so far that no cell has shown yet: at least half a cell of it
    makes a busy one. So busy cells and busy time of a row never differ by more than half a cell. Which of several
    busy (or idle) marks a cell shows is that of most time not yet shown.

    Args:
        spans: What fills the row from 0 to its end, in order and without gaps.
        total_ns: Length of the row.
        cells: Number of cells.
    """
    row: list[Mark] = []
    busy_owed = 0
    owed: Counter[Mark] = Counter()
    at = 0
    for cell in range(cells):
        # In units of 1/cells ns, so that the borders of cells are whole numbers.
        first, last = cell * total_ns, (cell + 1) * total_ns
        inside: Counter[Mark] = Counter()
        while True:
            start, end, mark = spans[at]
            inside[mark] += min(end * cells, last) - max(start * cells, first)
            if end * cells >= last:
                break
            at += 1
        busy_owed += sum(share for mark, share in inside.items() if mark in _BUSY_MARKS)
        is_busy = [mark in _BUSY_MARKS for mark, share in inside.items() if share]
        busy = all(is_busy) or (any(is_busy) and 2 * busy_owed >= total_ns)
        busy_owed -= total_ns if busy else 0
        owed.update(inside)
        candidates = [mark for mark in _ORDER if inside[mark] and (mark in _BUSY_MARKS) == busy]
        shown = max(candidates, key=lambda mark: owed[mark])
        owed[shown] -= total_ns
        row.append(shown)
    return row


def _axis(longest_ns: int, cells: int) -> list[str]:
    """A scale with round times at its ticks, and below it their names."""
    step_ns, unit, unit_ns = next(
        (step, unit, unit_ns)
        for step, unit, unit_ns in _round_times()
        if cells * step >= longest_ns * (len(f"{longest_ns // unit_ns} {unit}") + 2)
    )
    scale, names = ["─"] * cells, [" "] * cells
    for tick in range(0, longest_ns, step_ns):
        at = tick * cells // longest_ns
        text = f"{tick // unit_ns} {unit}" if tick else "0"
        scale[at] = "┴"
        if at + len(text) <= cells:
            names[at : at + len(text)] = text
    return ["".join(scale), "".join(names).rstrip()]


def _round_times() -> Iterable[tuple[int, str, int]]:
    """Round times, ever longer, each with the unit to write it in."""
    for unit, unit_ns in DURATION_NS.items():
        if unit.isascii():
            for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500):
                yield factor * unit_ns, unit, unit_ns
    for exponent in count(3):
        yield 10**exponent * DURATION_NS["s"], "s", DURATION_NS["s"]


def _legend(used: set[Mark], longest_ns: int, cells: int, width: int) -> list[Text]:
    from rich.text import Text

    known = [mark for mark in _ORDER if mark in used and mark.meaning]
    items = [Text.assemble((mark.glyph, mark.style), f" {mark.meaning}") for mark in known]
    lines: list[Text] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= width:
            lines[-1].append("  ").append_text(item)
        else:
            lines.append(Text("  ").append_text(item))
    rule = f"  a cell is {format_duration(longest_ns // cells)}; busy cells of a row add up to its busy time"
    return [*lines, *(Text(line) for line in wrapped([rule], width))]
