"""The pipeline of a model, as if it had been measured: made of shapes, a device's figures and a network.

Without a network, messages take no time, receives are posted ahead and nothing follows the last backward. Over one,
transfers block as Megatron's do: grouped, or, of interleaved stages, at the end of each action, which then takes so
much longer: ``send_forward_backward_recv_forward_backward`` waits for all four, and what goes to the next and to the
previous stage leaves through one port. That these batches wait for nothing but their messages is what their replay as
``grouped`` shows. Each tensor-parallel rank sends its share. After the last backward gradients are reduced and the
optimizer steps.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import UnsupportedShape
from tracetool.estimates.layer_costs import BYTES, CurveCosts, Passes, TimedCosts
from tracetool.estimates.memory import GRADIENT_BYTES, WEIGHT_BYTES, held, kept_bytes, static_bytes, transient_bytes
from tracetool.estimates.training import WithinNode, hops_of
from tracetool.estimates.transport import placed
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile, TailPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.form import HeldMost
    from tracetool.estimates.memory import Held
    from tracetool.estimates.timings import LayerTimings
    from tracetool.estimates.training import Group, Training, Transport
    from tracetool.estimates.transformer import Transformer
    from tracetool.model.schedule import PipelineShape
    from tracetool.network.file import NetworkChoice
    from tracetool.replays.flow import Int64s

_ADAM_BYTES = 54
"""Read and written per parameter in a step of mixed precision (Megatron-LM): gradients checked and scaled (8), their
norm (4), clipped (8) and set to zero (4); gradient, master weight and moments read (16), the last three written (12),
and the weight (2)."""


def transports_of(device: Accelerator, training: Training, choice: NetworkChoice | None) -> tuple[Transport, ...]:
    """What carries a job's collectives and messages, of each sort of its pipelines.

    Raises:
        BadTopology: If the job does not fit on the network.
    """
    if choice is None:
        return (WithinNode(device.tensor_bandwidth_bytes_per_s, training.tensor),)
    return placed(choice, training.degrees)


def analytical_pipeline(
    model: Transformer,
    device: Accelerator,
    training: Training,
    choice: NetworkChoice | None = None,
    timings: LayerTimings | None = None,
) -> Pipeline:
    """The pipeline of a model, with its order: the first of unlike ones; what passes links between places is on those.

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
        UnsupportedShape: If its schedule does not exist for its shape.
    """
    training.check(model, device)
    made = JobCosts(model, device, training, transports_of(device, training, choice)[0], timings)
    return pipeline_of(training, made, messages=choice is not None)


def pipeline_of(training: Training, costs: JobCosts, *, messages: bool = True) -> Pipeline:
    """The pipeline of a job.

    Args:
        training: How it is trained.
        costs: Its costs.
        messages: Whether messages and collectives take time.

    Raises:
        UnsupportedShape: If its schedule does not exist for its shape.
    """
    stages = tuple(costs.profile(stage) for stage in range(training.shape.stages))
    ranks = tuple(costs.rank(rank, messages=messages) for rank in range(training.stages))
    return Pipeline(stages, ranks, training.order, training.mode if messages else "posted-ahead", step=0)


class StageTimes(NamedTuple):
    """Of one microbatch on a stage, in ns.

    Attributes:
        forward_ns: Forward.
        backward_ns: Whole backward.
        weight_ns: Of it, the gradients of weights.
        to_next_ns: Its message to the next stage, where that does not hold up its actions.
        to_previous_ns: The one to the stage before.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int
    to_next_ns: int
    to_previous_ns: int


class ModelParts(NamedTuple):
    """What the parts of a model take."""

    ahead: Passes
    layer: Passes
    head: Passes


def parts_of(costs: CurveCosts | TimedCosts) -> ModelParts:
    """What the parts of a model take by costs of layers."""
    return ModelParts(costs.ahead(), costs.layer(), costs.head())


RankPlace = tuple[bool, bool]
"""Whether the first stage and the last one are among a rank's."""


class _Seats(NamedTuple):
    """Which rank has which stage: per rank its stages and whether the first and last are among them, per stage the hop.

    A hop is named by the first of two neighbouring ranks, of the last and the first one by the last; None
    within one rank: of ``hops_of`` that is the last row.
    """

    stages: tuple[tuple[int, ...], ...]
    hops: tuple[int | None, ...]
    hop_rows: Int64s
    places: tuple[RankPlace, ...]
    unlike: Mapping[RankPlace, int]


