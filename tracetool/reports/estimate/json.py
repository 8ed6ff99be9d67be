"""What ``tracetool estimate --json`` prints.

The structs are the schema: ``schemas/estimate.schema.json`` and ``schemas/plan-predictions.schema.json`` are made from
them. Keys may be added within a major version; none is renamed or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.reports import as_json
from tracetool.tables.fields import Head, SchemaId, as_struct, doc

if TYPE_CHECKING:
    from tracetool.estimates.asked import Estimated
    from tracetool.estimates.plans import PredictedPlan, PredictedPlans


class MeasuredInfo(msgspec.Struct, kw_only=True):
    """One measured run of the model's file, and its estimate."""

    name: Annotated[str, doc("Name of the run.")]
    measured_s: Annotated[float, doc("Measured step.")]
    predicted_s: Annotated[float, doc("Estimated step.")]
    error_ratio: Annotated[float, doc("Estimated over measured step, minus one.")]
    mfu_ratio: Annotated[float, doc("Its model FLOPS utilisation.")]
    hfu_ratio: Annotated[float, doc("Its hardware FLOPS utilisation.")]
    peak_hbm_bytes: Annotated[list[int], doc("Highest allocation of each of its pipeline ranks.")]
    fitted: Annotated[bool, doc("Whether the efficiency was fitted on it.")]
    network: Annotated[str | None, doc("Name of the network that it ran over, if it has its own.")]


class EstimateInfo(Head, kw_only=True):
    """Result of tracetool estimate of a model."""

    schema: SchemaId = "urn:tracetool:schema:1:estimate"
    model: Annotated[str, doc("Name of the model.")]
    device: Annotated[str, doc("Name of the device.")]
    network: Annotated[str | None, doc("Name of the network; null if messages take no time.")]
    layers: Annotated[str | None, doc("File of layer timings in place of the curve; null if the curve was taken.")]
    parameters: Annotated[int, doc("Parameters of the model.")]
    devices: Annotated[int, doc("Devices of the job.")]
    efficiency_ratio: Annotated[
        float | None, doc("Share of the peak that a whole wave of long matrix products reaches; null of timed layers.")
    ]
    fitted_on: Annotated[list[str], doc("Runs that it was fitted on.")]
    overlap: Annotated[str, doc("How layers run collectives of tensor parallelism beside their products.")]
    step_ns: Annotated[int, doc("First forward to the end of gradient reduction and optimizer.")]
    window_ns: Annotated[int, doc("First forward to last backward.")]
    compute_ns: Annotated[int, doc("Compute of a rank in the window, with collectives within layers; mean over ranks.")]
    bubble_ratio: Annotated[float, doc("Idle share of the window.")]
    reduction_ns: Annotated[int, doc("Gradient reduction after the last backward.")]
    optimizer_ns: Annotated[int, doc("Optimizer.")]
    mfu_ratio: Annotated[float, doc("Operations that the model needs over those of all devices at their peak.")]
    hfu_ratio: Annotated[float, doc("The same with what is computed anew.")]
    tokens_per_s: Annotated[float, doc("Tokens per second.")]
    peak_hbm_bytes: Annotated[list[int], doc("Highest allocation of each pipeline rank.")]
    hbm_bytes: Annotated[int, doc("Memory of a device.")]
    shared_tiers: Annotated[
        list[str], doc("Tiers that pipelines share: of these each message and collective has its part while all send.")
    ]
    rows: Annotated[list[MeasuredInfo], doc("One per measured run of the file.")]
    mape_ratio: Annotated[float | None, doc("Mean absolute error of those that nothing was fitted on; null: none.")]
    max_error_ratio: Annotated[float | None, doc("Largest absolute error of those.")]


