"""An exploration to look at: the front, what each choice reaches, bytes over tiers; and the timelines of both plans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tracetool.explore.crossing import tier_bytes
from tracetool.explore.recorded import RecordedExploration
from tracetool.explore.recorded import tier_bytes as recorded_tier_bytes
from tracetool.explore.recorded_search import replayed_plan as replayed_recorded
from tracetool.explore.timeline import replayed_plan
from tracetool.model.timeline import measure
from tracetool.reports.gantt import Panel
from tracetool.reports.gantt.picture import panels_figure
from tracetool.reports.picture import GREY, SERIES, save
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.explore.answer import Exploration
    from tracetool.explore.judge import Judged
    from tracetool.explore.recorded_search import RecordedPlan
    from tracetool.reports.picture import PictureFormat


class _Bar(NamedTuple):
    """A way to choose, and the step that it reaches."""

    name: str
    step_ns: int
    is_best: bool = False


class _Moved(NamedTuple):
    """What a plan moves over each tier."""

    label: str
    tier_bytes: Sequence[int]
    colour: str


_Dot = tuple[int, int]
"""Bytes of memory, and the step in ns."""


def overview_picture(done: Exploration | RecordedExploration, picture_format: PictureFormat) -> bytes:
    """The picture of ``overview_figure``, as a file."""
    return save(partial(overview_figure, done), picture_format)


def overview_figure(done: Exploration | RecordedExploration) -> Figure:
    """Step against memory of all plans that were replayed, choices alone and together, and bytes over each tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    front, choices, tiers = figure.subplots(1, 3)
    draw = _draw_recorded if isinstance(done, RecordedExploration) else _draw
    figure.suptitle(draw(done, front, choices, tiers))  # type: ignore[arg-type]
    for axes in (front, choices, tiers):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw(done: Exploration, front: Axes, choices: Axes, tiers: Axes) -> str:
    workload, base, best = done.space.workload, done.base, done.best
    every, ahead, declared = (
        [(one.peak_hbm_bytes, one.step_ns) for one in plans]
        for plans in (done.results.judged, done.front, [base] if base.runs else [])
    )
    _draw_front(front, every, ahead, declared, "declared", workload.hbm_bytes)
    rows = [(one.name, one.judged) for one in (*done.alone, done.one_by_one, *done.baselines)]
    bars = [_Bar(name, judged.step_ns) for name, judged in rows if judged is not None and judged.runs]
    bars += [] if best is None else [_Bar("all together", best.step_ns, is_best=True)]
    _draw_choices(choices, bars, base.step_ns if base.runs else None, "declared")
    shown = [("declared", base, SERIES[1])] if base.runs else []
    shown += [] if best is None else [("best", best, SERIES[2])]
    moved = [_Moved(label, tier_bytes(workload, judged.plan), colour) for label, judged, colour in shown]
    _draw_tiers(tiers, [tier.name for tier in workload.choice.network.tiers], moved)
    return f"{workload.model.name} on {workload.choice.network.name}"


def _draw_recorded(done: RecordedExploration, front: Axes, choices: Axes, tiers: Axes) -> str:
    space, base, best = done.space, done.base, done.best
    every, ahead, there = (
        [(need, plan.step_ns) for plan in plans if (need := plan.point.needed_bytes) is not None]
        for plans in (done.plans, done.front, [base])
    )
    _draw_front(front, every, ahead, there, "recorded order", space.hbm_bytes)
    rows = [(one.name, one.best) for one in (*done.varied, done.one_by_one)]
    bars = [_Bar(name, plan.step_ns) for name, plan in rows if plan is not None]
    bars += [] if best is None else [_Bar("all together", best.step_ns, is_best=True)]
    _draw_choices(choices, bars, base.step_ns, "recorded order")
    shown = [("recorded order", base, SERIES[1]), *([] if best is None else [("best", best, SERIES[2])])]
    moved = [
        _Moved(label, sizes, colour)
        for label, plan, colour in shown
        if (sizes := recorded_tier_bytes(space, plan)) is not None
    ]
    _draw_tiers(tiers, [tier.name for tier in space.choice.network.tiers], moved)
    return f"the recorded job on {space.choice.network.name}"


