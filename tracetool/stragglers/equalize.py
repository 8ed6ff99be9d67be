"""The averaging rule: every operation of a kind takes one time, over ranks, stages, microbatches and steps.

It is the rule behind the published what-if results of three jobs (ByteDance's straggler analysis), found in their
source and confirmed by their numbers:

* **Compute** (forward, backward, optimizer) takes the *mean* over all operations of its kind: the work stays the
  same, evenly spread. Stages that hold more layers, or the head, count as stragglers like slow devices do.
* **Ranks that share layers** (tensor parallel) take together what the slowest of them takes by itself
  (``together``): what one waits for another inside an action is no time of its own, and no part of a mean.
* **Communication** takes the *median* of its *transfer* times, from when its last rank has come to its end. Waits
  are no durations: they come out of replay.
* **Host gaps** ahead of and after the pipeline are left out of both sides of a slowdown.

Where some stages run the whole backward as one and others in halves, all stages get the mean of their whole
backward, cut into halves in the measured proportion.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import median, median_low
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.stragglers.step import Frame, JobStep, OutsideStretch, global_rank, with_times
from tracetool.stragglers.together import taken_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline, StageProfile

SENT = {ActionKind.FORWARD: "send forward", ActionKind.BACKWARD: "send backward"}
_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_NAMES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "input gradient",
    ActionKind.BACKWARD_WEIGHT: "weight gradient",
    ActionKind.RECOMPUTE: "recompute",
}


class Where(NamedTuple):
    """What a duration belongs to.

    Attributes:
        pipeline: Number of the pipeline.
        rank: Global rank.
        stage: Global stage; None for what a rank does around several stages.
        kind: Kind of operation.
    """

    pipeline: int
    rank: int
    stage: int | None
    kind: str


_Of = tuple[int | None, str]
"""A stage, where each has its own time, and the name of a kind of operation."""


class Averages:
    """The one time of each kind of operation, over all steps given.

    Args:
        steps: At least one.
        by_stage: Each stage's own, that of the median one of the ranks that hold it, of an even number the quicker of
            the two: what some take beyond the others is no matter of the stage.
    """

    def __init__(self, steps: Sequence[JobStep], *, by_stage: bool = False) -> None:
        self._by_stage = by_stage
        computes: dict[_Of, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        sent: dict[_Of, list[int]] = defaultdict(list)
        collectives: dict[tuple[_Of, int], list[int]] = defaultdict(list)
        loads: dict[_Of, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for step, number, pipeline in _pipelines(steps):
            for stage in pipeline.stages:
                rank = global_rank(pipeline, stage.stage)
                for kind in stage.costs:
                    of = self._of(stage.stage, name_of(stage, kind))
                    computes[of][rank] += step.own_ns(number, stage.stage, kind)
                for kind in _sends(pipeline, stage.stage):
                    is_forward = kind is ActionKind.FORWARD
                    times = stage.forward_transfer_ns if is_forward else stage.backward_transfer_ns
                    sent[self._of(stage.stage, SENT[kind])].append(times)
        for rank, at, parts in _all_parts(steps):
            for part in parts:
                if part.kind == "collective":
                    collectives[self._of(at, part.name), part.number].append(part.duration_ns)
            for name, total in _loads(parts).items():
                loads[self._of(at, name)][rank].append(total)
        self._computes = self._typical(computes) if by_stage else _conserved(self._typical(computes), computes)
        self._sent = {of: round(median(times)) for of, times in sent.items()}
        self._collectives = {key: round(median(times)) for key, times in collectives.items()}
        self._loads = self._typical(loads)

    def _of(self, stage: int | None, name: str) -> _Of:
        """What has one time."""
        return (stage if self._by_stage else None), name

    def _typical(self, times: Mapping[_Of, Mapping[int, Sequence[int]]]) -> dict[_Of, int]:
        """The one time of each, from times by rank."""
        if self._by_stage:
            return {of: median_low(map(_mean, ranks.values())) for of, ranks in times.items()}
        return {of: _mean([ns for of_rank in ranks.values() for ns in of_rank]) for of, ranks in times.items()}

    def apply(self, step: JobStep, chosen: Callable[[Where], bool]) -> JobStep:
        """A step with the one time of its kind for every operation that is chosen."""
        pipelines, frames = [], []
        for number, (pipeline, own) in enumerate(zip(step.pipelines, step.frames, strict=True)):
            shape = pipeline.observed.shape
            stages = tuple(self._stage(step, number, stage, chosen) for stage in pipeline.stages)
            pipelines.append(replace(pipeline, stages=stages))
            frames.append(
                tuple(
                    self._frame(frame, number, profile.rank, position if shape.chunks == 1 else None, chosen)
                    for position, (frame, profile) in enumerate(zip(own, pipeline.ranks, strict=True))
                )
            )
        return replace(step, pipelines=tuple(pipelines), frames=tuple(frames))

    def typical_compute(self, stage: StageProfile, kind: ActionKind) -> tuple[int, str]:
        """What a stage's actions of a kind take, and what they are called."""
        name = name_of(stage, kind)
        return self._computes[self._of(stage.stage, name)], name

    def typical_message(self, stage: StageProfile, kind: ActionKind) -> tuple[int, str]:
        """What a stage's messages of a kind take, and what they are called; 0 where it sends none."""
        return self._sent.get(self._of(stage.stage, SENT[kind]), 0), SENT[kind]

    def typical_frame(self, frame: Frame, stage: int | None) -> list[int]:
        """What the parts of a frame take, its head's first; gaps stay as they are.

        Args:
            frame: What a rank does around its computes.
            stage: The rank's, where it has one alone.
        """
        parts = (*frame.head, *frame.tail)
        loads = _loads(parts)

        def one(part: OutsideStretch) -> int:
            if part.kind == "host":
                return part.duration_ns
            if part.kind == "collective":
                return self._collectives[self._of(stage, part.name), part.number]
            # A rank may do its work in several stretches: each keeps its share of it.
            total = loads[part.name]
            return part.duration_ns * self._loads[self._of(stage, part.name)] // total if total else 0

        return list(map(one, parts))

    def _stage(self, step: JobStep, number: int, stage: StageProfile, chosen: Callable[[Where], bool]) -> StageProfile:
        rank = global_rank(step.pipelines[number], stage.stage)

        def is_chosen(kind: str) -> bool:
            return chosen(Where(number, rank, stage.stage, kind))

        for kind in stage.costs:
            stage = with_times(stage, kind, self._actions_ns(step, number, stage.stage, kind, chosen))
        forward, backward = (self.typical_message(stage, kind) for kind in SENT)
        return replace(
            stage,
            forward_transfer_ns=forward[0] if is_chosen(forward[1]) else stage.forward_transfer_ns,
            backward_transfer_ns=backward[0] if is_chosen(backward[1]) else stage.backward_transfer_ns,
        )

    def _actions_ns(
        self, step: JobStep, number: int, stage: int, kind: ActionKind, chosen: Callable[[Where], bool]
    ) -> list[int]:
        """What a stage's actions of a kind take, by microbatch, if the mean is taken of what is chosen."""
        import numpy as np

        before, now, are_chosen = [], [], []
        for peer in step.peers.get((number, stage, kind), (number,)):
            pipeline = step.pipelines[peer]
            typical, name = self.typical_compute(pipeline.stages[stage], kind)
            are_chosen.append(chosen(Where(peer, global_rank(pipeline, stage), stage, name)))
            before.append(step.own_ns(peer, stage, kind))
            now.append([[typical if are_chosen[-1] else ns] for ns in before[-1]])
        took = np.array(step.took_ns(number, stage, kind))
        durations = taken_together(took, np.array(before), np.array(now), np.array([all(are_chosen)]))
        return [int(ns) for ns in durations[:, 0]]

    def _frame(
        self, frame: Frame, pipeline: int, rank: int, stage: int | None, chosen: Callable[[Where], bool]
    ) -> Frame:
        parts = [
            part
            if part.kind == "host" or not chosen(Where(pipeline, rank, stage, part.name))
            else replace(part, duration_ns=typical)
            for part, typical in zip((*frame.head, *frame.tail), self.typical_frame(frame, stage), strict=True)
        ]
        return Frame(tuple(parts[: len(frame.head)]), tuple(parts[len(frame.head) :]))


