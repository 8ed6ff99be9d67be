"""Costs as measured: each action costs what the same (stage, kind, microbatch) cost in the trace.

Microbatches the trace does not have cost the median of the measured ones, without the first: its backward
makes the gradients that the later ones only add to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from tracetool.costs.over_links import crossing_uses, over_links, places_of
from tracetool.errors import Option, ScenarioError, UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, max_if_known, sum_if_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.costs.over_links import OverLinks
    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import Collectives, Launch, Pipeline, RankProfile, StageProfile, TailPart
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule

_WORDS = {
    ActionKind.FORWARD: "the forward",
    ActionKind.BACKWARD: "the backward",
    ActionKind.BACKWARD_INPUT: "the gradient of the input",
    ActionKind.BACKWARD_WEIGHT: "the gradients of the weights",
    ActionKind.RECOMPUTE: "the recomputed forward",
}
_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_GRADIENTS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


class MeasuredCosts:
    """Costs of a pipeline's actions and messages, with the scenario's own memory figures if it has any.

    A bidirectional schedule has two copies of every stage, both with the costs measured of it: the first microbatch
    of the second copy costs what the first one did. Its ranks hold two stages and do the tails of both.

    Args:
        pipeline: What was measured.
        scenario: May replace activation and static bytes, and says what two actions that run as one take.
        schedule: What is replayed: where it runs no I on a stage, its W there is the whole backward.

    Attributes:
        crosses: Whether collectives cross links.

    Raises:
        UnsupportedShape: If the schedule has two copies of each stage and the pipeline not one stage per rank.
    """

    def __init__(self, pipeline: Pipeline, scenario: Scenario, schedule: Schedule) -> None:
        self._pipeline = pipeline
        self._scenario = scenario
        self._shape = schedule.shape
        self._overlapping = schedule.overlapping() if scenario.overlap_ratio != 1 else set()
        if self._shape.is_bidirectional and len(pipeline.stages) != self._shape.ranks:
            raise UnsupportedShape(
                f"schedule {schedule.name!r} has two copies of one stage per rank; the trace has "
                f"{len(pipeline.stages)} stages on {self._shape.ranks} ranks.",
                hint="use a trace with one stage per rank",
            )
        self._memory = None if pipeline.memory is None else MeasuredCosts(pipeline.memory, scenario, schedule)
        self._splitting = Counter(
            a.stage for order in schedule.orders for a in order if a.kind is ActionKind.BACKWARD_INPUT
        )
        self.action = cache(self._action)
        self.transfer_ns = cache(self._transfer_ns)
        self._places = places_of(pipeline, scenario.topology)
        self.over_links = cache(self._over_links)
        self.crosses = bool(crossing_uses(pipeline, scenario.topology))

    def _over_links(self, use: CollectiveUse) -> OverLinks | None:
        """What a collective takes over the links that its group crosses; None if it stays as measured."""
        try:
            return over_links(use, self._scenario.topology, self._places)
        except ScenarioError:
            return None  # remarks say which

    def _waited_ns(self, action: Action) -> int:
        """What an action's collectives take over links beyond what they took as measured."""
        if not self.crosses:
            return 0
        kind = self._as_run(action).kind
        uses = _awaited(self._stage(action.stage).collectives, kind)
        crossing = [(use, over) for use in uses if (over := self.over_links(use)) is not None]
        return round(sum(use.count * (over.duration_ns - use.own_ns) for use, over in crossing))

    def _as_run(self, action: Action) -> Action:
        """The action that was recorded: a W without an I is the whole backward."""
        is_whole = action.kind is ActionKind.BACKWARD_WEIGHT and action.stage not in self._splitting
        return action._replace(kind=ActionKind.BACKWARD) if is_whole else action

    def _action(self, action: Action) -> ActionCost:
        cost = self._alone(action)
        waited = self._waited_ns(action)
        cost = _later(cost, waited) if waited else cost
        return _scaled(cost, self._scenario.overlap_ratio) if action in self._overlapping else cost

    def _alone(self, action: Action) -> ActionCost:
        action = self._as_run(action)
        first = self._shape.microbatches_of(action.stage).start
        # A first stage has no input gradient to run apart: torch runs its whole backward as one.
        apart = self._shape.previous(action.stage) is not None
        cost = _measured(
            self._stage(action.stage), action._replace(microbatch=action.microbatch - first), runs_apart=apart
        )
        activation = self._scenario.activation_bytes
        if activation is None:
            return self._with_kept_gradient(action, cost) if self._memory is None else self._memory.kept(action, cost)
        if action.kind is ActionKind.FORWARD:
            return replace(cost, held_bytes=activation, peak_bytes=activation)
        return replace(cost, held_bytes=-activation if action.kind in _GRADIENTS else 0, peak_bytes=0)

    def _with_kept_gradient(self, action: Action, cost: ActionCost) -> ActionCost:
        """What torch's split leaves: the input's gradient stays beside the received input until the next step begins.

        ``stage_backward_input`` sets it as the ``grad`` of that buffer (a whole backward takes it from there), and
        ``clear_runtime_states`` drops it. A recording that ran the halves has it in what they hold. Within a rank
        the gradient takes the place of the buffer that the stage before would receive it in.
        """
        if action.kind is not ActionKind.BACKWARD_INPUT:
            return cost
        return cost.holding(self._kept_gradient_bytes(action.stage))

    def _kept_gradient_bytes(self, stage: int) -> int:
        """What one I of a stage leaves until the next step, beyond what is in its cost."""
        before = self._shape.previous(stage)
        if before is None or self._is_within_rank(before, stage):
            return 0
        if not _is_derived(self._stage(stage), ActionKind.BACKWARD_INPUT):
            return 0
        return self.payload_bytes(stage, ActionKind.BACKWARD) or 0

    def _is_within_rank(self, stage: int, other: int) -> bool:
        return self._shape.rank_of(stage) == self._shape.rank_of(other)

    def kept(self, action: Action, cost: ActionCost) -> ActionCost:
        """A cost from elsewhere with the memory that the same action has here; unknown where it did not run here."""
        try:
            here = self._alone(action)
        except UnsupportedShape:
            return replace(cost, held_bytes=None, peak_bytes=None)
        return replace(cost, held_bytes=here.held_bytes, peak_bytes=here.peak_bytes)

    def launch_of(self, action: Action) -> Launch | None:
        """What launching an action takes; None where that is unknown. A half has its share of a whole backward's."""
        stage, action = self._stage(action.stage), self._as_run(action)
        known = stage.launches.get(action.kind)
        whole = stage.launches.get(ActionKind.BACKWARD)
        if known is not None or whole is None or action.kind not in _HALVES:
            return known
        both = stage.derived.get(action.kind), stage.costs.get(ActionKind.BACKWARD)
        part, all_of_it = (costs[0].duration_ns if costs else 1 for costs in both)
        lag = whole.lag_ns if action.kind is ActionKind.BACKWARD_INPUT else 0
        return replace(whole, lag_ns=lag, issue_ns=round(whole.issue_ns * part / max(1, all_of_it)))

    def static_bytes(self, rank: int) -> int | None:
        """Bytes a pipeline rank has allocated when the step starts; None if unknown."""
        if self._scenario.static_bytes is not None:
            return self._scenario.static_bytes
        profiles = self._ranks_of_memory(rank)
        known = [profile.static_bytes for profile in profiles]
        if None in known:
            return None
        static = sum(b for b in known if b is not None)
        recorded = self._recorded_buffer_bytes(rank)
        if not recorded:
            return static
        buffers = self.receive_buffer_bytes(rank)
        return None if buffers is None else static + buffers - recorded

    def receive_buffer_bytes(self, rank: int) -> int | None:
        """Of a rank's static bytes, buffers of received messages; 0 where none stand, None if a size is unknown."""
        return self._received_bytes(rank) if self._recorded_buffer_bytes(rank) else 0

    def _recorded_buffer_bytes(self, rank: int) -> int:
        return sum(profile.receive_buffer_bytes or 0 for profile in self._ranks_of_memory(rank))

    def between_steps_bytes(self, rank: int) -> int | None:
        """Bytes a pipeline rank has allocated between two steps; None if unknown.

        That is its static bytes and the gradients of inputs that halves of backwards leave behind.
        """
        static = self.static_bytes(rank)
        if static is None:
            return None
        memory = self._memory or self
        return static + sum(self._splitting[s] * memory._kept_gradient_bytes(s) for s in self._shape.stages_of(rank))

    def _received_bytes(self, rank: int) -> int | None:
        """Bytes of all that the stages of a rank receive in a step; None if the size of a message is unknown.

        Where one stage hands on to another of the same rank, its output takes the place of a buffer like the others.
        """
        shape = self._shape
        total = 0
        for stage in shape.stages_of(rank):
            sources = ((shape.previous(stage), ActionKind.FORWARD), (shape.next(stage), ActionKind.BACKWARD))
            for src, kind in sources:
                if src is None:
                    continue
                size = self.payload_bytes(src, kind)
                if size is None and self._is_within_rank(src, stage):
                    continue  # recorded so: it is among the static bytes
                if size is None:
                    return None
                total += len(shape.microbatches_of(stage)) * size
        return total

    def tail(self, rank: int) -> tuple[TailPart, ...]:
        """What follows a rank's last compute: of both stages that it holds, where there are two copies of each."""
        return tuple(part for profile in self._ranks(rank) for part in profile.tail)

    def overlapped(self, rank: int) -> tuple[CollectiveUse, ...]:
        """Collectives that run beside a rank's computes."""
        return tuple(use for profile in self._ranks(rank) for use in profile.overlapped)

    def tail_peak_bytes(self, rank: int) -> int:
        """Highest allocation of a rank's optimizer, above the level at its start; 0 with memory from the scenario."""
        return (
            0
            if self._scenario.static_bytes is not None
            else max(profile.tail_peak_bytes for profile in self._ranks_of_memory(rank))
        )

    def overhead_bytes(self, rank: int) -> int | None:
        """Device memory a rank needs beyond its highest allocation, as measured; None with memory from the scenario.

        A constant of the recording: what the allocator reserved beyond its highest allocation (blocks of sizes
        that do not fit, and what it kept of earlier steps), and what else the process held. Taking it for every
        schedule errs to the safe side where the allocator would give cached blocks back under pressure.
        """
        if self._scenario.static_bytes is not None:
            return None
        return max_if_known([profile.overhead_bytes for profile in self._ranks_of_memory(rank)])

    def payload_bytes(self, src_stage: int, kind: ActionKind) -> int | None:
        """Bytes of one message that leaves a stage; None if unknown."""
        stage = self._stage(src_stage)
        return stage.forward_payload_bytes if kind is ActionKind.FORWARD else stage.backward_payload_bytes

    def link_bytes(self, src_stage: int, kind: ActionKind, so: str) -> int:
        """The same of a message that crosses a link.

        Args:
            src_stage: The stage.
            kind: Forward or backward.
            so: What cannot be done where it is unknown.

        Raises:
            ScenarioError: If it is unknown.
        """
        payload = self.payload_bytes(src_stage, kind)
        if payload is None:
            raise ScenarioError(
                f"the messages of stage {src_stage} ({kind.value}) differ in size or do not tell it, so {so}.",
                hint="sizes are told by torch 2.4 or newer, Ascend Level1 and up, nsys export --include-blobs=true, "
                f"or by you: ingest with {Option.PAYLOAD('16MiB')}",
            )
        return payload

    def _transfer_ns(self, src_stage: int, kind: ActionKind) -> int:
        """Measured time of one message inside a DC, once both sides are ready."""
        stage = self._stage(src_stage)
        return stage.forward_transfer_ns if kind is ActionKind.FORWARD else stage.backward_transfer_ns

    def _stage(self, stage: int) -> StageProfile:
        return self._pipeline.stages[self._shape.profile_of(stage)]

    def _ranks_of_memory(self, rank: int) -> list[RankProfile]:
        return (self._memory or self)._ranks(rank)

    def _ranks(self, rank: int) -> list[RankProfile]:
        """The measured ranks whose stages a rank holds."""
        if not self._shape.is_bidirectional:
            return [self._pipeline.ranks[rank]]
        return [self._pipeline.ranks[self._shape.profile_of(stage)] for stage in self._shape.stages_of(rank)]