def _draw_front(
    axes: Axes, every: Sequence[_Dot], ahead: Sequence[_Dot], base: Sequence[_Dot], name: str, limit: int | None
) -> None:
    if not every:
        axes.text(0.5, 0.5, "memory is not known", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return

    def drawn(dots: Sequence[_Dot]) -> tuple[list[float], list[float]]:
        return [size / 2**30 for size, _ in dots], [step_ns / 1e9 for _, step_ns in dots]

    axes.scatter(*drawn(every), 10, GREY, alpha=0.5, label="replayed")
    # A plan may be in front for its bytes alone: it is no step of this line.
    line: list[_Dot] = []
    for dot in sorted(ahead):
        if not line or dot[1] < line[-1][1]:
            line.append(dot)
    if line:
        axes.step(*drawn(line), where="post", marker="o", color=SERIES[0], label="front")
    if base:
        axes.scatter(*drawn(base), marker="x", color=SERIES[1], label=name, zorder=3)
    if limit is not None:
        axes.axvline(limit / 2**30, color=GREY, linestyle="--", linewidth=0.8)
    axes.set_xlabel("GiB of HBM on the fullest device")
    axes.set_ylabel("step in s")
    axes.legend()


def _draw_choices(axes: Axes, bars: Sequence[_Bar], base_ns: int | None, name: str) -> None:
    axes.barh(
        range(len(bars)), [bar.step_ns / 1e9 for bar in bars],
        color=[SERIES[2] if bar.is_best else SERIES[0] for bar in bars],
    )  # fmt: skip
    for place, bar in enumerate(bars):
        axes.annotate(
            format_duration(bar.step_ns), (bar.step_ns / 1e9, place), (-3, 0), textcoords="offset points",
            va="center", ha="right", color="white",
        )  # fmt: skip
    if base_ns is not None:
        axes.axvline(base_ns / 1e9, color=SERIES[1], linestyle="--")
        axes.set_title(f"dashed: {name}", color=SERIES[1])
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.invert_yaxis()
    axes.set_xlabel("step in s")


def _draw_tiers(axes: Axes, names: Sequence[str], shown: Sequence[_Moved]) -> None:
    room = 0.8 / max(1, len(shown))
    for number, one in enumerate(shown):
        places = [place + number * room for place in range(len(names))]
        axes.barh(places, [size / 2**30 for size in one.tier_bytes], room, color=one.colour, label=one.label)
        for place, size in zip(places, one.tier_bytes, strict=True):
            at = (max(size, 1) / 2**30, place)
            axes.annotate(format_size(size), at, (3, 0), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axes.minorticks_off()
    axes.margins(x=0.35)
    axes.set_yticks([place + room * (len(shown) - 1) / 2 for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel("GiB a step, by the tier at which both ranks meet")
    if shown:
        axes.legend(loc="lower right")


def timelines_figure(done: Exploration | RecordedExploration) -> Figure:
    """The best plan's timeline below the one that it is compared with, on one time axis.

    Raises:
        ScenarioError: If one has too many actions to be looked at.
        ScheduleError: If one cannot be replayed again.
    """
    if isinstance(done, RecordedExploration):
        pairs = [("Recorded", done.base), *([("Best", done.best)] if done.best is not None else [])]
        return panels_figure([_recorded_panel(done, role, plan) for role, plan in pairs], [], has_curves=False)
    shown = [("Declared", done.base)] if done.base.runs else []
    if done.best is not None and done.best.plan != done.base.plan:
        shown.append(("Best", done.best))
    return panels_figure([_panel(done, role, judged) for role, judged in shown], [], has_curves=False)


def _recorded_panel(done: RecordedExploration, role: str, plan: RecordedPlan) -> Panel:
    result = replayed_recorded(done.space, plan)
    details = (
        f"m = {result.microbatches}", f"{result.p2p} transfers", plan.way.text, f"step {format_duration(plan.step_ns)}",
    )  # fmt: skip
    return Panel(
        role, plan.order_text, details, result.replayed.timeline, result.metrics, result.microbatches,
        topology=result.replayed.topology,
    )  # fmt: skip


def _panel(done: Exploration, role: str, judged: Judged) -> Panel:
    ran = replayed_plan(done.space.workload, judged.plan)
    training = judged.plan.training
    details = (
        judged.plan.degrees_text, f"m = {training.microbatches}", f"{judged.plan.p2p_text} transfers",
        f"step {format_duration(judged.step_ns)}",
    )  # fmt: skip
    return Panel(
        role, judged.plan.order_text, details, ran.timeline, measure(ran.timeline), training.microbatches,
        topology=ran.topology,
    )  # fmt: skip
