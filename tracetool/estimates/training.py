"""How a model is trained, and what its ranks say to each other: over a network, or within a node alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from tracetool.errors import ScenarioError, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BLOCKING, NO_OVERLAP
from tracetool.model.schedule import PipelineShape
from tracetool.network.placement import Degrees, narrowed_rule
from tracetool.schedules import REFERENCE, REFERENCE_OF_CHUNKS, build_schedule, kind_of

if TYPE_CHECKING:
    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.transformer import Recompute, Transformer
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.network.collectives import Kind
    from tracetool.network.file import NetworkChoice
    from tracetool.replays.flow import Int64s


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained on devices.

    Attributes:
        tensor: Tensor-parallel ranks per stage.
        stages: Pipeline ranks; each has ``chunks`` stages, all of equally many layers.
        microbatches: Microbatches per step and pipeline.
        batch: Sequences per microbatch.
        sequence: Tokens per sequence.
        efficiency_ratio: Share of the peak that a whole wave of long matrix products reaches.
        recompute: What the backward computes anew.
        has_head: Whether the last stage computes the head; without, all stages are equal.
        sequence_parallel: Whether tensor-parallel ranks share what lies between matrix products (norms, dropout) along
            the sequence, too.
        context: Context-parallel ranks: each has its part of every sequence.
        chunks: Stages per pipeline rank, interleaved.
        data: Data-parallel ranks.
        expert: Expert-parallel ranks, among the data-parallel ones.
        sharded_optimizer: Whether data-parallel ranks share the state of the optimizer (ZeRO stage 1).
        overlap_reduction: Whether the reduction of gradients runs beside the last microbatch's backward.
        schedule: Order of each rank's actions, by name; by default 1F1B, or interleaved of several chunks.
        extra_forwards: Warm-up forwards of each pipeline rank beyond 1F1B's, of schedules that have any.
        p2p: How messages between stages are issued; by default as Megatron-LM and torch issue those of the schedule.
        overlap: How layers run collectives of tensor parallelism beside their products (``estimates.layer_overlap``).
    """

    tensor: int
    stages: int
    microbatches: int
    batch: int
    sequence: int
    efficiency_ratio: float
    recompute: Recompute = "none"
    has_head: bool = True
    sequence_parallel: bool = True
    context: int = 1
    chunks: int = 1
    data: int = 1
    expert: int = 1
    sharded_optimizer: bool = False
    overlap_reduction: bool = False
    schedule: str = ""
    extra_forwards: tuple[int, ...] = ()
    p2p: P2PMode | None = None
    overlap: str = NO_OVERLAP

    @property
    def order(self) -> Schedule:
        """The order of each rank's actions.

        Raises:
            UnknownName: If there is no such schedule.
            UnsupportedShape: If it does not exist for this shape, or holds the model twice.
        """
        return order_of(self.order_name, self.stages, self.chunks, self.microbatches, self.extra_forwards)

    @property
    def shape(self) -> PipelineShape:
        """Ranks, stages and microbatches of one pipeline."""
        return _shape(self.order_name, self.stages, self.chunks, self.microbatches)

    @property
    def order_name(self) -> str:
        """The schedule by name."""
        return self.schedule or default_order(self.chunks)

    @property
    def messages_hold_up(self) -> bool:
        """Whether each action ends with the messages behind it: interleaved stages in blocking batches."""
        return holds_up(self.order_name, self.p2p)

    @property
    def mode(self) -> P2PMode:
        """How replay issues messages over a network."""
        if self.messages_hold_up:
            return "per-edge"
        return self.p2p or ("grouped" if self.order.blocking else "in-order")

    @property
    def devices(self) -> int:
        """Devices of the job."""
        return self.tensor * self.context * self.stages * self.data

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.batch * self.microbatches * self.data

    @property
    def degrees(self) -> Degrees:
        """How wide it is along each dimension."""
        return Degrees(tp=self.tensor, cp=self.context, dp=self.data, pp=self.stages, ep=self.expert)

    def check(self, model: Transformer, device: Accelerator) -> None:
        """Refuse what cannot be.

        Raises:
            ScenarioError: If something does not divide, or a figure is not positive.
        """
        for what, count, parts, name in (
            ("layers", model.layers, self.stages * self.chunks, "stages"),
            ("heads", model.heads, self.tensor, "tensor-parallel ranks"),
            ("experts", model.experts.count if model.experts else 0, self.expert, "expert-parallel ranks"),
            ("data-parallel ranks", self.data, self.expert, "expert-parallel groups"),
            ("tokens", self.sequence, self.context, "context-parallel ranks"),
        ):
            if parts > 0 and count % parts:
                raise ScenarioError(
                    f"{model.name} has {count} {what}, which do not divide into {parts} {name}.",
                    hint=f"choose a number of {name} that divides the {what}",
                )
        sizes = (self.tensor, self.stages, self.microbatches, self.batch, self.sequence, self.context, self.chunks)
        if min(*sizes, self.data, self.expert, device.peak_flops) <= 0:
            raise ScenarioError(f"{model.name} on {device.name}: peak and sizes must be more than 0.")
        if not 0 < self.efficiency_ratio <= 1:
            raise ScenarioError(
                f"an efficiency of {self.efficiency_ratio:.0%} is none of {device.name}.",
                hint="it is the share of the peak that long products reach: between 0 and 100 %",
            )
        if model.heads % model.kv_heads:
            raise ScenarioError(
                f"{model.name} has {model.heads} heads, which do not share {model.kv_heads} heads of keys and values.",
                hint="choose kv_heads that divide the heads",
            )
        if model.experts is not None and model.experts.top > model.experts.count:
            raise ScenarioError(
                f"{model.name} has {model.experts.count} experts, and each token goes to {model.experts.top}.",
                hint="choose a top of at most count",
            )
        if self.expert > 1 and model.experts is None:
            raise ScenarioError(f"{model.name} has no experts to share among {self.expert} expert-parallel ranks.")


