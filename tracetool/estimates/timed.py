"""The pipeline of a plan whose layers were timed one by one, as DeepSpeed's pipeline engine runs it.

What the engine does (DeepSpeed ``runtime/pipe/engine.py``, in the fork that the plans ran on): 1F1B, each send and
receive by itself and blocking, a message holds the whole hidden state in 32 bit; gradients add up over microbatches in
memory; after a barrier of all ranks each data-parallel group reduces its gradients in buckets of 500 million entries,
copied together and back, none of it beside the backward; then the optimizer steps. The loss is no layer of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.estimates.runtimes import BYTES, OUTSIDE_BYTES, PARAMETER_BYTES, RuntimeModel
from tracetool.estimates.transport import placed
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile, TailPart
from tracetool.model.schedule import PipelineShape
from tracetool.network.placement import Degrees
from tracetool.schedules import REFERENCE, build_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.estimates.timings import LayerTimes, LayerTimings
    from tracetool.estimates.training import Transport
    from tracetool.network.file import NetworkChoice

HBM_BYTES_PER_S = 3.2e12
"""What reading and writing memory reaches: four fifths of the 4 TB/s of HBM3 in NVIDIA's GH200 data sheet."""
_LOSS_PASSES = (8, 3)
"""How often the loss goes through its logits, forward (``vocab_parallel_cross_entropy``: maximum, difference, exponent,
sum and share, each read and most written) and backward."""
_COPIED = 8
"""How often gradients are read or written for their reduction: copied together, divided, reduced, copied back."""
_ADDED = 3
"""How often they are for each microbatch after the first: two read, one written."""
_BUCKET_ENTRIES = 500_000_000
_SEGMENT_BYTES, _SMALL_BYTES, _ROUNDED_BYTES = 20 << 20, 10 << 20, 2 << 20
"""torch's allocator: blocks below the second come from segments of the first, larger ones are rounded to the third."""


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A plan: a model cut into stages, and how many devices share what.

    Attributes:
        tensor: Tensor-parallel ranks.
        data: Data-parallel ranks.
        batch: Sequences per microbatch.
        microbatches: Microbatches per step and pipeline.
        layers: Of each stage, embedding and head counted as layers.
    """

    tensor: int
    data: int
    batch: int
    microbatches: int
    layers: tuple[int, ...]

    @property
    def degrees(self) -> Degrees:
        """How wide it is along each dimension."""
        return Degrees(tp=self.tensor, dp=self.data, pp=len(self.layers))


def timed_pipeline(model: RuntimeModel, plan: TimedPlan, timings: LayerTimings, choice: NetworkChoice) -> Pipeline:
    """The pipeline of a plan.

    Raises:
        ScenarioError: If the file of timings has none for it, or it cannot be cut so.
        BadTopology: If it does not fit on the network.
    """
    stages = len(plan.layers)
    if min(plan.layers) < 1 or (stages == 1 and plan.layers[0] < 2):
        raise ScenarioError("a stage has no layers; embedding and head count as one each.")
    transport, *_ = placed(choice, plan.degrees)
    made = _TimedStages(model, plan, timings, transport)
    order = build_schedule(REFERENCE, PipelineShape(stages, plan.microbatches))
    return Pipeline(
        tuple(made.profile(stage) for stage in range(stages)),
        tuple(made.rank(stage) for stage in range(stages)),
        order, "blocking", step=0,
    )  # fmt: skip


class _TimedStages:
    """Stages of one plan; each is a pipeline rank."""

    def __init__(self, model: RuntimeModel, plan: TimedPlan, timings: LayerTimings, transport: Transport) -> None:
        self._model = model
        self._plan = plan
        self._transport = transport
        self._rows = timings.of(model.name, plan.tensor, plan.batch)
        self._last = len(plan.layers) - 1

    def _between(self, stage: int) -> int:
        """Layers of a stage without embedding and head."""
        return self._plan.layers[stage] - (stage == 0) - (stage == self._last)

    def _sum_s(self, stage: int, of: Callable[[LayerTimes], float]) -> float:
        """A figure of the timings over a stage's layers, of which those between embedding and head are equal."""
        layer = median(map(of, self._rows[1:-1]))
        ends = (of(self._rows[0]) if stage == 0 else 0.0) + (of(self._rows[-1]) if stage == self._last else 0.0)
        return self._between(stage) * layer + ends

    def parameters(self, stage: int) -> int:
        """Parameters of a stage on one device."""
        model = self._model
        ends = (model.embedding_parameters if stage == 0 else 0) + (model.head_parameters if stage == self._last else 0)
        return (self._between(stage) * model.layer_parameters + ends) // self._plan.tensor

    def profile(self, stage: int) -> StageProfile:
        """A stage's costs."""
        plan, model = self._plan, self._model
        logits = model.logits_bytes(plan.batch, plan.tensor) if stage == self._last else 0
        forward = self._sum_s(stage, attrgetter("forward_s")) + _LOSS_PASSES[0] * logits / HBM_BYTES_PER_S
        backward = self._sum_s(stage, attrgetter("backward_s")) + _LOSS_PASSES[1] * logits / HBM_BYTES_PER_S
        added = _ADDED * BYTES * self.parameters(stage) / HBM_BYTES_PER_S
        kept = self._kept_bytes(stage)
        # Gradients of the probabilities and of the scores.
        beyond = 2 * _allocated(model.scores_bytes(plan.batch, plan.tensor))
        payload = model.state_bytes(plan.batch)

        def cost(seconds: float, held: int, peak: int) -> ActionCost:
            return ActionCost(round(seconds * 1e9), held, peak)

        later = (cost(backward + added, -kept, beyond),) * (plan.microbatches - 1)
        return StageProfile(
            stage,
            {
                ActionKind.FORWARD: (cost(forward, kept, kept + beyond),) * plan.microbatches,
                ActionKind.BACKWARD: (cost(backward, -kept, beyond), *later),
            },
            forward_payload_bytes=None if stage == self._last else payload,
            backward_payload_bytes=None if stage == 0 else payload,
            forward_transfer_ns=0 if stage == self._last else self._transport.message_ns(payload, stage) or 0,
            backward_transfer_ns=0 if stage == 0 else self._transport.message_ns(payload, stage - 1) or 0,
            evidence="model",
        )

    def _kept_bytes(self, stage: int) -> int:
        """What a microbatch keeps on a rank: hidden states and probabilities by layer, and of the head two logits."""
        plan, model = self._plan, self._model
        state = _allocated(model.state_bytes(plan.batch))
        scores = _allocated(model.scores_bytes(plan.batch, plan.tensor))
        states = model.kept_whole + model.kept_shared / plan.tensor
        kept = self._between(stage) * (round(states * state) + scores)
        if stage == self._last:
            kept += 2 * state + 2 * _allocated(model.logits_bytes(plan.batch, plan.tensor))
        return kept

    def rank(self, stage: int) -> RankProfile:
        """What belongs to a rank: its state, and what follows the last backward."""
        plan = self._plan
        parameters = self.parameters(stage)
        gradients = BYTES * parameters
        buckets, rest = divmod(gradients, BYTES * _BUCKET_ENTRIES)
        reduced = sum(
            self._transport.collective_ns("allreduce", "gradients", size)
            for size in (*(BYTES * _BUCKET_ENTRIES,) * buckets, rest)
            if size
        )
        reduced += round(_COPIED * gradients / HBM_BYTES_PER_S * 1e9)
        outputs = 0
        if stage == self._last and plan.microbatches > 1:  # those of the microbatch before are still there
            outputs = _allocated(self._model.logits_bytes(plan.batch, plan.tensor))
        return RankProfile(
            rank=stage,
            static_bytes=PARAMETER_BYTES * parameters + outputs + OUTSIDE_BYTES + self._bucket_bytes(gradients),
            tail=(
                TailPart(ActionKind.REDUCE_GRAD, reduced, meet="barrier"),
                TailPart(ActionKind.OPTIMIZER, round(self._sum_s(stage, attrgetter("update_s")) * 1e9)),
            ),
        )

    def _bucket_bytes(self, gradients: int) -> int:
        """The bucket of gradients, where no block that activations leave is large enough: memory stays reserved."""
        bucket = min(gradients, BYTES * _BUCKET_ENTRIES)
        largest = _allocated(self._model.scores_bytes(self._plan.batch, self._plan.tensor))
        return 0 if bucket <= largest else _allocated(bucket)


def _allocated(size: int) -> int:
    """What the allocator takes for a block."""
    if size >= _SMALL_BYTES:
        return -(-size // _ROUNDED_BYTES) * _ROUNDED_BYTES
    return _SEGMENT_BYTES // max(1, _SEGMENT_BYTES // max(1, size)) if size > 1 << 20 else size
