"""One step of the whole job: its pipelines, and what their ranks do ahead of and after them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import TailPart
from tracetool.model.scenario import Scenario
from tracetool.replays.evaluation import evaluate
from tracetool.replays.flow import Dataflow
from tracetool.replays.tail import run_tails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import Pipeline, StageProfile
    from tracetool.model.timeline import Op

PartKind = Literal["collective", "compute", "host"]


@dataclass(frozen=True, slots=True)
class OutsideStretch:
    """A stretch of what a rank does outside its pipeline.

    Attributes:
        name: What it is: ``reducescatter dp``, ``optimizer``, ``host gap``.
        kind: A collective, compute, or a gap in which the device waited for the host.
        duration_ns: Its time, without waits for other ranks.
        meet: Name of the collective's meeting: ranks with the same one begin it together; None for none.
        number: Which of its name on this rank and step, from 0: equal ones are compared with each other.
    """

    name: str
    kind: PartKind
    duration_ns: int
    meet: str | None = None
    number: int = 0


OwnTimes = dict[tuple[int, ActionKind], tuple[int, ...]]
"""By stage and kind, what each action takes on its rank without waits for ranks that share its layers, in ns."""

Peers = dict[tuple[int, int, ActionKind], tuple[int, ...]]
"""By pipeline, stage and kind of actions in which ranks meet that share layers, the pipelines of these ranks."""

Parts = tuple[OutsideStretch, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """What a rank does around its computes, in order.

    Attributes:
        head: From the start of the step until it is ready for its first compute.
        tail: After its last one.
    """

    head: Parts = ()
    tail: Parts = ()


@dataclass(frozen=True, slots=True)
class JobStep:
    """Costs of one step of all pipelines.

    Attributes:
        number: Step number.
        observed_ns: From the first compute or leading collective on any rank to the end of the last tail.
        pipelines: One per pipeline; their ranks' own tails are not used.
        frames: Per pipeline, one per pipeline rank.
        own: Per pipeline, own times of ranks that share layers; empty if none do.
        peers: By pipeline, stage and kind, the pipelines whose ranks meet in its actions, itself among them; likewise.
    """

    number: int
    observed_ns: int
    pipelines: tuple[Pipeline, ...]
    frames: tuple[tuple[Frame, ...], ...]
    own: tuple[OwnTimes, ...] = ()
    peers: Peers = field(default_factory=dict)

    def own_ns(self, number: int, stage: int, kind: ActionKind) -> tuple[int, ...]:
        """What a stage's actions of a kind take without waits for ranks that share its layers, by microbatch.

        Args:
            number: The pipeline.
            stage: Its stage.
            kind: A kind of actions that the stage has.
        """
        own = self.own[number].get((stage, kind)) if self.own else None
        return self.took_ns(number, stage, kind) if own is None else own

    def took_ns(self, number: int, stage: int, kind: ActionKind) -> tuple[int, ...]:
        """The same with those waits."""
        return tuple(cost.duration_ns for cost in self.pipelines[number].stages[stage].costs[kind])

    def without_host_gaps(self) -> JobStep:
        """The same step if the device never waited for the host ahead of and after the pipeline."""
        frames = tuple(
            tuple(Frame(_without_gaps(frame.head), _without_gaps(frame.tail)) for frame in frames)
            for frames in self.frames
        )
        return replace(self, frames=frames)


def with_times(stage: StageProfile, kind: ActionKind, times_ns: Iterable[int]) -> StageProfile:
    """A stage whose actions of a kind take these times, by microbatch."""
    costs = tuple(replace(cost, duration_ns=ns) for cost, ns in zip(stage.costs[kind], times_ns, strict=True))
    return replace(stage, costs={**stage.costs, kind: costs})


def global_rank(pipeline: Pipeline, stage: int) -> int:
    """Global rank that holds a stage."""
    return pipeline.ranks[pipeline.observed.shape.rank_of(stage)].rank


def _without_gaps(parts: Parts) -> Parts:
    return tuple(part for part in parts if part.kind != "host")


def numbered(parts: Sequence[OutsideStretch]) -> Parts:
    """The parts, each told which of its name it is."""
    counts: Counter[str] = Counter()
    done = []
    for part in parts:
        done.append(replace(part, number=counts[part.name]))
        counts[part.name] += 1
    return tuple(done)


class StepReplay:
    """Replays steps in the observed order; a pipeline that was replayed with the same costs is not replayed again."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[int, ...]] = {}

    def step_ns(self, step: JobStep) -> int:
        """Time of a step: heads, pipelines, tails; ranks of all pipelines meet at their collectives.

        Raises:
            ScheduleDeadlock: If the observed order cannot be replayed.
        """
        frames = [frame for frames in step.frames for frame in frames]
        ready = _ends([0] * len(frames), [frame.head for frame in frames])
        ends: list[int] = []
        for pipeline in step.pipelines:
            ranks = len(pipeline.ranks)
            ends += self._pipeline_ends(pipeline, tuple(ready[len(ends) : len(ends) + ranks]))
        return max(_ends(ends, [frame.tail for frame in frames]))

    def _pipeline_ends(self, pipeline: Pipeline, ready: tuple[int, ...]) -> tuple[int, ...]:
        key = _key(pipeline, ready)
        if key not in self._known:
            self._known[key] = _replayed_ends(pipeline, ready)
        return self._known[key]


