"""What was measured of a pipeline: the costs of each stage, the memory of each rank, its transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.tables import results

if TYPE_CHECKING:
    from tracetool.model.action import CollectiveUse
    from tracetool.model.job import SortedPipelines
    from tracetool.model.load import SustainedLoad
    from tracetool.model.schedule import Schedule

P2PMode = results.P2PMode
P2P_MODES = results.P2P_MODES
P2P_MODE_NAMES = results.P2P_MODE_NAMES
BLOCKING: frozenset[P2PMode] = frozenset({"grouped", "blocking"})
"""Those for which compute waits."""
BY_EDGE: frozenset[P2PMode] = frozenset({"per-edge", "posted-ahead"})
"""Those with a communicator for each pair of ranks and direction."""


@dataclass(frozen=True, slots=True)
class ActionCost:
    """Cost of one action.

    Attributes:
        duration_ns: Compute time: kernels and the launch gaps between them, without waits.
        held_bytes: Device memory allocated when it ends minus when it starts; None if unknown.
        peak_bytes: Highest allocation while it runs, above the level at its start; None if unknown.
        uncontended_ns: The time without slowdown beside communication kernels that wait; None if unknown.
        contended_ns: The time with such a kernel beside it from start to end; None if unknown.
    """

    duration_ns: int
    held_bytes: int | None = None
    peak_bytes: int | None = None
    uncontended_ns: int | None = None
    contended_ns: int | None = None

    def holding(self, more_bytes: int) -> ActionCost:
        """The same with so many more bytes (fewer, if negative) allocated when it ends."""
        if self.held_bytes is None:
            return self
        held = self.held_bytes + more_bytes
        peak = None if self.peak_bytes is None else max(self.peak_bytes, held)
        return replace(self, held_bytes=held, peak_bytes=peak)


def sum_if_known(values: Sequence[int | None]) -> int | None:
    """Sum of times or sizes; None if one of them is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def max_if_known(values: Sequence[int | None]) -> int | None:
    """The largest; None if one of them is unknown, for that one may be larger, or if there is none."""
    known = [value for value in values if value is not None]
    return max(known, default=None) if len(known) == len(values) else None


Costs = Mapping[ActionKind, tuple[ActionCost, ...]]
"""Per kind, one cost per microbatch in microbatch order."""

Collectives = Mapping[ActionKind, "tuple[CollectiveUse, ...]"]
"""Per kind, the collectives that each action waits for."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A stage's costs by layer: together they are the costs of the stage, a whole backward always as B.

    Attributes:
        ahead: Of what is ahead of the layers in the model (embedding).
        layers: Of each layer, in model order.
        after: Of what is after them (final norm, head, loss).
    """

    ahead: Costs
    layers: tuple[Costs, ...]
    after: Costs


@dataclass(frozen=True, slots=True)
class Launch:
    """What launching an action takes, where hosts wait for their devices after each blocking batch of messages.

    Attributes:
        sync_ns: From the end of a batch to the action's first kernel.
        turn_ns: Host time from the last launch of the action before to its own first one, with no batch between.
        lag_ns: By how much its launches fall behind its kernels if both begin at once.
        issue_ns: Host time from its first launch to its last one.
    """

    sync_ns: int
    turn_ns: int
    lag_ns: int
    issue_ns: int


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Measured costs of one stage.

    Attributes:
        stage: Global (virtual) stage.
        costs: Per kind, one cost per microbatch in microbatch order.
        forward_payload_bytes: Bytes of one activation to the next stage; None if unknown.
        backward_payload_bytes: Bytes of one gradient to the previous stage; None if unknown.
        forward_transfer_ns: Measured time of that activation's transfer, without waiting.
        backward_transfer_ns: Measured time of that gradient's transfer, without waiting.
        evidence: How the actions were found: label, autograd or kernels; model where nothing was measured.
        derived: Costs of the halves I and W of a backward that ran as one, from its kernels; empty if they do not
            tell. What they hold is as torch's split would (``reconstruct.split_memory``), or unknown.
        layers: Costs by layer, derived halves included; None if layers are unknown.
        layerless: Actions that show no layers, where others of the stage do.
        collectives: Per kind, the collectives that its actions wait for.
        launches: Per kind, what launching its actions takes; empty where hosts do not wait for their devices.
    """

    stage: int
    costs: Costs
    forward_payload_bytes: int | None = None
    backward_payload_bytes: int | None = None
    forward_transfer_ns: int = 0
    backward_transfer_ns: int = 0
    evidence: str = "label"
    derived: Costs = field(default_factory=dict)
    layers: LayerCosts | None = None
    layerless: int = 0
    collectives: Collectives = field(default_factory=dict)
    launches: Mapping[ActionKind, Launch] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Of its costs: mappings have no hash, and in what else profiles differ, equality tells."""
        return hash((self.stage, frozenset(self.costs.items())))

    def median_ns(self, kind: ActionKind) -> int | None:
        """Median duration over microbatches, or None if the trace has no such action."""
        costs = self.costs.get(kind)
        return round(median(c.duration_ns for c in costs)) if costs else None

    def activation_bytes(self) -> int | None:
        """Bytes one microbatch keeps from forward to backward (median), or None if unknown."""
        held = [c.held_bytes for c in self.costs.get(ActionKind.FORWARD, ()) if c.held_bytes is not None]
        return round(median(held)) if held else None

    def transient_bytes(self) -> int | None:
        """Bytes that an action needs at most beyond what it keeps: median of the kind that needs most, or None."""
        needed = [
            median(beyond)
            for kind, costs in self.costs.items()
            if (beyond := _beyond_kept(costs[1:] if kind in _GRADIENTS and len(costs) > 1 else costs))
        ]
        return round(max(needed)) if needed else None

    def gradient_bytes(self) -> int | None:
        """Bytes that the first backward of a step allocates and the later ones add to, or None if unknown.

        What its first microbatch frees less than the others; of a single one, less than its forward keeps.
        """
        activation = self.activation_bytes()
        costs = next((of_kind for kind in _GRADIENTS if (of_kind := self.costs.get(kind))), ())
        held = [c.held_bytes for c in costs if c.held_bytes is not None]
        if activation is None or not held or len(held) < len(costs):
            return None
        if len(held) > 1:
            return max(0, round(held[0] - median(held[1:])))
        inputs = self.costs.get(ActionKind.BACKWARD_INPUT, ())
        return max(0, held[0] + activation + sum(c.held_bytes or 0 for c in inputs))


