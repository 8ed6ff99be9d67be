"""What ``tracetool paper geopipe`` gives: text for people, JSON for scripts, every point as a table.

The structs are the schema: ``schemas/geopipe.schema.json`` is made from them. Keys may be added within a major
version; none is renamed or removed.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.reports import CallFacts, as_json
from tracetool.reports.studies.geopipe_text import render, render_screen
from tracetool.studies.geopipe import BUBBLE_REDUCTION, FACTS, ITERATION_REDUCTION, NOT_PUBLISHED, SOURCES, TOLERANCE
from tracetool.studies.geopipe.findings import bubble_reduction, iteration_reduction
from tracetool.studies.geopipe.sweep import BASELINES, NS_PER_KM
from tracetool.tables.fields import Head, SchemaId, as_struct, doc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from tracetool.studies.geopipe.findings import Definition, FigureOrigin, Point
    from tracetool.studies.geopipe.reproduce import ModelStudy, Study


class FactInfo(msgspec.Struct, kw_only=True):
    """Something published."""

    text: Annotated[str, doc("What it says.")]
    basis: Annotated[str, doc("How it is known: abstract, two summaries, or one note (unconfirmed).")]


class AssumptionInfo(msgspec.Struct, kw_only=True):
    """Something assumed where nothing is published."""

    what: Annotated[str, doc("The quantity.")]
    value: Annotated[str, doc("What is taken.")]
    why: Annotated[str, doc("Why.")]


class GridInfo(msgspec.Struct, kw_only=True):
    """What was swept."""

    efficiency_ratios: Annotated[list[float], doc("Share of the peak at which matrix products run.")]
    microbatches: Annotated[list[int], doc("Microbatches per step.")]
    splits: Annotated[list[list[int]], doc("Stages in each region.")]
    messages_at_once: Annotated[list[int], doc("Equal messages that cross the link at once.")]
    bandwidths_bytes_per_s: Annotated[list[int], doc("Bandwidth of the link, per direction.")]
    distances_km: Annotated[list[int], doc("Between neighbouring regions.")]


class PointInfo(msgspec.Struct, kw_only=True):
    """A setting, and what replay gives there."""

    efficiency_ratio: Annotated[float, doc("Share of the peak at which matrix products run.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    split: Annotated[list[int], doc("Stages in each region.")]
    messages_at_once: Annotated[int, doc("Equal messages that cross the link at once.")]
    bandwidth_bytes_per_s: Annotated[int, doc("Bandwidth of the link.")]
    distance_km: Annotated[int, doc("Between neighbouring regions.")]
    extra_forwards: Annotated[int, doc("Extra warm-up forwards per boundary.")]
    bubble_reduction_ratio: Annotated[float | None, doc("Under the definition looked at; null if none was.")]
    iteration_reduction_ratio: Annotated[float, doc("1 - window with extra forwards / window of 1F1B.")]


class FindingInfo(msgspec.Struct, kw_only=True):
    """Where a published figure arises, for one baseline and one definition."""

    baseline: Annotated[str, doc("How the 1F1B it is compared with issues transfers: grouped or posted-ahead.")]
    definition: Annotated[
        str | None, doc("bubble_ratio, bubble_ns or cross_dc_bubble_ns; null for the iteration alone.")
    ]
    least_reduction_ratio: Annotated[float, doc("Smallest reduction of the sweep.")]
    most_reduction_ratio: Annotated[float, doc("Largest reduction of the sweep.")]
    points: Annotated[int, doc("Settings at which the figure arises.")]
    total: Annotated[int, doc("Settings looked at: those that fit the memory limit.")]
    share_ratios: Annotated[
        list[list[float]],
        doc("Per number of microbatches, per distance: share of the other settings at which the figure arises."),
    ]
    nearest: Annotated[PointInfo | None, doc("The setting closest to it; null if none fits the memory limit.")]
    highest: Annotated[PointInfo | None, doc("The setting of the largest reduction; null likewise.")]
    left_ratio: Annotated[
        float,
        doc("Where the reduction is largest: share of the idle time left that free links would leave as well."),
    ]


class OptimumInfo(msgspec.Struct, kw_only=True):
    """How much bandwidth is enough at one distance."""

    messages_at_once: Annotated[int, doc("Equal messages that cross the link at once.")]
    distance_km: Annotated[int, doc("Between neighbouring regions.")]
    formula_bytes_per_s: Annotated[
        int | None, doc("BW*, derived model of this tool; null if no bandwidth hides the latency within memory.")
    ]
    throughput_bytes_per_s: Annotated[int, doc("What the messages need within f + B.")]
    hiding_bytes_per_s: Annotated[int | None, doc("What lets the extra forwards that fit hide a delay.")]
    depth_limit: Annotated[int, doc("Extra forwards per boundary that memory allows.")]
    knee_bytes_per_s: Annotated[
        int | None,
        doc("Replayed, with extra forwards: bandwidth from which on doubling shortens the step by less than 1 %."),
    ]
    baseline_knee_bytes_per_s: Annotated[int | None, doc("The same for 1F1B in blocking batches.")]
    gain_ratio: Annotated[float, doc("What 400 for 200 Gbit/s takes off the window with extra forwards.")]
    baseline_gain_ratio: Annotated[float, doc("The same for 1F1B in blocking batches.")]


class NeedInfo(msgspec.Struct, kw_only=True):
    """Memory of a device, by micro-batch size."""

    batch: Annotated[int, doc("Sequences per microbatch.")]
    static_bytes: Annotated[int, doc("Weights, gradients and optimizer of the first stage.")]
    activation_bytes: Annotated[int, doc("What one microbatch keeps there.")]
    peak_bytes: Annotated[int, doc("Highest allocation of any stage with 1F1B.")]
    deeper_peak_bytes: Annotated[int, doc("The same with one extra forward at each boundary.")]
    fits: Annotated[bool, doc("Whether 1F1B fits the memory limit.")]
    depth_limit: Annotated[int | None, doc("Extra forwards per boundary that fit; null if 1F1B does not.")]


class ModelInfo(msgspec.Struct, kw_only=True):
    """One model."""

    name: Annotated[str, doc("13b or 70b.")]
    parameters: Annotated[int, doc("Parameters, from its shape.")]
    middle_cycle_ns: Annotated[int, doc("f + B of a middle stage at the middle efficiency.")]
    slowest_cycle_ns: Annotated[int, doc("f + B of the slowest stage.")]
    published_tokens_per_s: Annotated[
        int | None, doc("Per device, as MindSpeed-LLM publishes it; null if the accelerator is another one.")
    ]
    predicted_tokens_per_s: Annotated[list[float], doc("The same from the model, at each efficiency.")]
    bubbles: Annotated[list[FindingInfo], doc("Where the published reduction of bubbles arises.")]
    iterations: Annotated[list[FindingInfo], doc("Where that of the iteration arises.")]
    both: Annotated[list[FindingInfo], doc("Where one setting shows both.")]
    optima: Annotated[list[OptimumInfo], doc("How much bandwidth is enough; empty if 1F1B does not fit.")]
    needs: Annotated[list[NeedInfo], doc("Memory by micro-batch size.")]


class GeoPipeInfo(Head, kw_only=True):
    """Result of tracetool paper geopipe: derived from public facts and assumptions, nothing measured."""

    schema: SchemaId = "urn:tracetool:schema:1:geopipe"
    derived: Annotated[bool, doc("Always true: times come from an analytical model.")] = True
    bubble_reduction_ratio: Annotated[float, doc("The published figure.")] = BUBBLE_REDUCTION
    iteration_reduction_ratio: Annotated[float, doc("The published figure.")] = ITERATION_REDUCTION
    tolerance_ratio: Annotated[float, doc("A figure arises where the model comes as close.")] = TOLERANCE
    published: Annotated[list[FactInfo], doc("What is public of the setting and the results.")]
    not_published: Annotated[list[str], doc("What is not.")]
    sources: Annotated[list[str], doc("Where facts and figures are from.")]
    assumptions: Annotated[list[AssumptionInfo], doc("What is taken for it.")]
    hbm_bytes: Annotated[int, doc("Memory limit per device.")]
    grid: Annotated[GridInfo, doc("What was swept.")]
    models: Annotated[list[ModelInfo], doc("One per model.")]


def geopipe_info(study: Study, facts: CallFacts) -> GeoPipeInfo:
    """The report as the structs of the schema."""
    grid = study.choice.grid
    return as_struct(
        GeoPipeInfo,
        study.choice,
        facts,
        published=[as_struct(FactInfo, fact) for fact in FACTS],
        not_published=NOT_PUBLISHED,
        sources=SOURCES,
        assumptions=[as_struct(AssumptionInfo, each) for each in study.assumptions],
        grid=as_struct(
            GridInfo,
            grid,
            messages_at_once=grid.sharing,
            bandwidths_bytes_per_s=[gbit * 10**9 // 8 for gbit in grid.bandwidths_gbit_per_s],
        ),
        models=[_model(model) for model in study.models],
    )


def _model(model: ModelStudy) -> ModelInfo:
    throughput = model.throughput
    return ModelInfo(
        name=model.name,
        parameters=model.swept.setting.model.parameters,
        middle_cycle_ns=model.cycles_ns[0],
        slowest_cycle_ns=model.cycles_ns[1],
        published_tokens_per_s=None if throughput is None else throughput.published,
        predicted_tokens_per_s=[] if throughput is None else list(throughput.predicted),
        bubbles=[_finding(figure) for figure in model.bubbles],
        iterations=[_finding(figure) for figure in model.iterations],
        both=[_finding(figure) for figure in model.both],
        optima=[as_struct(OptimumInfo, optimum, messages_at_once=optimum.sharing) for optimum in model.optima],
        needs=[as_struct(NeedInfo, need) for need in model.needs],
    )


def _finding(figure: FigureOrigin) -> FindingInfo:
    return as_struct(
        FindingInfo,
        figure,
        least_reduction_ratio=figure.least,
        most_reduction_ratio=figure.most,
        share_ratios=figure.shares,
        nearest=None if figure.nearest is None else _point(figure.nearest),
        highest=None if figure.highest is None else _point(figure.highest),
    )


def _point(point: Point) -> PointInfo:
    return as_struct(
        PointInfo,
        point,
        messages_at_once=point.sharing,
        bandwidth_bytes_per_s=point.bandwidth_gbit_per_s * 10**9 // 8,
        extra_forwards=point.depth,
        bubble_reduction_ratio=point.bubble_reduction,
        iteration_reduction_ratio=point.iteration_reduction,
    )


def render_json(study: Study, facts: CallFacts) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(geopipe_info(study, facts))


def render_text(study: Study, _facts: CallFacts, *, verbose: bool = True) -> bytes:
    """The report for people, of at most 80 columns; else one screen of it."""
    return ("\n".join(render(study) if verbose else render_screen(study)) + "\n").encode()


_SHORT: Mapping[Definition, str] = {
    "bubble_ratio": "idle_share",
    "bubble_ns": "idle_time",
    "cross_dc_bubble_ns": "cross_dc_time",
}


def points_table(study: Study) -> pl.DataFrame:
    """Every point of every model, a row each."""
    import numpy as np
    import polars as pl

    grid = study.choice.grid
    frames = []
    for model in study.models:
        swept = model.swept
        axes = [axis.ravel() for axis in np.indices(grid.shape)]
        distances = np.array(grid.distances_km)[axes[5]]
        columns: dict[str, object] = {
            "model": [model.name] * swept.depth.size,
            "efficiency_ratio": np.array(grid.efficiency_ratios)[axes[0]],
            "microbatches": np.array(grid.microbatches)[axes[1]],
            "split": np.array(["/".join(map(str, split)) for split in grid.splits])[axes[2]].tolist(),
            "messages_at_once": np.array(grid.sharing)[axes[3]],
            "bandwidth_bytes_per_s": np.array(grid.bandwidths_gbit_per_s)[axes[4]] * (10**9 // 8),
            "distance_km": distances,
            "latency_ns": distances * NS_PER_KM,
            "feasible": swept.feasible.ravel(),
            "extra_forwards": swept.depth.ravel(),
            "window_ns": swept.deeper_ns.ravel(),
            "free_window_ns": swept.deeper_free_ns.ravel(),
            "compute_ns": swept.compute_ns.ravel().round().astype(np.int64),
        }
        for mode in BASELINES:
            name = mode.replace("-", "_")
            columns[f"{name}_1f1b_window_ns"] = swept.window_ns[mode].ravel()
            columns[f"{name}_1f1b_free_window_ns"] = swept.free_ns[mode].ravel()
            columns[f"{name}_iteration_reduction_ratio"] = iteration_reduction(swept, mode).ravel()
            for definition, short in _SHORT.items():
                columns[f"{name}_{short}_reduction_ratio"] = bubble_reduction(swept, mode, definition).ravel()
        frames.append(pl.DataFrame(columns))
    return pl.concat(frames)


def render_parquet(study: Study, _facts: CallFacts) -> bytes:
    """Every point as Parquet."""
    file = io.BytesIO()
    points_table(study).write_parquet(file)
    return file.getvalue()


def render_csv(study: Study, _facts: CallFacts) -> bytes:
    """Every point as CSV."""
    return points_table(study).write_csv().encode()


FORMS: Mapping[str, Callable[[Study, CallFacts], bytes]] = {
    ".parquet": render_parquet,
    ".csv": render_csv,
    ".json": render_json,
    ".txt": render_text,
}
"""By suffix of the file."""