def _is_derived(stage: StageProfile, kind: ActionKind) -> bool:
    # A trace that has W alone runs the whole backward as W.
    return kind in _HALVES and not all(half in stage.costs for half in _HALVES)


def _measured(stage: StageProfile, action: Action, *, runs_apart: bool) -> ActionCost:
    is_half = _is_derived(stage, action.kind)
    costs = stage.derived.get(action.kind) if is_half else stage.costs.get(action.kind)
    if costs is not None:
        cost = _of_microbatch(costs, action.microbatch)
        sums = is_half and runs_apart and action.kind is ActionKind.BACKWARD_WEIGHT
        return _scaled(cost, 1 + WEIGHT_SUMS_RATIO) if sums else cost
    parts = [stage.costs.get(k) for k in _HALVES]
    if action.kind is ActionKind.BACKWARD and any(parts):
        return _sum([_of_microbatch(p, action.microbatch) for p in parts if p])
    raise UnsupportedShape(
        f"the trace does not tell what {action} costs ({_WORDS[action.kind]} of stage {action.stage}, "
        f"microbatch {action.microbatch}): stage {stage.stage} has only "
        f"{', '.join(sorted(k.value for k in stage.costs))}"
        + (", and its kernels do not tell input gradients from weight gradients." if is_half else "."),
        hint="a schedule that splits the backward needs a trace that splits it, or one with autograd's nodes",
    )


