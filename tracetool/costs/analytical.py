"""A pipeline made of shapes and an accelerator's figures: costs from a model, where nothing was measured.

A derived model of this tool: every matrix product runs at one share of the peak (``efficiency_ratio``), collectives of
tensor parallelism come on top and are not hidden, everything else (norms, elementwise kernels, launches, optimizer)
is in that share or left out. It is good for which of two things is longer, not for a step time to rely on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import PipelineShape, Schedule

if TYPE_CHECKING:
    from tracetool.costs.transformer import Recompute, Transformer

BYTES_PER_PARAMETER = 18
"""Weights 2, gradients 4, and master weights and two moments of Adam 4 each: mixed precision as in Megatron-LM, nothing
shared among data-parallel ranks."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Figures of a device.

    Attributes:
        name: What it is called.
        peak_flops: Operations per second at 16 bit, dense.
        hbm_bytes: Memory.
        tensor_bandwidth_bytes_per_s: What one device sends to the others of its node, in one direction.
    """

    name: str
    peak_flops: int
    hbm_bytes: int
    tensor_bandwidth_bytes_per_s: int


A100 = Accelerator("A100 80GB", 312 * 10**12, 80 * 10**9, 300 * 10**9)
"""NVIDIA A100 80GB SXM data sheet: 312 TFLOPS (bf16), NVLink 600 GB/s both directions together."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained on it.

    Attributes:
        tensor: Tensor-parallel ranks per stage, with sequence parallelism.
        stages: Pipeline stages, one per pipeline rank, of equally many layers.
        microbatches: Microbatches per step.
        batch: Sequences per microbatch.
        sequence: Tokens per sequence.
        efficiency_ratio: Share of the peak at which matrix products run.
        recompute: What the backward computes anew.
        has_head: Whether the last stage computes the head; without, all stages are equal.
    """

    tensor: int
    stages: int
    microbatches: int
    batch: int
    sequence: int
    efficiency_ratio: float
    recompute: Recompute = "none"
    has_head: bool = True


def analytical_pipeline(model: Transformer, device: Accelerator, training: Training) -> Pipeline:
    """The pipeline of a model, as if it had been measured: 1F1B, receives posted ahead.

    Messages inside a region take no time. A message between stages is the hidden state of a microbatch once
    (2 bytes times batch, sequence and h), over all tensor-parallel ranks together.

    Raises:
        ScenarioError: If the layers do not divide among the stages, or a figure is not positive.
    """
    _check(model, device, training)
    payload = 2 * training.batch * training.sequence * model.hidden
    last = training.stages - 1
    stages = tuple(
        StageProfile(
            stage,
            _costs(model, device, training, is_last=stage == last),
            forward_payload_bytes=None if stage == last else payload,
            backward_payload_bytes=None if stage == 0 else payload,
            evidence="model",
        )
        for stage in range(training.stages)
    )
    ranks = tuple(
        RankProfile(rank=stage, static_bytes=static_bytes(model, training, stage)) for stage in range(training.stages)
    )
    return Pipeline(
        stages, ranks, _order(PipelineShape(training.stages, training.microbatches)), "posted-ahead", step=0
    )


def static_bytes(model: Transformer, training: Training, stage: int) -> int:
    """Weights, gradients and optimizer of one device of a stage."""
    parameters = model.layers // training.stages * model.layer_parameters
    parameters += model.embedding_parameters if stage == 0 else 0
    parameters += model.head_parameters if stage == training.stages - 1 else 0
    return BYTES_PER_PARAMETER * parameters // training.tensor


def collective_ns(model: Transformer, device: Accelerator, training: Training) -> int:
    """An all-gather or a reduce-scatter of one microbatch's hidden state within the tensor-parallel group."""
    payload = 2 * training.batch * training.sequence * model.hidden
    return round(payload * (training.tensor - 1) / training.tensor / device.tensor_bandwidth_bytes_per_s * 1e9)


def _costs(
    model: Transformer, device: Accelerator, training: Training, *, is_last: bool
) -> dict[ActionKind, tuple[ActionCost, ...]]:
    layers = model.layers // training.stages
    batch, sequence = training.batch, training.sequence
    # An all-gather and a reduce-scatter around attention and around the MLP, in either direction.
    collectives = 4 * layers * collective_ns(model, device, training)
    head = model.head_flops(batch, sequence) if is_last and training.has_head else 0
    speed = device.peak_flops * training.efficiency_ratio * training.tensor

    def compute_ns(flops: int) -> int:
        return round(flops / speed * 1e9)

    forward = compute_ns(layers * model.layer_forward_flops(batch, sequence) + head) + collectives
    backward = (
        compute_ns(layers * model.layer_backward_flops(batch, sequence, training.recompute) + 2 * head) + collectives
    )
    if training.recompute == "full":
        backward += collectives
    kept = layers * model.activation_bytes(batch, sequence, training.recompute) // training.tensor
    beyond = transient_bytes(model, training, is_last=is_last)
    return {
        ActionKind.FORWARD: (ActionCost(forward, kept, kept + beyond),) * training.microbatches,
        ActionKind.BACKWARD: (ActionCost(backward, -kept, beyond),) * training.microbatches,
    }


def transient_bytes(model: Transformer, training: Training, *, is_last: bool) -> int:
    """What an action needs on a device while it runs: a layer computed anew, and the head's scores (2 + 4 bytes)."""
    anew = 0
    if training.recompute != "none":
        full, kept = (
            model.activation_bytes(training.batch, training.sequence, r) for r in ("none", training.recompute)
        )
        anew = full - kept
    scores = 6 * training.batch * training.sequence * model.vocabulary if is_last and training.has_head else 0
    return (anew + scores) // training.tensor


def _order(shape: PipelineShape) -> Schedule:
    """1F1B, spelled out: costs know no schedules."""
    orders = []
    for rank in range(shape.ranks):
        warmup = min(shape.microbatches, shape.ranks - rank - 1)
        order = [Action(rank, ActionKind.FORWARD, i) for i in range(warmup)]
        for i in range(shape.microbatches - warmup):
            order += [Action(rank, ActionKind.FORWARD, warmup + i), Action(rank, ActionKind.BACKWARD, i)]
        order += [Action(rank, ActionKind.BACKWARD, i) for i in range(shape.microbatches - warmup, shape.microbatches)]
        orders.append(tuple(order))
    return Schedule("1f1b", shape, tuple(orders)).validate()


def _check(model: Transformer, device: Accelerator, training: Training) -> None:
    if model.layers % training.stages:
        raise ScenarioError(
            f"{model.name} has {model.layers} layers, which do not divide into {training.stages} stages.",
            hint="choose a number of stages that divides the layers",
        )
    figures = (
        device.peak_flops,
        device.tensor_bandwidth_bytes_per_s,
        training.batch,
        training.sequence,
        training.microbatches,
    )
    if min(*figures, training.tensor, training.stages) <= 0 or not 0 < training.efficiency_ratio <= 1:
        raise ScenarioError(
            f"{model.name} on {device.name}: peak, bandwidth and sizes must be more than 0, the efficiency between 0 "
            f"and 100 % (it is {training.efficiency_ratio:.0%})."
        )
