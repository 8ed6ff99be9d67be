"""The schedule picture: observed, baseline and result on one time axis, rows are pipeline ranks.

matplotlib is imported where it draws, so that importing this module stays cheap.
"""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from tracetool.reports import Report, RunFacts
from tracetool.reports.gantt_layout import MS, Panel, lay_out
from tracetool.units import format_bandwidth, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from matplotlib.figure import Figure

    from tracetool.metrics import Metrics
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.timeline import Timeline
    from tracetool.whatif import Answer, Result

PictureFormat = Literal["png", "svg", "pdf"]

RASTER_ABOVE = 4_000
"""Cells from which SVG and PDF hold them as pixels: as paths they would take megabytes and seconds."""

_LONG = 40
"""Letters of a schedule's name that are shown: the path of a file may be longer than a title."""

_METADATA: dict[PictureFormat, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
_STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "tracetool",
    "text.parse_math": False,
}
"""Text stays text (searchable, editable in a paper, a $ in a name no formula); the salt keeps ids in SVG the same."""


def render_gantt(answer: Answer, result: Result | None = None, *, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """Draw one result below what was observed and what it is compared with.

    Args:
        answer: What to draw.
        result: The result to draw; by default the one of shortest step among those that fit the memory.
        format: File format.

    Returns:
        The file; equal input gives equal bytes.
    """
    from matplotlib.style import context

    panels = _panels(answer, result or shortest(answer))
    out = io.BytesIO()
    # The user's own matplotlibrc must not change the picture.
    with context(["default", _STYLE]):
        figure = _figure(panels, _scenario_line(answer))
        figure.savefig(out, format=format, metadata=_METADATA[format])
    return out.getvalue()


def _report(answer: Answer, _facts: RunFacts, suffix: str) -> bytes:
    formats: dict[str, PictureFormat] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
    return render_gantt(answer, format=formats[suffix.lower()])


def shortest(answer: Answer) -> Result:
    """The result of shortest step, those that do not fit the memory last."""
    return min(answer.results, key=lambda r: (r.feasible is False, r.metrics.step_ns))


REPORT = Report((".png", ".svg", ".pdf"), _report)


def _panels(answer: Answer, result: Result) -> list[Panel]:
    base = answer.baseline
    known = answer.observed_schedule or "unknown schedule"
    without = ["measured without these links"] if answer.scenario.topology.links else []
    observed = _panel(
        f"Observed: {known}", answer.observed, answer.observed_metrics, answer.pipeline.p2p, after=without
    )
    if result.timeline.ops == base.timeline.ops:
        role = "Baseline" if result.schedule == base.schedule else f"Same as the {base.schedule} baseline"
        return [observed, _replayed(answer, result, role)]
    shown = replace(
        _replayed(answer, result, "Result"), compared_ns=base.metrics.step_ns, error_ratio=result.seen_error_ratio
    )
    return [observed, _replayed(answer, base, "Baseline"), shown]


def _replayed(answer: Answer, result: Result, role: str) -> Panel:
    hbm = answer.scenario.hbm_bytes
    schedule = "observed order" if result.schedule == "observed" else result.schedule
    if len(schedule) > _LONG:
        schedule = "…" + schedule[-_LONG:]
    extra = [] if result.extra_forwards is None else [_extra_text(result.extra_forwards)]
    return replace(
        _panel(
            f"{role}: {schedule}",
            result.timeline,
            result.metrics,
            result.p2p,
            before=extra,
            error="" if result.seen_error_ratio is None else f" ±{result.seen_error_ratio:.0%}",
        ),
        topology=answer.scenario.topology,
        complaint=_complaint(result, hbm),
        fits=result.feasible is not False,
        hbm_bytes=hbm,
    )


def _panel(
    name: str,
    timeline: Timeline,
    metrics: Metrics,
    p2p: P2PMode,
    *,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    error: str = "",
) -> Panel:
    microbatches = 1 + max(op.microbatch for op in timeline.ops)
    details = (
        *before,
        f"p = {len(timeline.global_ranks)}, m = {microbatches}",
        f"{p2p} p2p",
        f"step {format_duration(metrics.step_ns)}{error}",
        f"bubble_ratio {metrics.bubble_ratio:.1%}",
        *after,
    )
    return Panel(name, "  ·  ".join(details), timeline, metrics, microbatches)


def _complaint(result: Result, hbm_bytes: int | None) -> str | None:
    if result.feasible is None:
        return "HBM limit not checked: memory is unknown"
    if result.feasible:
        return None
    text = "Does not fit the HBM limit" + (f" of {format_size(hbm_bytes)}" if hbm_bytes is not None else "")
    if result.shortage is not None:
        rank = result.timeline.global_ranks[result.shortage.rank]
        text += f": rank {rank} lacks {format_size(result.shortage.missing_bytes)}"
    return text


def _extra_text(extra: tuple[int, ...]) -> str:
    """Extra forwards by runs of ranks, as 64 numbers would fill the title."""
    if not any(extra):
        return "no extra forwards"
    runs = [(value, list(ranks)) for value, ranks in groupby(range(len(extra)), key=lambda rank: extra[rank])]
    (value, ranks), *others = [run for run in runs if run[0]]
    if len(others) > 1:
        return f"up to +{max(extra)} forwards"
    first = f"+{value} forward{'s' if value > 1 else ''} on {_span(ranks[0], ranks[-1])}"
    return ", ".join([first, *(f"+{n} on {_span(more[0], more[-1])}" for n, more in others)])


def _span(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}–{last}"


def _scenario_line(answer: Answer) -> str | None:
    links = answer.scenario.topology.links
    pairs = {(k.src_dc, k.dst_dc): k for k in links}
    texts = []
    for link in links:
        back = pairs.get((link.dst_dc, link.src_dc))
        same = back is not None and (back.bandwidth_bytes_per_s, back.latency_ns) == (
            link.bandwidth_bytes_per_s,
            link.latency_ns,
        )
        if same and link.src_dc > link.dst_dc:
            continue
        speed = f"{format_bandwidth(link.bandwidth_bytes_per_s)}, {format_duration(link.latency_ns)}"
        texts.append(f"{link.src_dc}{'↔' if same else '→'}{link.dst_dc} {speed}")
    if len(texts) > 2:
        texts[2:] = [f"{len(texts) - 2} more link{'s' if len(texts) > 3 else ''}"]
    if answer.scenario.hbm_bytes is not None:
        texts.append(f"HBM limit {format_size(answer.scenario.hbm_bytes)} per rank")
    return "Scenario: " + "  ·  ".join(texts) if texts else None


def _figure(panels: list[Panel], scenario: str | None) -> Figure:
    from matplotlib.figure import Figure

    from tracetool.reports import gantt_cells as cells
    from tracetool.reports import gantt_margins as margins

    marks = margins.legend_marks(panels)
    legend_rows = 1 if len(marks) <= 6 else 2
    layout = lay_out(panels, scenario=scenario is not None, legend_rows=legend_rows)
    figure = Figure(figsize=(layout.width_in, layout.height_in), dpi=layout.dpi)
    if scenario is not None:
        figure.text(layout.left_in / layout.width_in, 1 - 0.1 / layout.height_in, scenario, va="top")
    coarse = sum(cells.cell_count(panel) for panel in panels) > RASTER_ABOVE
    for panel, place in zip(panels, layout.places, strict=True):
        axes = figure.add_axes(layout.box(place))
        axes.set_xlim(0, layout.end_ns / MS)
        axes.set_ylim(place.height_in, 0)
        axes.set_rasterization_zorder(2 if coarse else None)
        margins.draw_axis(axes, last=panel is panels[-1])
        cells.draw_cells(axes, panel, place, layout)
        cells.draw_links(axes, panel, place, layout)
        margins.draw_margins(axes, panel, place, layout)
        margins.draw_title(axes, panel)
        margins.draw_saved(axes, panel, place, layout)
    margins.draw_legend(figure, marks, legend_rows, layout)
    return figure