WEIGHT_SUMS_RATIO = 0.09
"""What torch adds to the weight gradients of a backward that it runs in two halves, as a share of them.

Ahead of every product it sums the gradients of the layer's outputs, one of them, from zero: an elementwise kernel more
(``stage_backward_weight``). Kernels of zbh1_m8 against those of rt1f1b_m8, which ran whole backwards of the same
stages: 0.56 of 6.24 ms on stages 1 and 2, 0.65 of 7.27 ms on stage 3.
"""


def _awaited(known: Collectives, kind: ActionKind) -> Sequence[CollectiveUse]:
    """The collectives that an action of a kind waits for, whichever way the backward was recorded.

    Of a backward that ran as one they go with the gradient of the input, which those of tensor parallelism are about.
    """
    split = any(half in known for half in _HALVES)
    if kind is ActionKind.BACKWARD and split:
        return [use for half in _HALVES for use in known.get(half, ())]
    if kind is ActionKind.BACKWARD_INPUT and not split:
        kind = ActionKind.BACKWARD
    return known.get(kind, ())


def _later(cost: ActionCost, more_ns: int) -> ActionCost:
    """A cost with so much more waiting in it."""
    return replace(
        cost,
        duration_ns=cost.duration_ns + more_ns,
        uncontended_ns=None if cost.uncontended_ns is None else cost.uncontended_ns + more_ns,
        contended_ns=None if cost.contended_ns is None else cost.contended_ns + more_ns,
    )