def _beyond_kept(costs: Sequence[ActionCost]) -> list[int]:
    return [c.peak_bytes - max(0, c.held_bytes) for c in costs if c.held_bytes is not None and c.peak_bytes is not None]


_GRADIENTS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class TailPart:
    """A part of what a rank does after its last compute.

    Attributes:
        kind: REDUCE_GRAD or OPTIMIZER.
        duration_ns: Its time, without waits for other ranks.
        meet: Name of the collective that opens it: ranks with the same one begin it together; None for none.
        collectives: Those that run in it, one after another.
        waited_ns: What it waited besides, when it was recorded, for ranks of other pipelines.
    """

    kind: ActionKind
    duration_ns: int
    meet: str | None = None
    collectives: tuple[CollectiveUse, ...] = ()
    waited_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """What belongs to a pipeline rank as a whole.

    Attributes:
        rank: Global rank.
        static_bytes: Allocated when the step starts: weights, optimizer state; None if unknown.
        tail: What follows the last compute, in order: gradient reduction and optimizer.
        hbm_bytes: Device memory, as the trace says; None if unknown.
        tail_peak_bytes: Highest allocation in that tail, above the level at its start.
        overhead_bytes: Device memory that the rank occupied beyond its highest allocation, as measured: what the
            allocator had reserved beyond it, and what else the process held. None if the trace does not tell.
        load: How its device slows down under sustained load; None if nothing is known of it.
        overlapped: Collectives that ran beside its computes, in order of their start.
        receive_buffer_bytes: Of the static bytes, buffers of messages to receive, one per message of a step; 0 where
            they come and go with the messages, None if unknown.
        gaps_left_out: Whether its actions' times by themselves leave out what kernels waited for their launches.
    """

    rank: int
    static_bytes: int | None = None
    tail: tuple[TailPart, ...] = ()
    hbm_bytes: int | None = None
    tail_peak_bytes: int = 0
    overhead_bytes: int | None = None
    load: SustainedLoad | None = None
    receive_buffer_bytes: int | None = None
    overlapped: tuple[CollectiveUse, ...] = ()
    gaps_left_out: bool = False


NO_OVERLAP, FUSED = "none", "fused"
"""Ways of layers: as they are, and in one kernel with their communication."""


@dataclass(frozen=True, slots=True)
class ActionChange:
    """What another way to run layers changes of the actions of one stage and kind.

    Attributes:
        stage: Their stage.
        kind: Their kind.
        change_ns: What each takes more; less, if negative.
        error_ns: How far off that may be beside layers as they are over the same links.
        link_error_ns: How far off may be what the links change.
    """

    stage: int
    kind: ActionKind
    change_ns: int
    error_ns: int
    link_error_ns: int