def _ends(starts: Sequence[int], parts: Sequence[Parts]) -> list[int]:
    """When each rank is through with its parts."""
    tails = [
        [TailPart(ActionKind.REDUCE_GRAD, part.duration_ns, part.meet) for part in rank_parts] for rank_parts in parts
    ]
    ends = list(starts)
    for op in run_tails(starts, tails):
        ends[op.rank] = max(ends[op.rank], op.end_ns)
    return ends


def _key(pipeline: Pipeline, ready: tuple[int, ...]) -> object:
    return (
        pipeline.observed,
        pipeline.p2p,
        ready,
        tuple(
            (
                stage.forward_transfer_ns,
                stage.backward_transfer_ns,
                tuple((kind, costs) for kind, costs in sorted(stage.costs.items())),
            )
            for stage in pipeline.stages
        ),
    )


def _replayed_ends(pipeline: Pipeline, ready: Sequence[int]) -> tuple[int, ...]:
    """End of each rank's last compute, if a rank cannot compute before it is ready.

    Replay starts every rank at once. A rank that is ready later than its first input is there computes its first
    action that much later, which is the same as one that takes that much longer. That is settled rank by rank: the
    delay of one moves the inputs of the next ones.
    """
    flow = Dataflow(pipeline.observed)
    firsts = [order[0] for order in pipeline.observed.orders]
    delays = [0 if flow.received((first,)) else at for first, at in zip(firsts, ready, strict=True)]
    while True:
        ops = _replayed(pipeline, delays)
        came = [next(op.start_ns for op in ops if op.rank == rank) for rank in range(len(firsts))]
        wanted = [max(0, at - start) for at, start in zip(ready, came, strict=True)]
        if wanted == delays:
            return tuple(max(op.end_ns for op in ops if op.rank == rank) for rank in range(len(firsts)))
        first_wrong = next(rank for rank in _by_start(came) if wanted[rank] != delays[rank])
        delays[first_wrong] = wanted[first_wrong]


def _by_start(starts: Sequence[int]) -> list[int]:
    return sorted(range(len(starts)), key=lambda rank: (starts[rank], rank))


def _replayed(pipeline: Pipeline, delays: Sequence[int]) -> list[Op]:
    stages = [_as_recorded(stage) for stage in pipeline.stages]
    for order, delay in zip(pipeline.observed.orders, delays, strict=True):
        stage, kind, microbatch = order[0]
        if delay:
            costs = list(stages[stage].costs[kind])
            costs[microbatch] = replace(costs[microbatch], duration_ns=costs[microbatch].duration_ns + delay)
            stages[stage] = replace(stages[stage], costs={**stages[stage].costs, kind: tuple(costs)})
    ranks = tuple(replace(profile, tail=()) for profile in pipeline.ranks)
    alone = replace(pipeline, stages=tuple(stages), ranks=ranks)
    done = evaluate(alone, pipeline.observed, Scenario(interference=False)).replayed
    return sorted(done.timeline.computes(), key=lambda op: op.start_ns)


def _as_recorded(stage: StageProfile) -> StageProfile:
    """A stage whose actions take what they took: what slowed them down stays in."""
    costs = {kind: tuple(replace(c, uncontended_ns=None) for c in of_kind) for kind, of_kind in stage.costs.items()}
    return replace(stage, costs=costs)