def _scaled(cost: ActionCost, ratio: float) -> ActionCost:
    """A cost with all its times so many times as long."""

    def longer(time_ns: int | None) -> int | None:
        return None if time_ns is None else round(time_ns * ratio)

    return replace(
        cost,
        duration_ns=round(cost.duration_ns * ratio),
        uncontended_ns=longer(cost.uncontended_ns),
        contended_ns=longer(cost.contended_ns),
    )


def _of_microbatch(costs: Sequence[ActionCost], microbatch: int) -> ActionCost:
    if microbatch < len(costs):
        return costs[microbatch]
    later = costs[1:] or costs
    return ActionCost(
        round(median(c.duration_ns for c in later)),
        _median([c.held_bytes for c in later]),
        _median([c.peak_bytes for c in later]),
        _median([c.uncontended_ns for c in later]),
        _median([c.contended_ns for c in later]),
    )


def _median(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return round(median(known)) if known else None


def _sum(parts: Sequence[ActionCost]) -> ActionCost:
    return ActionCost(
        sum(c.duration_ns for c in parts),
        sum_if_known([c.held_bytes for c in parts]),
        max_if_known([c.peak_bytes for c in parts]),
        sum_if_known([c.uncontended_ns for c in parts]),
        sum_if_known([c.contended_ns for c in parts]),
    )
