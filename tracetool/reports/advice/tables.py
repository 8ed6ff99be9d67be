"""Tables of advice: what more would buy, plans that were tried, sizes of microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.answer.text import aligned, columns_table, columns_with_room
from tracetool.reports.lines import terminal_width
from tracetool.units import format_duration, format_size
from tracetool.whatif.best import depth_label, error_text
from tracetool.whatif.memory_limit import is_near_the_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.advice.cotune import CoTuning
    from tracetool.advice.plans import Gain, Plan
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics

_FITS = {True: "yes", False: "NO", None: "unknown"}


def gains_table(gains: Sequence[Gain], best: Plan | None) -> list[str]:
    """Gains; of steps with other microbatches the time of as many as the best has."""
    now = None if best is None else best.result.microbatches
    rows: list[tuple[str, ...]] = []
    others: dict[int, None] = {}
    width = terminal_width()
    for gain in gains:
        plan = gain.plan
        many = plan.result.microbatches
        differs = now is not None and many != now
        others |= {many: None} if differs else {}
        rows.append(
            (
                gain.more.text,
                format_duration(plan.step_ns * (now or many) / many) + ("*" if differs else " "),
                f"{gain.gained_ns / 1e6:.1f} ms" if gain.gained_ns > 0 else "no gain",
                f"{gain.gain_ratio:.1%}" if gain.gained_ns > 0 else "",
                "" if best is not None and plan.label == best.label else plan.label,
            )
        )
    if not others:
        rows = [(name, step.rstrip(), *rest) for name, step, *rest in rows]
    heads = ("one more unit", "step", "gain", "of best", "with" if any(label for *_, label in rows) else "")
    columns = dict(zip(heads, zip(*rows, strict=True), strict=True))
    marks = [f"  *: of every {now} microbatches, with {' or '.join(map(str, others))} in a step"] if others else []
    return [*columns_table(columns_with_room(columns, (), ("of best",), width), width), *marks]


def plans_table(plans: Sequence[Plan], scenario: Scenario) -> list[str]:
    """Every plan that was tried, the shortest step first."""
    rows: list[tuple[str, ...]] = [("tried", "transfers", "step", "±", "needs", "fits", "rests on")]
    rows += [
        (
            plan.label,
            plan.result.p2p,
            format_duration(plan.step_ns),
            error_text(plan),
            "unknown" if plan.needed_bytes is None else format_size(plan.needed_bytes),
            _fits(plan.result.metrics, scenario, feasible=plan.result.feasible),
            plan.evidence,
        )
        for plan in sorted(plans, key=lambda p: p.step_ns)
    ]
    return _table(rows)


def _fits(metrics: Metrics, scenario: Scenario, *, feasible: bool | None) -> str:
    return "maybe" if feasible and is_near_the_limit(metrics, scenario) else _FITS[feasible]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [aligned(row, widths) for row in rows]


def sizes_table(tuning: CoTuning, scenario: Scenario, most: int, width: int) -> list[str]:
    """Sizes of a microbatch, the best first, the recorded ones among them; columns without room are left out."""
    limited = scenario.hbm_bytes is not None
    rows: list[tuple[str, ...]] = [("mbs × seq", "m", "depth", "step", "per token", "needs", "fits", "costs")]
    shown = tuning.candidates[:most]
    if tuning.measured not in shown:
        shown = (*shown[:-1], tuning.measured)
    for tried in shown:
        needed = [size for size in tried.metrics.needed_hbm_bytes if size is not None]
        rows.append(
            (
                f"{tried.batch.sequences} × {tried.batch.length}",
                str(tried.microbatches),
                depth_label(tried.extra_forwards),
                format_duration(tried.metrics.step_ns),
                format_duration(tried.metrics.step_ns / tuning.tokens),
                format_size(max(needed)) if len(needed) == len(tried.metrics.needed_hbm_bytes) else "unknown",
                _fits(tried.metrics, scenario, feasible=tried.feasible),
                "extrapolated" if tried.extrapolated else "measured",
            )
        )
    columns = [i for i in range(len(rows[0])) if limited or rows[0][i] != "fits"]
    for head in ("per token", "depth", "needs"):
        if sum(2 + max(len(row[i]) for row in rows) for i in columns) > width:
            columns = [i for i in columns if rows[0][i] != head]
    title = f"{tuning.schedule} at {tuning.tokens:,} tokens per step, h {tuning.hidden}: {_sizes_verdict(tuning)}"
    return [f"  {title}", "", *_table([tuple(row[i] for i in columns) for row in rows])]


def _sizes_verdict(tuning: CoTuning) -> str:
    best, measured = tuning.candidates[0], tuning.measured
    if best.feasible is False:
        return "no sizes fit"
    if best is measured:
        return "the recorded sizes are best"
    sizes = f"mbs {best.batch.sequences}, seq {best.batch.length}"
    error = tuning.error_ratio
    sure = "extrapolated, error unknown" if error is None else f"extrapolated, ±{error:.0%}"
    if measured.feasible is False:
        return f"{sizes} is best of those that fit ({sure})"
    change = best.metrics.step_ns / measured.metrics.step_ns - 1
    if error is not None and abs(change) <= error:
        return f"{sizes} would be {change:+.1%}, within the error ({sure}): the recorded sizes are as good"
    return f"{sizes} is best: {change:+.1%} against the recorded sizes ({sure})"
