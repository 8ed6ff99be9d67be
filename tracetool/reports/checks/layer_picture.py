"""The picture of one layer: what the streams of a rank do in each way to overlap, and the tail that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracetool.overlap.answer import variant_of
from tracetool.overlap.program import Stream
from tracetool.overlap.streams import streams_of
from tracetool.reports.picture import GREY, PT, RED, SERIES, legend, legend_columns, save, wrapped
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.overlap.answer import LayerSide, OverlapAnswer
    from tracetool.overlap.streams import DrawnWork, WorkKind
    from tracetool.reports.picture import PictureFormat

_COLOURS: dict[WorkKind, str] = {"product": SERIES[0], "communication": SERIES[4], "other": "#B0B0B0"}
_LABELS: dict[WorkKind, str] = {
    "product": "matrix product, or a part of it",
    "communication": "collective, or a send and receive",
    "other": "copies, additions, barriers",
}
_TAIL = "tail: what is left when all products that began before are done"
_TITLES = {"ag": "all-gather, then product", "rs": "product, then reduce-scatter"}
_WIDTH_IN, _LANE_IN, _BETWEEN_IN, _LEFT_IN, _GAP_IN, _RIGHT_IN = 11.0, 0.17, 0.14, 1.25, 1.3, 0.15
_TOP_IN, _LINE_IN, _AXIS_IN, _LEGEND_IN = 0.36, 0.17, 0.5, 0.3
_HEIGHT = 0.82
"""Of a lane, what its boxes fill."""
_FONT = 7.5


def render_layer(done: OverlapAnswer, picture_format: PictureFormat) -> bytes:
    """Draw the sides of the first layer, every way that was tried one below the other.

    Args:
        done: The answer.
        picture_format: File format.

    Returns:
        The file; equal input gives equal bytes.
    """
    return save(lambda: layer_figure(done), picture_format)


def layer_figure(done: OverlapAnswer) -> Figure:
    """The picture of ``render_layer``, not yet written."""
    from matplotlib.figure import Figure

    first = done.sides[0].shape
    sides = [side for side in done.sides if side.shape == first]
    drawn = [_ways(side, done) for side in sides]
    lanes = sum(len(_streams(works)) for _, works in drawn[0])
    heads = wrapped(_heads(done, len(sides)), (_WIDTH_IN - 0.3) * PT, 8)
    axes_in = lanes * _LANE_IN + len(drawn[0]) * _BETWEEN_IN
    top_in = _TOP_IN + _LINE_IN * len(heads) + 0.3
    height = top_in + axes_in + _AXIS_IN + _LEGEND_IN
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=150)
    title = f"Streams of one rank in one call: {first.tokens} x {first.hidden} x {first.ffn_per_rank}"
    figure.text(0.15 / _WIDTH_IN, 1 - 0.1 / height, title, va="top", fontsize=10, weight="bold")
    for number, line in enumerate(heads):
        y = 1 - (_TOP_IN + _LINE_IN * number) / height
        figure.text(0.15 / _WIDTH_IN, y, line, va="top", fontsize=8, color=GREY)
    wide = (_WIDTH_IN - _LEFT_IN - _RIGHT_IN - _GAP_IN * (len(sides) - 1)) / len(sides)
    longest = max(work.end_ns for ways in drawn for _, works in ways for work in works)
    for number, (side, ways) in enumerate(zip(sides, drawn, strict=True)):
        left = _LEFT_IN + number * (wide + _GAP_IN)
        box = left / _WIDTH_IN, (_AXIS_IN + _LEGEND_IN) / height, wide / _WIDTH_IN, axes_in / height
        _draw(figure.add_axes(box), side, ways, longest)
    marks = _marks()
    abreast = legend_columns([str(mark.get_label()) for mark in marks], (_WIDTH_IN - 0.3) * PT)
    legend(figure, marks, abreast, x=0.5, y_in=0.08, loc="lower center")
    return figure


def _ways(side: LayerSide, done: OverlapAnswer) -> list[tuple[str, tuple[DrawnWork, ...]]]:
    """Each way, and what the streams do in it; bounds have no streams."""
    return [
        (way.way, streams_of(variant_of(way.way, side.side), side.shape, done.machine))
        for way in side.ways
        if not way.is_bound
    ]


def _streams(works: Sequence[DrawnWork]) -> list[Stream]:
    return [stream for stream in Stream if any(work.stream is stream for work in works)]


def _heads(done: OverlapAnswer, sides: int) -> list[str]:
    said = [f"{done.sides[0].ranks} ranks of {done.device}, links as recorded; the third of three calls in a row"]
    others = len(done.sides) - sides
    if others:
        said.append(f"{others} sides of other layers are not drawn: name their recordings alone")
    return said


def _draw(axes: Axes, side: LayerSide, ways: Sequence[tuple[str, tuple[DrawnWork, ...]]], longest: float) -> None:
    axes.set_title(_TITLES[side.side], fontsize=8.5, loc="left", pad=5)
    at = 0.0
    ticks: list[float] = []
    names: list[str] = []
    for way, works in ways:
        at += _BETWEEN_IN
        tail = sum(work.tail_ns for work in works)
        streams = _streams(works)
        for lane, stream in enumerate(streams):
            ticks.append(at + _LANE_IN / 2)
            names.append(f"{way}  {stream.value}" if not lane else stream.value)
            for work in works:
                if work.stream is stream:
                    _box(axes, work, at)
            at += _LANE_IN
        end = max(work.end_ns for work in works)
        label = f"{format_duration(round(end))}" + (f", tail {format_duration(round(tail))}" if tail >= 1 else "")
        axes.text(end / 1e3 + longest / 8e4, at - _LANE_IN * len(streams) / 2, label, fontsize=_FONT, va="center")
    axes.set_yticks(ticks, names)
    axes.set_ylim(at + _BETWEEN_IN / 2, 0)
    axes.set_xlim(0, longest / 1e3 * 1.45)
    axes.set_xlabel("time from the end of the call before (us)", fontsize=8.5)
    axes.tick_params(labelsize=_FONT, length=2, width=0.6)
    axes.tick_params(axis="y", length=0)
    for edge in ("right", "top", "left"):
        axes.spines[edge].set_visible(False)


def _box(axes: Axes, work: DrawnWork, at: float) -> None:
    from matplotlib.patches import Rectangle

    look: dict[str, Any] = {"height": _LANE_IN * _HEIGHT}
    y, wide = at + _LANE_IN * (1 - _HEIGHT) / 2, (work.end_ns - work.start_ns) / 1e3
    colour = _COLOURS[work.kind]
    axes.add_patch(
        Rectangle((work.start_ns / 1e3, y), wide, facecolor=colour, edgecolor="white", linewidth=0.5, zorder=2, **look)
    )
    if work.tail_ns >= 1:
        tail: dict[str, Any] = {"facecolor": "none", "edgecolor": RED, "hatch": "/////", "linewidth": 0, "zorder": 3}
        axes.add_patch(Rectangle(((work.end_ns - work.tail_ns) / 1e3, y), work.tail_ns / 1e3, **look, **tail))


def _marks() -> list[Artist]:
    from matplotlib.patches import Patch

    marks: list[Artist] = [Patch(facecolor=_COLOURS[kind], label=label) for kind, label in _LABELS.items()]
    return [*marks, Patch(facecolor=_COLOURS["communication"], edgecolor=RED, hatch="/////", linewidth=0, label=_TAIL)]
