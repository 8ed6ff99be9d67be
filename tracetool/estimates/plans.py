"""Measured plans from a file, and what layer timings and a network predict of each.

The structs below are the form: ``schemas/plans.schema.json`` is made from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import ScenarioError, TraceToolError, UnknownName
from tracetool.estimates.memory import peaks_bytes
from tracetool.estimates.runtimes import RUNTIME_MODELS
from tracetool.estimates.timed import TimedPlan, timed_pipeline
from tracetool.estimates.training import widened
from tracetool.model.notice import unasked
from tracetool.model.scenario import Scenario
from tracetool.replays.scenarios import replay_many
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracetool.estimates.timings import LayerTimings
    from tracetool.model.notice import Progress
    from tracetool.network.file import NetworkChoice

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Bytes = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_REDUCTION_RATIO = 0.5
"""Of a step: a reduction of gradients that takes more cannot be one."""
_PEAK_RATIO = 0.1
"""By how much peaks of plans that hold the same may differ."""


class MeasuredPlan(msgspec.Struct, kw_only=True):
    """One plan; other keys are allowed."""

    name: Annotated[str, doc("What it is called in results.")]
    model: Annotated[str, doc("Its model, as the file of layers calls it.")]
    tensor_parallel: Annotated[_Count, doc("Tensor-parallel ranks.")]
    data_parallel: Annotated[_Count, doc("Data-parallel ranks.")]
    microbatch_sequences: Annotated[_Count, doc("Sequences per microbatch.")]
    microbatches: Annotated[_Count, doc("Microbatches per step and pipeline.")]
    layers_per_stage: Annotated[
        list[_Count], msgspec.Meta(min_length=1, description="Of each stage; embedding and head count as layers.")
    ]
    step_s: Annotated[_Seconds | None, doc("Measured step; null if it was not.")] = None
    max_allocated_bytes: Annotated[_Bytes | None, doc("Highest use of any device; null if not measured.")] = None
    gradient_reduction_s: Annotated[
        float | None, doc("What its authors noted for the reduction of gradients; nothing is predicted from it.")
    ] = None
    global_batch_sequences: Annotated[_Count | None, doc("Sequences per step.")] = None
    pipeline_stages: Annotated[_Count | None, doc("Pipeline stages.")] = None


class PlansFile(msgspec.Struct, kw_only=True):
    """Measured plans; other keys are allowed."""

    results: Annotated[list[MeasuredPlan], msgspec.Meta(min_length=1, description="One per plan.")]
    source: Annotated[str | None, doc("Where they are from.")] = None


@dataclass(frozen=True, slots=True)
class PredictedPlan:
    """A plan and what was predicted of it.

    Attributes:
        plan: As the file has it.
        step_ns: Predicted step; None if it could not be predicted.
        peak_bytes: Predicted use of each pipeline rank's device.
        doubtful: Whether its own figures contradict each other, or those of other plans.
        reasons: Why it could not be predicted, or is doubtful, and what is left out that weighs in it.
    """

    plan: MeasuredPlan
    step_ns: int | None
    peak_bytes: tuple[int, ...]
    doubtful: bool
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.plan.name

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured step, minus one."""
        if self.step_ns is None or self.plan.step_s is None:
            return None
        return self.step_ns / 1e9 / self.plan.step_s - 1

    @property
    def peak_predicted_bytes(self) -> int | None:
        """The highest of them."""
        return max(self.peak_bytes, default=None)

    @property
    def peak_error_ratio(self) -> float | None:
        """Predicted over measured peak, minus one."""
        measured, predicted = self.plan.max_allocated_bytes, self.peak_predicted_bytes
        return None if measured is None or predicted is None else predicted / measured - 1


@dataclass(frozen=True, slots=True)
class PredictedPlans:
    """All plans of a file.

    Attributes:
        rows: In the file's order.
        digest: SHA-256 of the file.
    """

    rows: tuple[PredictedPlan, ...]
    digest: str

    def errors(self, *, sound: bool = False) -> list[float]:
        """Absolute errors of steps; without those of doubtful plans, if so asked."""
        rows = (row for row in self.rows if not (sound and row.doubtful))
        return [abs(row.error_ratio) for row in rows if row.error_ratio is not None]

    @property
    def mape_ratio(self) -> float | None:
        """Mean absolute error of all steps."""
        return fmean(self.errors()) if self.errors() else None

    @property
    def max_error_ratio(self) -> float | None:
        """Largest absolute error of a step."""
        return max(self.errors(), default=None)

    @property
    def mape_sound_ratio(self) -> float | None:
        """Mean absolute error without doubtful plans."""
        sound = self.errors(sound=True)
        return fmean(sound) if sound else None

    @property
    def max_peak_error_ratio(self) -> float | None:
        """Largest absolute error of a peak."""
        return max((abs(row.peak_error_ratio) for row in self.rows if row.peak_error_ratio is not None), default=None)