class PlanRowInfo(msgspec.Struct, kw_only=True):
    """One plan and its prediction."""

    name: Annotated[str, doc("Name of the plan.")]
    model: Annotated[str, doc("Its model.")]
    measured_s: Annotated[float | None, doc("Measured step; null if it was not.")]
    predicted_s: Annotated[float | None, doc("Predicted step; null if it could not be predicted.")]
    error_ratio: Annotated[float | None, doc("Predicted over measured step, minus one.")]
    peak_measured_bytes: Annotated[int | None, doc("Measured highest use of any device.")]
    peak_predicted_bytes: Annotated[int | None, doc("Predicted highest use of any device.")]
    peak_error_ratio: Annotated[float | None, doc("Predicted over measured peak, minus one.")]
    doubtful: Annotated[bool, doc("Whether its own figures contradict each other, or those of plans like it.")]
    reason: Annotated[
        str | None, doc("Why it could not be predicted or is doubtful, or what weighs in it and is left out.")
    ]


class PlansInfo(Head, kw_only=True):
    """Result of tracetool estimate of measured plans."""

    schema: SchemaId = "urn:tracetool:schema:1:plan-predictions"
    plans: Annotated[str, doc("File of plans.")]
    plans_digest: Annotated[str, doc("SHA-256 of its content.")]
    layers: Annotated[str, doc("File of layer timings.")]
    layers_digest: Annotated[str, doc("SHA-256 of its content.")]
    network: Annotated[str, doc("Name of the network.")]
    rows: Annotated[list[PlanRowInfo], doc("One per plan, in the file's order.")]
    mape_ratio: Annotated[float | None, doc("Mean absolute error of steps, doubtful ones included; null: none.")]
    max_error_ratio: Annotated[float | None, doc("Largest absolute error of a step, doubtful ones included.")]
    mape_sound_ratio: Annotated[float | None, doc("Mean absolute error of steps without doubtful plans.")]
    max_peak_error_ratio: Annotated[float | None, doc("Largest absolute error of a peak.")]


@dataclass(frozen=True, slots=True)
class EstimateFacts:
    """What the output says about call and files.

    Attributes:
        tool_version: Version of this tool.
        command: The command line.
        network: Name of the network; None without one.
        layers: File of layer timings; None if none was given.
        layers_digest: SHA-256 of its content.
        plans: File of plans.
    """

    tool_version: str
    command: str
    network: str | None
    layers: str | None = None
    layers_digest: str = ""
    plans: str = ""


def estimate_info(estimated: Estimated, facts: EstimateFacts) -> EstimateInfo:
    """An estimate as the structs of the schema."""
    done, errors = estimated.job, estimated.errors
    training = done.job.training
    return as_struct(
        EstimateInfo,
        done,
        facts,
        training,
        model=done.job.model.name,
        device=done.job.device.name,
        parameters=done.job.model.parameters,
        efficiency_ratio=None if facts.layers else training.efficiency_ratio,
        fitted_on=list(estimated.fitted),
        bubble_ratio=1 - done.compute_ns / done.window_ns,
        hbm_bytes=done.job.device.hbm_bytes,
        shared_tiers=estimated.shared_tiers,
        rows=[
            as_struct(
                MeasuredInfo,
                row,
                fitted=estimated.is_fitted(row),
                network=row.job.network and row.job.network.network.name,
            )
            for row in estimated.measured
        ],
        mape_ratio=fmean(errors) if errors else None,
        max_error_ratio=max(errors, default=None),
    )


def plans_info(done: PredictedPlans, facts: EstimateFacts) -> PlansInfo:
    """Predicted plans as the structs of the schema."""
    return as_struct(PlansInfo, done, facts, plans_digest=done.digest, rows=[_plan(row) for row in done.rows])


def _plan(row: PredictedPlan) -> PlanRowInfo:
    return as_struct(
        PlanRowInfo,
        row,
        model=row.plan.model,
        measured_s=row.plan.step_s,
        predicted_s=None if row.step_ns is None else row.step_ns / 1e9,
        peak_measured_bytes=row.plan.max_allocated_bytes,
        reason="; ".join(row.reasons) or None,
    )


def render_estimate(estimated: Estimated, facts: EstimateFacts) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(estimate_info(estimated, facts))


def render_plans(done: PredictedPlans, facts: EstimateFacts) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(plans_info(done, facts))
