"""An exploration to look at: the front, what each choice reaches, bytes over tiers; and the timelines of both plans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracetool.explore.crossing import tier_bytes
from tracetool.explore.timeline import replayed_plan
from tracetool.model.timeline import measure
from tracetool.reports.gantt import Panel
from tracetool.reports.gantt.picture import panels_figure
from tracetool.reports.picture import GREY, SERIES, save
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.explore.answer import Exploration
    from tracetool.explore.judge import Judged
    from tracetool.reports.picture import PictureFormat


def overview_picture(done: Exploration, picture_format: PictureFormat) -> bytes:
    """The picture of ``overview_figure``, as a file."""
    return save(partial(overview_figure, done), picture_format)


def overview_figure(done: Exploration) -> Figure:
    """Step against memory of all plans that were replayed, choices alone and together, and bytes over each tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    front, choices, tiers = figure.subplots(1, 3)
    _draw_front(front, done)
    _draw_choices(choices, done)
    _draw_tiers(tiers, done)
    for axes in (front, choices, tiers):
        axes.spines[["top", "right"]].set_visible(False)
    workload = done.space.workload
    figure.suptitle(f"{workload.model.name} on {workload.choice.network.name}")
    return figure


def _draw_front(axes: Axes, done: Exploration) -> None:
    every = done.results.judged
    axes.scatter(
        [one.peak_hbm_bytes / 2**30 for one in every], [one.step_ns / 1e9 for one in every], 10, GREY, alpha=0.5,
        label="replayed",
    )  # fmt: skip
    ahead = sorted(done.front, key=lambda one: one.peak_hbm_bytes)
    axes.step(
        [one.peak_hbm_bytes / 2**30 for one in ahead], [one.step_ns / 1e9 for one in ahead], where="post", marker="o",
        color=SERIES[0], label="front",
    )  # fmt: skip
    if done.base.runs:
        axes.scatter(
            [done.base.peak_hbm_bytes / 2**30], [done.base.step_ns / 1e9], marker="x", color=SERIES[1], label="declared"
        )
    axes.axvline(done.space.workload.hbm_bytes / 2**30, color=GREY, linestyle="--", linewidth=0.8)
    axes.set_xlabel("GiB of HBM on the fullest device")
    axes.set_ylabel("step in s")
    axes.legend()


def _draw_choices(axes: Axes, done: Exploration) -> None:
    rows = [(one.name, one.judged) for one in (*done.alone, done.one_by_one, *done.baselines)]
    if done.best is not None:
        rows.append(("all together", done.best))
    known = [(name, judged) for name, judged in rows if judged is not None and judged.runs]
    steps = [judged.step_ns for _, judged in known]
    axes.barh(
        range(len(known)), [step / 1e9 for step in steps],
        color=[SERIES[2] if judged is done.best else SERIES[0] for _, judged in known],
    )  # fmt: skip
    for place, step in enumerate(steps):
        axes.annotate(
            format_duration(step), (step / 1e9, place), (-3, 0), textcoords="offset points", va="center", ha="right",
            color="white",
        )  # fmt: skip
    if done.base.runs:
        axes.axvline(done.base.step_ns / 1e9, color=SERIES[1], linestyle="--")
        axes.set_title("dashed: declared", color=SERIES[1])
    axes.set_yticks(range(len(known)), [name for name, _ in known])
    axes.invert_yaxis()
    axes.set_xlabel("step in s")


def _draw_tiers(axes: Axes, done: Exploration) -> None:
    workload = done.space.workload
    names = [tier.name for tier in workload.choice.network.tiers]
    shown: list[tuple[str, Judged, str]] = []
    if done.base.runs:
        shown.append(("declared", done.base, SERIES[1]))
    if done.best is not None:
        shown.append(("best", done.best, SERIES[2]))
    room = 0.8 / max(1, len(shown))
    for number, (label, judged, colour) in enumerate(shown):
        sizes = tier_bytes(workload, judged.plan)
        places = [place + number * room for place in range(len(names))]
        axes.barh(places, [size / 2**30 for size in sizes], room, color=colour, label=label)
        for place, size in zip(places, sizes, strict=True):
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


def timelines_figure(done: Exploration) -> Figure:
    """The best plan's timeline below the declared one's, on one time axis.

    Raises:
        ScenarioError: If one has too many actions to be looked at.
    """
    shown = [("Declared", done.base)] if done.base.runs else []
    if done.best is not None and done.best.plan != done.base.plan:
        shown.append(("Best", done.best))
    return panels_figure([_panel(done, role, judged) for role, judged in shown], [], has_curves=False)


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
