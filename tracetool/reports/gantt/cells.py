"""The inside of a panel: cells by kind, microbatch numbers, and messages on cross-DC links.

Idle time in the schedule picture: one tint and one hatch per cause, so that either is enough to tell them apart.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from tracetool.causes.cause import Cause
from tracetool.model.action import ActionKind
from tracetool.model.timeline import Op
from tracetool.reports.gantt import MS, PLAIN
from tracetool.reports.picture import PT, is_dark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Transform

    from tracetool.causes.cause import Idle, Look
    from tracetool.model.timeline import RankOp, TailCollective, Transfer
    from tracetool.reports.gantt import Panel
    from tracetool.reports.gantt.layout import Layout, Place

BAR = 0.86
"""Share of a row that its cells fill."""

Box = tuple[float, float, float, float]
"""Left and right in ms, top and bottom in inches."""

RGB = tuple[float, float, float]

COLOURS = {
    ActionKind.FORWARD: "#0072B2",
    ActionKind.BACKWARD: "#E69F00",
    ActionKind.BACKWARD_INPUT: "#F7CF7F",
    ActionKind.BACKWARD_WEIGHT: "#009E73",
    ActionKind.RECOMPUTE: "#A9C4DE",
    ActionKind.REDUCE_GRAD: "#707070",
    ActionKind.OPTIMIZER: "#2E2E2E",
}
"""After Okabe and Ito, whose colours people with colour-blindness can tell apart."""

LINK_BUSY = "#CC79A7"
LINK_FLIGHT = "#F0D9E5"

MARK_PT = 1.3
"""Width of the outline of cells that stand out."""

LABEL_PX = 12
"""Cells narrower than this in the PNG get no number."""

_NUMBER_PT = (7.5, 6.5, 5.5, 4.6)
_DIGIT = 0.64
"""Width of a digit, in font sizes."""


def cell_count(panel: Panel) -> int:
    """Rectangles that a panel draws."""
    on_links = sum(t.link is not None for t in panel.timeline.transfers)
    on_links += sum(bool(one.links) for one in panel.timeline.collectives)
    return len(panel.timeline.ops) + len(panel.idles) + 2 * on_links


def chunks_of(panel: Panel) -> dict[int, int]:
    """Of each stage, which of its rank's stages it is."""
    stages: dict[int, set[int]] = defaultdict(set)
    for op in panel.timeline.computes():
        stages[op.rank].add(op.stage)
    return {stage: chunk for held in stages.values() for chunk, stage in enumerate(sorted(held))}


def shade(kind: ActionKind, chunk: int, chunks: int) -> RGB:
    """The colour of a kind on a later stage of the rank: darker, as lighter is what tells I from B."""
    from matplotlib.colors import to_rgb

    left = 1 - 0.4 * chunk / max(1, chunks - 1)
    red, green, blue = to_rgb(COLOURS[kind])
    return red * left, green * left, blue * left