def default_order(chunks: int) -> str:
    """The schedule of so many stages per rank where none is named."""
    return REFERENCE if chunks == 1 else REFERENCE_OF_CHUNKS


def holds_up(name: str, p2p: P2PMode | None) -> bool:
    """Whether each action of a schedule ends with the messages behind it, where they are issued so."""
    return name == REFERENCE_OF_CHUNKS and (p2p is None or p2p in BLOCKING)


@lru_cache(maxsize=4096)
def _shape(name: str, stages: int, chunks: int, microbatches: int) -> PipelineShape:
    return PipelineShape(stages, microbatches, chunks, kind_of(name).placement if chunks > 1 else "loop")


@lru_cache(maxsize=512)
def order_of(name: str, stages: int, chunks: int, microbatches: int, extra: tuple[int, ...] = ()) -> Schedule:
    """The order of a schedule for a shape.

    Raises:
        UnknownName: If there is no such schedule.
        UnsupportedShape: If it does not exist for this shape, holds the model twice, or is made from costs.
    """
    kind = kind_of(name)
    if kind.placement == "bidirectional":
        raise UnsupportedShape(
            f"{name} holds every stage twice, and what summing the gradients of both takes is not modelled.",
            hint="take a schedule with one copy, as dualpipev",
        )
    if kind.needs_costs:
        raise UnsupportedShape(f"{name} is made from costs, and shapes name orders alone.", hint="take another one")
    return build_schedule(name, _shape(name, stages, chunks, microbatches), extra_forwards=extra or None)


class OrderTraits(NamedTuple):
    """What orders of a schedule have in common, whatever their shape.

    Attributes:
        blocks: Whether they are meant for blocking transfers.
        splits: Whether backwards run in halves.
    """

    blocks: bool
    splits: bool


@lru_cache(maxsize=256)
def traits_of(name: str, chunks: int) -> OrderTraits:
    """Those of a schedule, read from a small order of it.

    Raises:
        UnsupportedShape: If it has none of so many stages per rank, holds the model twice, or is made from costs.
    """
    small = order_of(name, 2, chunks, 8)
    splits = any(action.kind is ActionKind.BACKWARD_INPUT for order in small.orders for action in order)
    return OrderTraits(small.blocking, splits)


Group = Literal["tp", "cp", "ep", "gradients", "expert_gradients"]
"""Ranks that have collectives together: along a dimension, or those that share a parameter, of experts or of others."""


