"""A pipeline made of shapes and an accelerator's figures: costs from a model, where nothing was measured.

A derived model of this tool: every matrix product runs at one share of the peak (``efficiency_ratio``), collectives of
tensor parallelism come on top and are not hidden, everything else (norms, elementwise kernels, launches, optimizer)
is in that share or left out. It is good for which of two things is longer, not for a step time to rely on.

Shapes of dense transformers: what they compute, hold and send, counted from the matrices.

Counts follow Korthikanti et al., arXiv 2205.05198 (operations of section 4 and appendix A, activation bytes of
equations 1 to 6), with grouped key-value heads, gated MLPs and fused attention beside the GPT layer of that paper.
Attention is counted over the whole square of the sequence, as there: a causal kernel may do half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracetool.errors import ScenarioError
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import PipelineShape, Schedule

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A dense decoder.

    Attributes:
        name: What it is called.
        layers: Layers.
        hidden: Hidden size h.
        heads: Attention heads.
        kv_heads: Heads of keys and values; as many as ``heads`` without grouping.
        ffn: Inner size of the MLP.
        vocabulary: Entries of embedding and head.
        gated: Whether the MLP has a gate (SwiGLU, three matrices; RMSNorm, no biases, as Llama) or not (GELU, two
            matrices; LayerNorm, biases, dropout, as GPT).
        fused_attention: Whether attention never writes its scores to memory (FlashAttention).
        positions: Learned positions; 0 for none.
        tied: Whether the head shares the embedding's weights.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    gated: bool
    fused_attention: bool
    positions: int = 0
    tied: bool = False

    @property
    def _kv_width(self) -> int:
        return self.hidden * self.kv_heads // self.heads

    @property
    def layer_weights(self) -> int:
        """Entries of the matrices of a layer: each is multiplied once per token."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self._kv_width
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: matrices, norms, and biases where it has any."""
        if self.gated:
            return self.layer_weights + 2 * self.hidden
        biases = 2 * self.hidden + 2 * self._kv_width + self.ffn + self.hidden
        return self.layer_weights + 4 * self.hidden + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters ahead of the layers."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters after the layers: the last norm, and the head if it has weights of its own."""
        norm = self.hidden * (1 if self.gated else 2)
        return norm + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    def linear_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer's matrices, forward: two per entry and token."""
        return 2 * batch * sequence * self.layer_weights

    def attention_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer's attention itself, forward: scores and their product with the values."""
        return 4 * batch * sequence * sequence * self.hidden

    def head_flops(self, batch: int, sequence: int) -> int:
        """Operations of the head, forward."""
        return 2 * batch * sequence * self.hidden * self.vocabulary

    def layer_forward_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer, forward."""
        return self.linear_flops(batch, sequence) + self.attention_flops(batch, sequence)

    def layer_backward_flops(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Operations of a layer, backward, with what is computed anew.

        Twice the forward; a fused attention computes its scores anew in any case (2.5 times its forward: Dao, arXiv
        2307.08691, section 4.1), and has nothing left to be recomputed selectively.
        """
        linear, attention = self.linear_flops(batch, sequence), self.attention_flops(batch, sequence)
        backward = 2 * linear + (attention * 5 // 2 if self.fused_attention else 2 * attention)
        if recompute == "full":
            return backward + linear + attention
        return backward + (attention if recompute == "selective" and not self.fused_attention else 0)

    def model_flops(self, batch: int, sequence: int) -> int:
        """Operations that a step needs without recomputation: three times the forward. The M of MFU."""
        return 3 * (self.layers * self.layer_forward_flops(batch, sequence) + self.head_flops(batch, sequence))

    def activation_bytes(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Bytes a layer keeps from forward to backward in 16 bit, over all tensor-parallel ranks together.

        Divided by their number with sequence parallelism. GPT: 34 sbh + 5 as²b, of which selective recomputation
        keeps the first term and full recomputation the layer's input, 2 sbh (arXiv 2205.05198, table 2). Gated, with
        fused attention: (12 h + 4 h kv/heads + 8 ffn) per token, as the CrossPipe authors' simulator counts
        (``C-TC/Megatron-LM``, branch crossdc); a fused SwiGLU keeps 6 ffn.
        """
        tokens = batch * sequence
        if recompute == "full":
            return 2 * tokens * self.hidden
        if self.gated:
            linear = tokens * (12 * self.hidden + 4 * self._kv_width + 8 * self.ffn)
        else:
            linear = tokens * (14 * self.hidden + 4 * self._kv_width + 4 * self.ffn)
        kept = recompute == "none" and not self.fused_attention
        return linear + (5 * self.heads * sequence * tokens if kept else 0)


LLAMA_2_13B = Transformer(
    name="Llama-2 13B", layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824, vocabulary=32000, gated=True,
    fused_attention=True,
)  # fmt: skip
"""Touvron et al., arXiv 2307.09288; sizes as in the released configuration."""

LLAMA_2_70B = Transformer(
    name="Llama-2 70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocabulary=32000, gated=True,
    fused_attention=True,
)  # fmt: skip
"""The same; grouped keys and values."""

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