def draw_cells(axes: Axes, panel: Panel, place: Place, layout: Layout) -> None:
    """The cells, then microbatch numbers where they fit."""
    chunks = chunks_of(panel)
    most = 1 + max(chunks.values(), default=0)
    digits = len(str(panel.microbatches - 1))
    for (kind, chunk), ops in sorted(_by_colour(panel.timeline.ops, chunks).items()):
        colour = shade(kind, chunk, most)
        width_pt = sorted(op.duration_ns for op in ops)[len(ops) // 4] * layout.pt_per_ns
        for rank, row_ops in _by_rank(ops):
            boxes = [row_box(place, rank, op.start_ns, op.end_ns) for op in row_ops]
            draw_boxes(axes, boxes, zorder=1, facecolor=colour, edgecolor="white", linewidth=_edge_pt(width_pt))
        size = _number_pt(width_pt, digits, place, layout)
        if size is not None:
            _numbers(
                axes, [op for op in ops if isinstance(op, Op)], place, size, "white" if is_dark(colour) else "black"
            )
    for mark in panel.marks:
        boxes = [row_box(place, op.rank, op.start_ns, op.end_ns) for op in mark.ops]
        outline = draw_boxes(axes, boxes, zorder=3.5, facecolor="none", edgecolor=mark.colour, linewidth=MARK_PT)
        outline.set_linestyle(mark.style)
    end = panel.metrics.window_ns / MS
    rows = [place.tops_in[0], place.tops_in[-1] + place.row_in]
    axes.plot([end, end], rows, color="black", linewidth=0.9, dashes=(4, 2), zorder=4)


def draw_links(axes: Axes, panel: Panel, place: Place, layout: Layout) -> None:
    """At each DC border the messages and collectives of its link, those to the later DC in the upper half.

    Of messages these are the activations, but for those that wrap round to a rank's next stage.
    """
    busy: list[Box] = []
    flight: list[Box] = []
    for transfer in panel.timeline.transfers:
        path = panel.topology.path(transfer.src_rank, transfer.dst_rank)
        if not path:
            continue
        border = _border(panel, transfer)
        gone = min(transfer.end_ns, transfer.start_ns + path.occupancy_ns(transfer.payload_bytes or 0))
        half = place.lane_in / 2
        pad = 0.08 * place.lane_in
        down = panel.topology.dcs[border] == panel.topology.dcs[transfer.src_rank]
        top = place.lanes_in[border] + (pad if down else half + pad / 2)
        bottom = top + half - 1.5 * pad
        busy.append((transfer.start_ns / MS, gone / MS, top, bottom))
        flight.append((gone / MS, transfer.end_ns / MS, top, bottom))
    rows = list(_collective_rows(panel, place))
    flight += [(one.left_ns / MS, one.end_ns / MS, top, bottom) for top, bottom, one in rows]
    # Norms of a few bytes are among them: they decide nothing of how messages look.
    summed = [(one.taken_ns / MS, one.left_ns / MS, top, bottom) for top, bottom, one in rows]
    draw_boxes(axes, summed, zorder=1, facecolor=LINK_BUSY, snap=False)
    draw_boxes(axes, flight, zorder=0.8, facecolor=LINK_FLIGHT)
    if busy:
        width_pt = min(end - start for start, end, *_ in busy) * MS * layout.pt_per_ns
        edge_pt = _edge_pt(width_pt)
        # Snapped, messages of less than a pixel would vanish.
        snap = edge_pt > 0
        draw_boxes(axes, busy, zorder=1, facecolor=LINK_BUSY, edgecolor="white", linewidth=edge_pt, snap=snap)


def _collective_rows(panel: Panel, place: Place) -> Iterator[tuple[float, float, TailCollective]]:
    """Upper and lower edge of each collective in the lanes of the links that it crosses, once for all of its ranks."""
    dcs, pad = panel.topology.dcs, 0.08 * place.lane_in
    crossing = [one for one in panel.timeline.collectives if one.links]
    for one in {(one.use.meeting or one.rank, one.end_ns): one for one in crossing}.values():
        for border, top in place.lanes_in.items():
            down, up = f"{dcs[border]}-{dcs[border + 1]}", f"{dcs[border + 1]}-{dcs[border]}"
            half = place.lane_in / 2
            if down in one.links:
                yield top + pad, top + half - pad / 2, one
            if up in one.links:
                yield top + half + pad / 2, top + 2 * half - pad, one


def _border(panel: Panel, transfer: Transfer) -> int:
    """The rank above the border where a message is drawn; one that wraps round has none of its own."""
    low, high = sorted((transfer.src_rank, transfer.dst_rank))
    if high - low == 1:
        return low
    dcs, borders = panel.topology.dcs, panel.topology.boundaries()
    shared = tuple(rank for rank in borders if {dcs[rank], dcs[rank + 1]} == {dcs[low], dcs[high]})
    return (shared or borders)[0]


def row_box(place: Place, rank: int, start_ns: int, end_ns: int) -> Box:
    """Where a time is in the row of a rank."""
    pad = place.row_in * (1 - BAR) / 2
    top = place.tops_in[rank]
    return start_ns / MS, end_ns / MS, top + pad, top + place.row_in - pad


def draw_boxes(
    axes: Axes,
    boxes: Sequence[Box],
    *,
    zorder: float,
    facecolor: str | RGB,
    edgecolor: str = "none",
    linewidth: float = 0,
    snap: bool = True,
    transform: Transform | None = None,
) -> PathPatch:
    """Many rectangles as one path: a third of the bytes in SVG that as many paths take.

    Without a transform left and right are times within the axes; with one they may be outside.

    Snapped to whole pixels, nothing shines through between two cells that touch, and pictures of many
    cells compress to a third.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [((x, t), (to, t), (to, b), (x, b), (x, t)) for x, to, t, b in boxes]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    drawn = PathPatch(
        Path([corner for box in corners for corner in box] or [(0, 0)], codes or None),
        zorder=zorder,
        facecolor=facecolor,
        edgecolor=edgecolor,
        linewidth=linewidth,
        snap=snap,
        transform=transform or axes.transData,
        clip_on=transform is None,
    )
    axes.add_artist(drawn)
    return drawn


def _edge_pt(width_pt: float) -> float:
    """An edge round a sliver would leave nothing of it."""
    return min(0.4, 0.06 * width_pt) if width_pt > 2 else 0


def _by_colour(ops: Iterable[Op | RankOp], chunks: dict[int, int]) -> dict[tuple[ActionKind, int], list[Op | RankOp]]:
    batches: dict[tuple[ActionKind, int], list[Op | RankOp]] = defaultdict(list)
    for op in ops:
        batches[op.kind, chunks[op.stage] if isinstance(op, Op) else 0].append(op)
    return batches


def _by_rank(ops: Sequence[Op | RankOp]) -> Iterator[tuple[int, Iterator[Op | RankOp]]]:
    return groupby(sorted(ops, key=lambda op: op.rank), key=lambda op: op.rank)


def _numbers(axes: Axes, ops: Iterable[Op], place: Place, size: float, colour: str) -> None:
    for op in ops:
        axes.text(
            (op.start_ns + op.end_ns) / 2 / MS,
            place.middle_in(op.rank),
            str(op.microbatch),
            fontsize=size,
            color=colour,
            ha="center",
            va="center_baseline",
            zorder=3,
        )


def _number_pt(width_pt: float, digits: int, place: Place, layout: Layout) -> float | None:
    """The largest font in which the numbers fit cells of one kind: either all get one, or none does."""
    if width_pt * layout.dpi / PT < LABEL_PX:
        return None
    highest = place.row_in * BAR * PT * 0.85
    sizes = (size for size in _NUMBER_PT if size <= highest and digits * _DIGIT * size + 0.4 <= width_pt)
    return next(sizes, None)


def draw_idle(axes: Axes, panel: Panel, place: Place) -> None:
    """The rows' idle time within the window: by cause, or plain where causes are not known."""
    rows = range(panel.ranks)
    if not panel.idles:
        _hatched(axes, PLAIN, [row_box(place, rank, 0, panel.metrics.window_ns) for rank in rows])
        return
    by_cause: dict[Cause, list[Idle]] = defaultdict(list)
    for idle in panel.idles:
        by_cause[idle.cause].append(idle)
    for cause in Cause:
        if cause in by_cause:
            spans = _joined(by_cause[cause])
            _hatched(axes, cause.look, [row_box(place, rank, start, end) for rank, start, end in spans])


def _hatched(axes: Axes, look: Look, boxes: Sequence[tuple[float, float, float, float]]) -> None:
    drawn = draw_boxes(axes, boxes, zorder=0.5, facecolor=look.tint, edgecolor=look.line)
    drawn.set_hatch(look.hatch)


def _joined(idles: Iterable[Idle]) -> list[tuple[int, int, int]]:
    """Rank, start and end of intervals, those that touch as one."""
    spans: list[tuple[int, int, int]] = []
    for idle in sorted(idles, key=lambda i: (i.rank, i.start_ns)):
        if spans and spans[-1][0] == idle.rank and spans[-1][2] == idle.start_ns:
            spans[-1] = (idle.rank, spans[-1][1], idle.end_ns)
        else:
            spans.append((idle.rank, idle.start_ns, idle.end_ns))
    return spans


def idle_marks(panels: Sequence[Panel]) -> list[Artist]:
    """Of the legend: the causes that occur, and plain idle time where a panel has none."""
    from matplotlib.patches import Patch

    causes = {idle.cause for panel in panels for idle in panel.idles}
    looks = [(f"idle: {cause.words.label}", cause.look) for cause in Cause if cause in causes]
    if any(not panel.idles for panel in panels):
        looks.append(("idle (bubble)", PLAIN))
    return [
        Patch(facecolor=look.tint, edgecolor=look.line, hatch=look.hatch, linewidth=0.4, label=name)
        for name, look in looks
    ]