class CollectiveTransport(Protocol):
    """What carries collectives."""

    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:
        """What a collective of the first such group takes, of that much over all its ranks."""

    def exchange_ns(self, group: Group, payload_bytes: int) -> int:
        """What a rank's send to one other rank of such a group and its receive from another take, of that much each."""

    def collective_blocks(self, group: Group) -> int:
        """Thread blocks, each on an SM, that collectives of such a group hold on a device; 0 if that is not known."""


class Transport(CollectiveTransport, Protocol):
    """What carries collectives and messages."""

    @property
    def places(self) -> tuple[int, ...]:
        """The place of each pipeline rank, where messages between two places pass a link; else none."""

    def message_ns(self, payload_bytes: int, rank: int) -> int | None:
        """What a message from a pipeline rank to the next one takes, from the last to the first; None for no time."""

    def link_ns(self, payload_bytes: int, rank: int) -> tuple[int, int] | None:
        """What it occupies the link between two places for, and that link's latency; None inside one place."""


def hops_of(transport: Transport, payload_bytes: int, ranks: int) -> Int64s:
    """Messages from each pipeline rank to the next, from the last to the first, and to itself.

    Args:
        transport: What carries them.
        payload_bytes: Of one.
        ranks: How many there are.

    Returns:
        What each takes; of that what it occupies, over a link between places its link, and that link's latency.
    """
    import numpy as np

    rows = np.zeros((ranks + 1, 3), np.int64)
    for rank in range(ranks if ranks > 1 else 0):
        takes = transport.message_ns(payload_bytes, rank) or 0
        rows[rank] = (takes, *(transport.link_ns(payload_bytes, rank) or (takes, 0)))
    return rows


@dataclass(frozen=True, slots=True)
class WithinNode:
    """No network: tensor-parallel ranks sit in one node, as do all others; only collectives among the first take time.

    Attributes:
        bandwidth_bytes_per_s: What a device sends to the others of its node.
        tensor: Tensor-parallel ranks.
    """

    bandwidth_bytes_per_s: int
    tensor: int

    @property
    def places(self) -> tuple[int, ...]:
        """None: all are in one."""
        return ()

    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:
        """A ring: V (n - 1) / n, twice that of an all-reduce."""
        if group != "tp" or self.tensor == 1:
            return 0
        if self.bandwidth_bytes_per_s <= 0:
            raise ScenarioError(
                "nothing says how fast tensor-parallel ranks reach each other.", hint="give a network, or a bandwidth"
            )
        rounds = 2 if kind == "allreduce" else 1
        share = (self.tensor - 1) / self.tensor
        return round(rounds * payload_bytes * share / self.bandwidth_bytes_per_s * 1e9)

    def exchange_ns(self, group: Group, payload_bytes: int) -> int:  # noqa: ARG002 - as any group's
        """At the bandwidth."""
        return round(payload_bytes / self.bandwidth_bytes_per_s * 1e9)

    def collective_blocks(self, group: Group) -> int:  # noqa: ARG002 - nothing says
        """Not known."""
        return 0

    def message_ns(self, payload_bytes: int, rank: int) -> int | None:  # noqa: ARG002 - none takes any time
        """No time."""
        return None

    def link_ns(self, payload_bytes: int, rank: int) -> tuple[int, int] | None:  # noqa: ARG002 - one place
        """All in one place."""
        return None


def fitting(choice: NetworkChoice, degrees: Degrees) -> NetworkChoice:
    """The tiers that a job reaches over, where its placement asks for no others: jobs of one file differ in size."""
    tiers = choice.network.tiers
    number = next((number for number, tier in enumerate(tiers) if tier.size >= degrees.ranks), len(tiers) - 1)
    beyond = {tier.name for tier in tiers[number + 1 :]}
    rule = None if choice.file else narrowed_rule(choice.placement, degrees, beyond)
    if rule is None:
        return choice
    return replace(choice, placement=rule, network=replace(choice.network, tiers=tiers[: number + 1]))


def widened(choice: NetworkChoice, ranks: int) -> NetworkChoice:
    """The same network with an outermost tier that holds so many ranks."""
    *inner, outer = choice.network.tiers
    if outer.size >= ranks:
        return choice
    unit = inner[-1].size if inner else 1
    wide = replace(outer, size=-(-ranks // unit) * unit)
    return replace(choice, network=replace(choice.network, tiers=(*inner, wide)))
