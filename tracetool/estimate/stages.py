"""The pipeline of a model, as if it had been measured: made of shapes, a device's figures and a network.

Without a network, messages take no time, receives are posted ahead and nothing follows the last backward. Over one,
transfers block as Megatron's do: grouped, or, of interleaved stages, at the end of each action, which then takes so
much longer (``send_forward_backward_recv_forward_backward`` waits for all four); each tensor-parallel rank sends its
share. After the last backward gradients are reduced and the optimizer steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tracetool.estimate.layer_costs import BYTES, CurveCosts, Passes, TimedCosts
from tracetool.estimate.memory import GRADIENT_BYTES, WEIGHT_BYTES, held, kept_bytes, static_bytes, transient_bytes
from tracetool.estimate.training import WithinNode, placed
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile, TailPart
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import REFERENCE, REFERENCE_OF_CHUNKS, build_schedule

if TYPE_CHECKING:
    from tracetool.estimate.device import Accelerator
    from tracetool.estimate.memory import Held
    from tracetool.estimate.timings import LayerTimings
    from tracetool.estimate.training import Group, Training, Transport
    from tracetool.estimate.transformer import Transformer
    from tracetool.network.file import NetworkChoice

_ADAM_BYTES = 54
"""Read and written per parameter in a step of mixed precision (Megatron-LM): gradients checked and scaled (8), their
norm (4), clipped (8) and set to zero (4); gradient, master weight and moments read (16), the last three written (12),
and the weight (2)."""


def transport_of(device: Accelerator, training: Training, choice: NetworkChoice | None) -> Transport:
    """What carries a job's collectives.

    Raises:
        BadTopology: If the job does not fit on the network.
    """
    if choice is None:
        return WithinNode(device.tensor_bandwidth_bytes_per_s, training.tensor)
    return placed(choice, training.degrees)


def analytical_pipeline(
    model: Transformer,
    device: Accelerator,
    training: Training,
    choice: NetworkChoice | None = None,
    timings: LayerTimings | None = None,
) -> Pipeline:
    """The pipeline of a model, with its order: 1F1B, or interleaved.

    A message between stages is the hidden state of a microbatch once (2 bytes times batch, sequence and h), over all
    tensor-parallel ranks together.

    Args:
        model: The model.
        device: What it is trained on.
        training: How.
        choice: The network.
        timings: Layer timings, in place of the device's curve.

    Raises:
        ScenarioError: If something does not divide, or a figure is not positive.
        BadTopology: If the job does not fit on the network.
    """
    training.check(model, device)
    transport = transport_of(device, training, choice)
    made = JobCosts(model, device, training, transport, timings)
    order = schedule_of(training.stages, training.chunks, training.microbatches)
    stages = tuple(made.profile(stage) for stage in range(training.stages * training.chunks))
    ranks = tuple(made.rank(rank, messages=choice is not None) for rank in range(training.stages))
    if choice is None:
        return Pipeline(stages, ranks, order, "posted-ahead", step=0)
    return Pipeline(stages, ranks, order, "grouped" if training.chunks == 1 else "per-edge", step=0)


@lru_cache(maxsize=256)
def schedule_of(stages: int, chunks: int, microbatches: int) -> Schedule:
    """The order of a shape.

    Raises:
        UnsupportedShape: If it cannot be interleaved so.
    """
    shape = PipelineShape(stages, microbatches, chunks)
    return build_schedule(REFERENCE if chunks == 1 else REFERENCE_OF_CHUNKS, shape)


class StageTimes(NamedTuple):
    """Of one microbatch on a stage, in ns; messages to its neighbours, where they do not hold up its actions."""

    forward_ns: int
    backward_ns: int
    to_next_ns: int
    to_previous_ns: int


class JobCosts:
    """Stages and ranks of one job.

    Args:
        model: The model.
        device: What it is trained on.
        training: How.
        transport: What carries collectives and messages.
        timings: Layer timings, in place of the device's curve.
    """

    def __init__(
        self,
        model: Transformer,
        device: Accelerator,
        training: Training,
        transport: Transport,
        timings: LayerTimings | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._training = training
        self._transport = transport
        self._last = training.stages * training.chunks - 1
        self._timed = None if timings is None else TimedCosts(model, training, timings)
        costs = self._timed or CurveCosts(model, device, training, transport)
        self._layers = costs.layer().times(model.layers // (self._last + 1))
        self._ahead = costs.ahead()
        self._held: dict[tuple[bool, bool], tuple[Held, int]] = {}
        self._tails: dict[tuple[bool, bool], tuple[TailPart, ...]] = {}
        self._head = costs.head() if training.has_head else Passes(0, 0)
        self.payload = BYTES * training.batch * training.sequence * model.hidden // training.context

    def _message_ns(self, stage: int) -> int | None:
        """What the message from a stage to the next takes: of each tensor-parallel rank its share."""
        rank = stage % self._training.stages
        # Between chunks the last pipeline rank sends to the first one; any other pair stands for it.
        return self._transport.message_ns(self.payload // self._training.tensor, min(rank, self._training.stages - 2))

    def of(self, stage: int) -> StageTimes:
        """A stage's times."""
        training, is_last = self._training, stage == self._last
        takes = self._layers + self._head if is_last else self._layers
        takes = takes + self._ahead if stage == 0 else takes
        to_next = None if is_last or training.stages == 1 else self._message_ns(stage)
        to_previous = None if stage == 0 or training.stages == 1 else self._message_ns(stage - 1)
        waits = training.chunks > 1
        return StageTimes(
            round(takes.forward_ns) + ((to_next or 0) if waits else 0),
            round(takes.backward_ns) + ((to_previous or 0) if waits else 0),
            0 if waits else to_next or 0,
            0 if waits else to_previous or 0,
        )

    def kept_bytes(self) -> int:
        """What a microbatch keeps of a stage on one device."""
        return self._model.layers // (self._last + 1) * kept_bytes(self._model, self._training)

    def profile(self, stage: int) -> StageProfile:
        """A stage's costs."""
        training, is_last, kept = self._training, stage == self._last, self.kept_bytes()
        times, beyond = self.of(stage), transient_bytes(self._model, training, is_last=is_last)
        return StageProfile(
            stage,
            {
                ActionKind.FORWARD: (ActionCost(times.forward_ns, kept, kept + beyond),) * training.microbatches,
                ActionKind.BACKWARD: (ActionCost(times.backward_ns, -kept, beyond),) * training.microbatches,
            },
            forward_payload_bytes=None if is_last else self.payload,
            backward_payload_bytes=None if stage == 0 else self.payload,
            forward_transfer_ns=times.to_next_ns,
            backward_transfer_ns=times.to_previous_ns,
            evidence="model",
        )

    def rank(self, rank: int, *, messages: bool) -> RankProfile:
        """What belongs to a pipeline rank."""
        return RankProfile(rank=rank, static_bytes=self.static_bytes(rank), tail=self.tail(rank) if messages else ())

    def _stages(self, rank: int) -> range:
        return range(rank, self._last + 1, self._training.stages)

    def _holding(self, stage: int) -> tuple[Held, int]:
        """Parameters of a stage on one device, and its static bytes: those between first and last are equal."""
        place = stage == 0, stage == self._last
        if place not in self._held:
            has = held(self._model, self._training, stage)
            self._held[place] = has, static_bytes(has, self._training)
        return self._held[place]

    def static_bytes(self, rank: int) -> int:
        """Weights, gradients and optimizer of one device of a pipeline rank."""
        return sum(self._holding(stage)[1] for stage in self._stages(rank))

    def tail(self, rank: int) -> tuple[TailPart, ...]:
        """Gradient reduction and optimizer of a pipeline rank: those between first and last are equal."""
        place = rank == 0, rank == self._training.stages - 1
        if place not in self._tails:
            self._tails[place] = self._tail(self._stages(rank))
        return self._tails[place]

    def _tail(self, stages: range) -> tuple[TailPart, ...]:
        training = self._training
        parts = [self._holding(stage)[0] for stage in stages]
        shared, experts = sum(part.shared for part in parts), sum(part.experts for part in parts)
        reduced = self._reduction_ns(shared, "gradients") + self._reduction_ns(experts, "expert_gradients")
        if training.overlap_reduction:
            reduced = max(0, reduced - round(self._layers.backward_ns) * len(parts))
        stepped = shared + experts
        if training.sharded_optimizer:
            stepped = -(-stepped // (training.data * training.context))
        if self._timed is None:
            optimizer = round(self._device.memory_ns(_ADAM_BYTES * stepped))
        else:
            counted = self._model.layers // (self._last + 1) * len(parts) + (0 in stages) + (self._last in stages)
            optimizer = round(counted * self._timed.update_ns())
        tail = [TailPart(ActionKind.REDUCE_GRAD, reduced)] if training.data * training.context > 1 else []
        return (*tail, TailPart(ActionKind.OPTIMIZER, optimizer))

    def _reduction_ns(self, parameters: int, group: Group) -> int:
        """Gradients of so many parameters, over the ranks that share them."""
        training = self._training
        if training.data * training.context == 1 or not parameters:
            return 0
        if not training.sharded_optimizer:
            return self._transport.collective_ns("allreduce", group, GRADIENT_BYTES * parameters)
        return self._transport.collective_ns(
            "reducescatter", group, GRADIENT_BYTES * parameters
        ) + self._transport.collective_ns("allgather", group, WEIGHT_BYTES * parameters)
