"""The report for people: the answer in a table, what it rests on, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports import Report, RunFacts
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.metrics import Metrics
    from tracetool.whatif import Answer, Result

_HEAD = ("", "step time", "Δ", "bubble", "cross-DC bubble", "peak HBM", "fits")


def render(answer: Answer, facts: RunFacts, _suffix: str = "") -> bytes:
    """The report as text of at most 100 columns."""
    lines = [*_title(answer, facts), "", *_table(answer), "", *_details(answer)]
    lines += [f"note: {note}" for note in answer.notes]
    return ("\n".join(_wrapped(lines)) + "\n").encode()


REPORT = Report((".txt",), render)


def _title(answer: Answer, facts: RunFacts) -> list[str]:
    shape = answer.pipeline.observed.shape
    topology, hbm = answer.scenario.topology, answer.scenario.hbm_bytes
    stages = f"{shape.stages} stages" + (f" on {shape.ranks} ranks" if shape.chunks > 1 else "")
    dcs = len(set(topology.dcs))
    places = f" in {dcs} DC{'s' if dcs > 1 else ''}" if dcs else ""
    order = answer.observed_schedule or "an unknown schedule"
    lines = [
        f"{facts.name}: step {answer.pipeline.step}, {order} on {stages}{places}, "
        f"{shape.microbatches} microbatches, {answer.pipeline.p2p} transfers"
    ]
    lines += [f"  link {link}" for link in topology.links]
    if hbm is not None:
        lines.append(f"  HBM limit {format_size(hbm)} per rank")
    return lines


def _table(answer: Answer) -> list[str]:
    base = answer.baseline
    rows = [
        _HEAD,
        (f"observed {answer.observed_schedule or ''}", *_cells(answer, answer.observed_metrics, None, base)),
    ]
    shown = [base, *(r for r in answer.results if r.schedule != base.schedule or r.p2p != base.p2p)]
    rows += [(_name(r), *_cells(answer, r.metrics, r, base)) for r in shown]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [_aligned(row, widths) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """The first cell to the left, the others to the right."""
    numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  " + "  ".join([row[0].ljust(widths[0]), *numbers]).rstrip()


def _cells(answer: Answer, metrics: Metrics, result: Result | None, base: Result) -> tuple[str, ...]:
    peaks = [p for p in metrics.peak_hbm_bytes if p is not None]
    peak = format_size(max(peaks)) if len(peaks) == len(metrics.peak_hbm_bytes) else "unknown"
    if result is None:
        return (format_duration(metrics.step_ns), "", f"{metrics.bubble_ratio:.1%}", "", peak, "")
    change = metrics.step_ns / base.metrics.step_ns - 1
    limited = answer.scenario.hbm_bytes is not None
    fits = {True: "yes" if limited else "no limit", False: "NO", None: "unknown"}[result.feasible]
    return (
        format_duration(metrics.step_ns),
        "baseline" if result is base else f"{change:+.1%}",
        f"{metrics.bubble_ratio:.1%}",
        format_duration(result.cross_dc_bubble_ns) if answer.scenario.topology.dcs else "",
        peak,
        fits,
    )


def _name(result: Result) -> str:
    extra = result.extra_forwards
    return result.schedule + (f" +{','.join(map(str, extra))}" if extra is not None else "")


def _details(answer: Answer) -> list[str]:
    lines = []
    for result in answer.results:
        name = _name(result)
        if result is not answer.results[0]:
            lines.append("")
        lines.append(f"  {name}: {result.p2p} transfers, window {format_duration(result.metrics.window_ns)}")
        if result.extra_forwards is not None:
            lines.append(f"    extra warm-up forwards per rank: {_per_rank(result.extra_forwards)}")
        if result.remark:
            lines.append(f"    {result.remark}")
        if None not in result.metrics.peak_hbm_bytes:
            peaks = [format_size(p or 0) for p in result.metrics.peak_hbm_bytes]
            lines.append(f"    peak HBM per rank: {', '.join(peaks)}")
        if result.shortage is not None:
            short = result.shortage
            lines.append(
                f"    does not fit: rank {short.rank} lacks {format_size(short.missing_bytes)} "
                f"({short.missing_bytes:,} bytes)"
            )
        if result.schedule != answer.baseline.schedule or result.p2p != answer.baseline.p2p:
            lines.append(f"    {_reductions(answer, result)}")
    check = answer.fidelity
    lines.append("")
    lines.append(
        f"  check: replaying the observed order gives {format_duration(check.replayed_ns)} for the observed "
        f"window of {format_duration(check.observed_ns)} ({check.error_ratio:+.2%})"
    )
    return lines


def _reductions(answer: Answer, result: Result) -> str:
    base = answer.baseline.schedule
    parts = []
    for what, value in (
        ("bubble", answer.bubble_reduction(result)),
        ("cross-DC bubble", answer.cross_dc_bubble_reduction(result)),
    ):
        if value is not None:
            parts.append(f"{what} {abs(value):.1%} {'less' if value >= 0 else 'more'}")
    return f"against {base}: " + ", ".join(parts) if parts else f"against {base}: no bubble to reduce"


def _per_rank(values: Sequence[int]) -> str:
    return ", ".join(f"+{v}" for v in values)


def _wrapped(lines: Sequence[str], width: int = 100) -> list[str]:
    import textwrap

    wrapped: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + (6 if line.startswith("note:") else 2))
        wrapped += textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True) or [""]
    return wrapped