def places(steps: Iterable[JobStep]) -> list[Where]:
    """Everything that has a duration of its own, host gaps aside, in order."""
    wheres: dict[Where, None] = {}
    for step in steps:
        for number, (pipeline, frames) in enumerate(zip(step.pipelines, step.frames, strict=True)):
            for where in (*_pipeline_places(number, pipeline), *_frame_places(number, pipeline, frames)):
                wheres[where] = None
    return list(wheres)


def _pipelines(steps: Iterable[JobStep]) -> Iterator[tuple[JobStep, int, Pipeline]]:
    """All pipelines of steps with their numbers."""
    for step in steps:
        for number, pipeline in enumerate(step.pipelines):
            yield step, number, pipeline


def _pipeline_places(number: int, pipeline: Pipeline) -> Iterable[Where]:
    for stage in pipeline.stages:
        rank = global_rank(pipeline, stage.stage)
        names = [name_of(stage, kind) for kind in stage.costs]
        names += [SENT[kind] for kind in _sends(pipeline, stage.stage)]
        yield from (Where(number, rank, stage.stage, name) for name in names)


def _sends(pipeline: Pipeline, stage: int) -> list[ActionKind]:
    """What a stage sends to other ranks: activations, gradients."""
    shape = pipeline.observed.shape
    peers = ((ActionKind.FORWARD, stage + 1), (ActionKind.BACKWARD, stage - 1))
    return [k for k, peer in peers if 0 <= peer < shape.stages and shape.rank_of(peer) != shape.rank_of(stage)]