@dataclass(frozen=True, slots=True)
class LayerOverlap:
    """How the layers inside actions run, where not as recorded.

    Attributes:
        way: How their collectives and matrix products overlap, such as slice:4.
        bandwidth_bytes_per_s: Of the links between the ranks of a group; None as recorded.
        actions: What that changes.
        untouched: Collectives of one action of each stage and kind that stay as they are.
        is_measured: Whether such ways were compared with measured ones, so that errors are known.
    """

    way: str = NO_OVERLAP
    bandwidth_bytes_per_s: int | None = None
    actions: tuple[ActionChange, ...] = ()
    untouched: int = 0
    is_measured: bool = True

    @property
    def is_bound(self) -> bool:
        """Whether nothing is faster, and nothing known to be as fast."""
        return self.way == FUSED

    @property
    def is_as_recorded(self) -> bool:
        """Whether it changes nothing."""
        return self.way == NO_OVERLAP and self.bandwidth_bytes_per_s is None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline as measured in one step: all that replay needs to know.

    Attributes:
        stages: One profile per stage, in stage order.
        ranks: One profile per pipeline rank, in pipeline order.
        observed: The compute order that was observed.
        p2p: How transfers were issued.
        step: Step number the costs were measured in.
        buffered: Whether a send ends without its receive (NCCL copies it into a buffer).
        outside_ns: What the marked step took besides (host ahead of the first kernel and after the last); None if
            steps are not marked.
        marked_ns: What the mark of the step spans, on the rank where that is longest: all that a step of a run takes,
            data loading, barriers and the host included. None if steps are not marked.
        memory: Another recording of the same model, cut into the same stages, whose memory figures stand for this
            one's: what actions and ranks hold, not times. None takes them from here.
        overlap: How layers inside actions run.
        unchanged: The pipeline with layers as recorded; None where these are.
        job: All pipelines of the job, this one among them, where they are replayed together.
    """

    stages: tuple[StageProfile, ...]
    ranks: tuple[RankProfile, ...]
    observed: Schedule
    p2p: P2PMode
    step: int
    buffered: bool = False
    outside_ns: int | None = None
    marked_ns: int | None = None
    memory: Pipeline | None = None
    overlap: LayerOverlap = LayerOverlap()
    unchanged: Pipeline | None = None
    job: JobPipelines | None = field(default=None, hash=False)

    @property
    def together(self) -> tuple[Pipeline, ...]:
        """All that are replayed together; itself where it is replayed by itself."""
        return (self,) if self.job is None else self.job.pipelines

    def each(self, change: Callable[[Pipeline], Pipeline]) -> Pipeline:
        """This pipeline changed, and with it all others that are replayed together with it."""
        if (job := self.job) is None:
            return change(self)
        changed = tuple(map(change, job.pipelines))
        return replace(changed[job.place], job=replace(job, pipelines=changed))

    def with_other_pipelines(self) -> Pipeline:
        """The same by itself, with what its tails waited for others when it was recorded, which replays leave out."""

        def waiting(part: TailPart) -> TailPart:
            return replace(part, duration_ns=part.duration_ns + part.waited_ns, waited_ns=0)

        ranks = (replace(rank, tail=tuple(map(waiting, rank.tail))) for rank in self.ranks)
        return replace(self, ranks=tuple(ranks), job=None)

    @property
    def hosts_wait(self) -> bool:
        """Whether hosts were seen to wait for their devices after batches of messages."""
        return any(stage.launches for stage in self.stages)

    def without_waits(self) -> Pipeline:
        """The same with hosts that run ahead of their devices, however messages are issued."""
        return self.each(lambda one: replace(one, stages=tuple(replace(s, launches={}) for s in one.stages)))

    def as_recorded(self) -> Pipeline:
        """What replays the recorded order: layers as recorded and, where costs leave gaps out, actions in full."""
        if self.unchanged is not None:
            return self.unchanged.as_recorded()
        return self.each(_with_gaps)

    @property
    def memory_source(self) -> Pipeline:
        """Where memory figures come from: this recording, unless another one stands for it."""
        return self.memory or self

    def __repr__(self) -> str:
        return f"<Pipeline of step {self.step}: {self.observed.shape.text}, {self.p2p} transfers>"


@dataclass(frozen=True, slots=True)
class JobPipelines:
    """All pipelines of a job that are replayed together.

    Attributes:
        sorted: Which of them are alike, and which ranks are slow.
        pipelines: All that were recorded whole, in order of their numbers.
        numbers: Theirs.
        kinds: Of each, which of the kinds it is.
        place: Which of them is the one that holds this.
    """

    sorted: SortedPipelines
    pipelines: tuple[Pipeline, ...]
    numbers: tuple[int, ...]
    kinds: tuple[int, ...]
    place: int


def _with_gaps(pipeline: Pipeline) -> Pipeline:
    """Actions in full, where costs leave gaps out."""
    if not any(rank.gaps_left_out for rank in pipeline.ranks):
        return pipeline

    def whole(costs: Costs) -> Costs:
        return {
            kind: tuple(replace(c, uncontended_ns=None, contended_ns=None) for c in of) for kind, of in costs.items()
        }

    stages = []
    for stage in pipeline.stages:
        launches = {kind: Launch(launch.sync_ns, 0, 0, 0) for kind, launch in stage.launches.items()}
        stages.append(replace(stage, costs=whole(stage.costs), launches=launches))
    return replace(pipeline, stages=tuple(stages), ranks=tuple(replace(rank, load=None) for rank in pipeline.ranks))