@lru_cache(maxsize=1024)
def _seats(shape: PipelineShape) -> _Seats:
    import numpy as np

    ranks = [shape.rank_of(stage) for stage in range(shape.stages)]
    hops = [None if a == b else min(a, b) if abs(a - b) == 1 else max(a, b) for a, b in pairwise(ranks)]
    stages = tuple(map(shape.stages_of, range(shape.ranks)))
    places = tuple((0 in of_rank, shape.stages - 1 in of_rank) for of_rank in stages)
    rows = np.array([-1 if hop is None else hop for hop in hops], np.int64)
    return _Seats(stages, tuple(hops), rows, places, {place: rank for rank, place in enumerate(places)})


def message_bytes(model: Transformer, training: Training) -> int:
    """The hidden state of a microbatch, over all tensor-parallel ranks together."""
    return BYTES * training.batch * training.sequence * model.hidden // training.context


class JobCosts:
    """Stages and ranks of one job.

    Args:
        model: The model.
        device: What it is trained on.
        training: How.
        transport: What carries collectives and messages.
        timings: Layer timings, in place of the device's curve.
        parts: What layers take, where that was worked out before.
        hops: What messages take (``hops_of``), likewise.
    """

    def __init__(
        self,
        model: Transformer,
        device: Accelerator,
        training: Training,
        transport: Transport,
        timings: LayerTimings | None = None,
        parts: ModelParts | None = None,
        hops: Int64s | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._training = training
        self._transport = transport
        self._last = training.stages * training.chunks - 1
        self._slow: tuple[float, ...] = ()
        self._seats = _seats(training.shape)
        self._timed = None if timings is None else TimedCosts(model, training, timings)
        parts = parts or parts_of(self._timed or CurveCosts(model, device, training, transport))
        self._layers = parts.layer.times(model.layers // (self._last + 1))
        self._ahead = parts.ahead
        self._holds: dict[RankPlace, tuple[Held, int]] = {}
        self._tails: dict[RankPlace, tuple[TailPart, ...]] = {}
        self._head = parts.head if training.has_head else Passes(0, 0)
        self._hops = hops
        self.payload = message_bytes(model, training)

    def slowed(self, factors: Sequence[float]) -> JobCosts:
        """The same where the actions of each pipeline rank take so many times as long."""
        other = copy(self)
        other._slow = tuple(factors)
        return other

    @cached_property
    def _messages(self) -> Int64s:
        if self._hops is not None:
            return self._hops
        return hops_of(self._transport, self.payload // self._training.tensor, self._training.stages)

    def _message_ns(self, stage: int) -> int:
        """What the message from a stage to the next takes: of each tensor-parallel rank its share."""
        hop = self._seats.hops[stage]
        if hop is None:
            return 0
        return self._transport.message_ns(self.payload // self._training.tensor, hop) or 0

    def _takes(self, stage: int) -> Passes:
        """What a stage computes."""
        takes = self._layers + self._head if stage == self._last else self._layers
        takes = takes + self._ahead if stage == 0 else takes
        return takes.times(self._slow[self._training.shape.rank_of(stage)]) if self._slow else takes

    def of(self, stage: int) -> StageTimes:
        """A stage's times."""
        takes = self._takes(stage)
        to_next = 0 if stage == self._last else self._message_ns(stage)
        to_previous = 0 if stage == 0 else self._message_ns(stage - 1)
        waits = self._waits
        return StageTimes(
            round(takes.forward_ns) + (to_next if waits else 0),
            round(takes.backward_ns) + (to_previous if waits else 0),
            round(takes.weight_ns),
            0 if waits else to_next,
            0 if waits else to_previous,
        )

    @cached_property
    def _waits(self) -> bool:
        return self._training.messages_hold_up

    def figures(self) -> Int64s:
        """Times of all stages as a form's table has them: none, then ``form.FIGURES`` of each stage."""
        import numpy as np

        computes, hops = self._computes(), self._messages[self._seats.hop_rows]
        messages = np.zeros((len(computes), 4), np.int64)
        if self._waits:
            computes[:-1, 0] += hops[:, 0]
            computes[1:, 1:3] += hops[:, :1]
        else:
            messages[:-1, :2] = messages[1:, 2:] = hops[:, 1:]
        return np.concatenate([np.zeros(1, np.int64), np.hstack([computes, messages]).ravel()])

    def _computes(self) -> Int64s:
        """Forward, backward, its half for the input, and that for weights, of every stage."""
        import numpy as np

        # Stages between the first and the last one are equal where all ranks are as fast.
        unlike = range(self._last + 1) if self._slow else sorted({0, min(1, self._last), self._last})
        rows = []
        for takes in map(self._takes, unlike):
            forward, backward, weight = map(round, (takes.forward_ns, takes.backward_ns, takes.weight_ns))
            rows.append((forward, backward, backward - weight, weight))
        counts = [1, self._last - 1, 1] if len(rows) == 3 else [1] * len(rows)
        return np.repeat(np.array(rows, np.int64), counts, axis=0)

    def _link_ns(self, stage: int) -> tuple[int, int] | None:
        """The message to the next stage over a link between places, where it does not hold up actions."""
        hop = self._seats.hops[stage]
        if hop is None or self._waits:
            return None
        return self._transport.link_ns(self.payload // self._training.tensor, hop)

    def kept_bytes(self) -> int:
        """What a microbatch keeps of a stage on one device."""
        return self._model.layers // (self._last + 1) * kept_bytes(self._model, self._training)

    def profile(self, stage: int) -> StageProfile:
        """A stage's costs."""
        training, is_last, kept = self._training, stage == self._last, self.kept_bytes()
        times, beyond = self.of(stage), transient_bytes(self._model, training, is_last=is_last)
        costs = {
            ActionKind.FORWARD: ActionCost(times.forward_ns, kept, kept + beyond),
            ActionKind.BACKWARD: ActionCost(times.backward_ns, -kept, beyond),
        }
        if self._is_split:
            # What a microbatch keeps stays whole until its weights' gradients are made.
            costs[ActionKind.BACKWARD_INPUT] = ActionCost(times.backward_ns - times.weight_ns, 0, beyond)
            costs[ActionKind.BACKWARD_WEIGHT] = ActionCost(times.weight_ns, -kept, beyond)
        return StageProfile(
            stage,
            {kind: (cost,) * training.microbatches for kind, cost in costs.items()},
            forward_payload_bytes=None if is_last else self.payload,
            backward_payload_bytes=None if stage == 0 else self.payload,
            forward_transfer_ns=0 if is_last or self._link_ns(stage) else times.to_next_ns,
            backward_transfer_ns=0 if stage == 0 or self._link_ns(stage - 1) else times.to_previous_ns,
            evidence="model",
        )

    @cached_property
    def _is_split(self) -> bool:
        split = any(
            action.kind is ActionKind.BACKWARD_INPUT for order in self._training.order.orders for action in order
        )
        if split and self._timed is not None:
            raise UnsupportedShape(
                f"{self._training.order_name} splits backwards, and layer timings have them whole.",
                hint="take 1f1b, or the device's curve",
            )
        return split

    def rank(self, rank: int, *, messages: bool) -> RankProfile:
        """What belongs to a pipeline rank."""
        return RankProfile(rank=rank, static_bytes=self.static_bytes(rank), tail=self.tail(rank) if messages else ())

    def _holding(self, stage: int) -> tuple[Held, int]:
        """Parameters of a stage on one device, and its static bytes: those between first and last are equal."""
        place = stage == 0, stage == self._last
        if place not in self._holds:
            has = held(self._model, self._training, stage)
            self._holds[place] = has, static_bytes(has, self._training)
        return self._holds[place]

    def static_bytes(self, rank: int) -> int:
        """Weights, gradients and optimizer of one device of a pipeline rank."""
        return sum(self._holding(stage)[1] for stage in self._seats.stages[rank])

    def peaks_bytes(self, held: Sequence[HeldMost]) -> tuple[int, ...]:
        """Highest allocation of each pipeline rank, which holds so much of microbatches."""
        kept = self.kept_bytes()
        inside, last = (transient_bytes(self._model, self._training, is_last=is_last) for is_last in (False, True))
        static = {place: self.static_bytes(rank) for place, rank in self._seats.unlike.items()}
        return tuple(
            static[self._seats.places[rank]]
            + max(most.inside * kept + inside if most.inside else 0, most.last * kept + last if most.last else 0)
            for rank, most in enumerate(held)
        )

    def tails_by_place_ns(self) -> dict[RankPlace, int]:
        """What pipeline ranks do after their last backward, in all."""
        return {place: sum(part.duration_ns for part in self.tail(rank)) for place, rank in self._seats.unlike.items()}

    def tail(self, rank: int) -> tuple[TailPart, ...]:
        """Gradient reduction and optimizer of a pipeline rank: those without first and last stage are equal."""
        place = self._seats.places[rank]
        if place not in self._tails:
            self._tails[place] = self._tail(self._seats.stages[rank])
        return self._tails[place]

    def _tail(self, stages: Sequence[int]) -> tuple[TailPart, ...]:
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