def read_plans(path: Path) -> tuple[list[MeasuredPlan], str]:
    """Read a file of plans; with its digest.

    Raises:
        ScenarioError: If it cannot be read, or has another form.
    """
    try:
        content = path.read_bytes()
        file = msgspec.convert(json.loads(content), PlansFile)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(
            f"cannot read {path}: {why}.",
            hint="schemas/plans.schema.json has the form",
        ) from error
    return file.results, sha256(content).hexdigest()


def predict_plans(
    plans: Sequence[MeasuredPlan],
    digest: str,
    timings: LayerTimings,
    choice: NetworkChoice,
    progress: Progress | None = None,
) -> PredictedPlans:
    """Predict every plan; nothing is fitted to any of them.

    Args:
        plans: As they were read.
        digest: Of their file.
        timings: Layer timings.
        choice: The network; its outermost tier is taken to hold the largest plan.
        progress: Told how many plans there are, and how many are predicted.
    """
    progress = progress or unasked()
    progress.start(len(plans))
    predicted = []
    for plan in plans:
        predicted.append(_predicted(plan, plans, timings, choice))
        progress.advance(1)
    return PredictedPlans(tuple(predicted), digest)


def _predicted(
    plan: MeasuredPlan, plans: Sequence[MeasuredPlan], timings: LayerTimings, choice: NetworkChoice
) -> PredictedPlan:
    doubts = _doubts(plan, plans)
    try:
        if plan.model not in RUNTIME_MODELS:
            raise UnknownName("model", plan.model, list(RUNTIME_MODELS))
        model = RUNTIME_MODELS[plan.model]
        cut = TimedPlan(
            plan.tensor_parallel,
            plan.data_parallel,
            plan.microbatch_sequences,
            plan.microbatches,
            tuple(plan.layers_per_stage),
        )
        pipeline = timed_pipeline(model, cut, timings, widened(choice, cut.degrees.ranks))
        step = replay_many(pipeline, pipeline.observed, [Scenario()])[0].step_ns
    except TraceToolError as error:
        return PredictedPlan(plan, None, (), doubtful=bool(doubts), reasons=(f"not predicted: {error}", *doubts))
    counted = sum(plan.layers_per_stage) - model.layers - 2
    if counted:
        doubts.append(
            f"its stages have {sum(plan.layers_per_stage)} layers, the model has {model.layers + 2} with embedding and "
            "head: predicted as listed"
        )
    return PredictedPlan(
        plan, step, peaks_bytes(pipeline), doubtful=bool(doubts), reasons=(*doubts, *_left_out(plan, timings))
    )


def _doubts(plan: MeasuredPlan, plans: Sequence[MeasuredPlan]) -> list[str]:
    """What contradicts itself in a plan's own figures, or in those of plans that hold the same."""
    doubts = []
    step, noted = plan.step_s, plan.gradient_reduction_s
    if step is not None and noted is not None and noted > _REDUCTION_RATIO * step:
        doubts.append(
            f"its gradient reduction is noted as {noted:g} s of a step of {step:g} s, which no reduction takes: one of "
            "them is another figure, perhaps another run's step"
        )
    batch = plan.microbatch_sequences * plan.microbatches * plan.data_parallel
    if plan.global_batch_sequences not in (None, batch):
        doubts.append(f"its microbatches make {batch} sequences a step, not {plan.global_batch_sequences}")
    if plan.pipeline_stages not in (None, len(plan.layers_per_stage)):
        doubts.append(f"it lists layers of {len(plan.layers_per_stage)} stages, not of {plan.pipeline_stages}")
    alike = [
        each.max_allocated_bytes
        for each in plans
        if _holds(each) == _holds(plan) and each.max_allocated_bytes is not None
    ]
    if len(alike) > 2 and plan.max_allocated_bytes is not None:
        usual = median(alike)
        if abs(plan.max_allocated_bytes / usual - 1) > _PEAK_RATIO:
            doubts.append(
                f"its peak is {plan.max_allocated_bytes / 1e9:.1f} GB, that of {len(alike) - 1} plans which hold the "
                f"same {usual / 1e9:.1f} GB"
            )
    return doubts


def _holds(plan: MeasuredPlan) -> tuple[object, ...]:
    """What decides how much a rank holds."""
    in_flight = min(plan.microbatches, len(plan.layers_per_stage))
    return plan.model, plan.tensor_parallel, plan.microbatch_sequences, tuple(plan.layers_per_stage), in_flight


def _left_out(plan: MeasuredPlan, timings: LayerTimings) -> list[str]:
    """What weighs in a plan and is not in the timings."""
    left = []
    if plan.microbatches == 1:
        left.append("one microbatch: what the host does once a step is not in layer timings, and nothing hides it")
    if timings.host_limited(plan.model, plan.tensor_parallel, plan.microbatch_sequences):
        left.append(
            "layers of so small a microbatch are limited by the host: timed one by one they take about as long as "
            "twice the microbatch, and a step may be faster or slower than their sum"
        )
    return left