def _frame_places(number: int, pipeline: Pipeline, frames: Sequence[Frame]) -> Iterable[Where]:
    for position, (frame, profile) in enumerate(zip(frames, pipeline.ranks, strict=True)):
        stage = position if pipeline.observed.shape.chunks == 1 else None
        for part in (*frame.head, *frame.tail):
            if part.kind != "host":
                yield Where(number, profile.rank, stage, part.name)


def name_of(stage: StageProfile, kind: ActionKind) -> str:
    """Name of a stage's actions of a kind: a W without an I is the whole backward (torch's first stage)."""
    if kind is ActionKind.BACKWARD_WEIGHT and ActionKind.BACKWARD_INPUT not in stage.costs:
        return _NAMES[ActionKind.BACKWARD]
    return _NAMES[kind]


def _all_parts(steps: Iterable[JobStep]) -> Iterable[tuple[int, int | None, tuple[OutsideStretch, ...]]]:
    """What each rank does around its computes, with its number, and its stage where it has one alone."""
    for step in steps:
        for pipeline, frames in zip(step.pipelines, step.frames, strict=True):
            for position, (frame, profile) in enumerate(zip(frames, pipeline.ranks, strict=True)):
                at = position if pipeline.observed.shape.chunks == 1 else None
                yield profile.rank, at, (*frame.head, *frame.tail)


def _loads(parts: Iterable[OutsideStretch]) -> dict[str, int]:
    """Compute time of each name."""
    totals: dict[str, int] = defaultdict(int)
    for part in parts:
        if part.kind == "compute":
            totals[part.name] += part.duration_ns
    return totals


def _conserved(means: Mapping[_Of, int], costs: Mapping[_Of, Mapping[int, Sequence[int]]]) -> dict[_Of, int]:
    """The means, with one whole backward for all where some stages run it in halves and some do not."""
    whole, inputs, weights = ((None, _NAMES[kind]) for kind in (ActionKind.BACKWARD, *_HALVES))
    if not (whole in means and inputs in means and weights in means):
        return dict(means)
    times = {name: sum(map(sum, costs[name].values())) for name in (whole, inputs, weights)}
    backwards = sum(map(len, (*costs[whole].values(), *costs[inputs].values())))
    one = sum(times.values()) // backwards
    half = one * times[inputs] // (times[inputs] + times[weights])
    return {**means, whole: one, inputs: half, weights: one - half}


class SlowPlace(NamedTuple):
    """A stage beside all of them, or a rank beside the others of its stage.

    Attributes:
        stage: The stage.
        rank: Its global rank; None of a stage.
        compute_ratio: How much longer it computes: a stage, by the median one of its ranks, than the mean one; a rank
            than the others on average. 0 for as long.
    """

    stage: int
    rank: int | None
    compute_ratio: float


def slowest_places(steps: Sequence[JobStep]) -> tuple[SlowPlace | None, SlowPlace | None]:
    """The stage that computes longest beside the mean one, and the rank beside the others of its stage.

    None where there is no other to compare with.
    """
    by_stage: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for step, number, pipeline in _pipelines(steps):
        for stage in pipeline.stages:
            own = (ns for kind in stage.costs for ns in step.own_ns(number, stage.stage, kind))
            by_stage[stage.stage][global_rank(pipeline, stage.stage)] += sum(own)
    typical = {number: median_low(ranks.values()) for number, ranks in by_stage.items()}
    mean = sum(typical.values()) / max(1, len(typical))
    stages = [SlowPlace(n, None, ns / mean - 1) for n, ns in typical.items()] if len(typical) > 1 and mean else []
    ranks = [
        SlowPlace(number, rank, ns * (len(of_stage) - 1) / others - 1)
        for number, of_stage in by_stage.items()
        for rank, ns in of_stage.items()
        if (others := sum(of_stage.values()) - ns)
    ]
    slowest = [max(places, key=lambda p: p.compute_ratio, default=None) for places in (stages, ranks)]
    return slowest[0], slowest[1]


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values)) if values else 0
