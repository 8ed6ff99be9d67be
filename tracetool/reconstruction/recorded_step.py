"""One step as it was recorded: its actions, messages, memory and what follows, and the pipeline that they make.

The Timeline of the step that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.model.action import Action, ActionKind
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.pipeline import Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import OBSERVED, schedule_from_orders
from tracetool.model.timeline import Op, RankOp, TailCollective, Timeline
from tracetool.reconstruction.actions.cautions import check_times, note_cautions
from tracetool.reconstruction.actions.hops import join_labelled, tensors_per_hop
from tracetool.reconstruction.actions.segments import StepWork, find_work
from tracetool.reconstruction.actions.surroundings import note_profiler, outside_ns, profiler_spans
from tracetool.reconstruction.actions.tails import RankUses, step_collectives, tails_without_waits, uses_of
from tracetool.reconstruction.actions.transfers import (
    StageOp,
    StepMessages,
    buffers_sends,
    find_transfers,
    median_transfer_ns,
    messages_of_step,
    p2p_mode,
    payload,
    shifted,
    stage_ops,
)
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.closeup import read_residents
from tracetool.reconstruction.closeup.contention import kernels_beside_ns
from tracetool.reconstruction.closeup.launches import read_waits, turns_of
from tracetool.reconstruction.closeup.slowdown import rank_load
from tracetool.reconstruction.memory import MemoryFacts, memory_facts
from tracetool.reconstruction.memory.log import standing_buffer_bytes
from tracetool.reconstruction.steps.reading import StepReading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.model.timeline import Transfer
    from tracetool.reconstruction.actions import RankWork, Tail
    from tracetool.reconstruction.actions.surroundings import Spans
    from tracetool.reconstruction.actions.tails import StepCollective
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.closeup.launches import Turn, Waits
    from tracetool.reconstruction.memory import MemoryFacts
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepEvidence
    from tracetool.store.run import Run

MOST_KERNELS = 200_000
"""So many kernels are read at once, of several steps."""


def _observed_timeline(recorded: RecordedStep) -> Timeline:
    """The Timeline of a step as it was recorded; it begins with the first action."""
    group, clocks, profiler = recorded.group, recorded.clocks, recorded.profiler
    work, memory, origin = recorded.work.ranks, recorded.memory, recorded.origin_ns
    ops: list[Op] = []
    tails: list[RankOp] = []
    after: list[TailCollective] = []
    for position, rank in enumerate(group.ranks):
        mine = [
            Op(
                position, s.stage, s.kind, s.microbatch,
                clocks.aligned_ns(rank, s.start_ns) - origin, s.end_ns - s.start_ns,
            )
            for s in work[rank].segments
        ]  # fmt: skip
        ops += mine
        at = ended = max(op.end_ns for op in mine)
        for part in work[rank].tail:
            tails.append(RankOp(position, part.kind, at, part.duration_ns))
            at += part.duration_ns
        optimizing = next((op.start_ns for op in tails if op.rank == position and op.kind is ActionKind.OPTIMIZER), at)
        for one in recorded.collectives.get(rank, ()):
            came, end = (clocks.aligned_ns(rank, ns) - origin for ns in (one.start_ns, one.end_ns))
            if end > ended:
                kind = ActionKind.OPTIMIZER if came >= optimizing else ActionKind.REDUCE_GRAD
                after.append(TailCollective(position, kind, one.use(), came, max(came, end - one.own_ns), end))
    return Timeline(
        name=OBSERVED,
        global_ranks=group.ranks,
        ops=(*ops, *tails),
        transfers=tuple(shifted(t, origin) for t in recorded.transfers),
        memory=tuple(
            memory[rank].curve(work[rank].segments, origin - _shift(clocks, work[rank], rank)) for rank in group.ranks
        ),
        overhead_bytes=tuple(memory[rank].overhead_bytes for rank in group.ranks),
        profiler=tuple(
            tuple(
                (clocks.aligned_ns(rank, start) - origin, clocks.aligned_ns(rank, end) - origin)
                for start, end in profiler[rank]
            )
            for rank in group.ranks
        ),
        collectives=tuple(after),
    )


def _shift(clocks: Clocks, work: RankWork, rank: int) -> int:
    """What aligning adds to the rank's times in this step (drift within a step is far below a microsecond)."""
    start = work.segments[0].start_ns
    return clocks.aligned_ns(rank, start) - start


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """What one step holds, without a look at single kernels.

    Attributes:
        group: The pipeline.
        clocks: How far each rank's clock is ahead.
        step: The step.
        messages: Its sends and receives.
        work: What each rank computed.
        p2p_ops: Every send and receive, per global rank, in order of posting.
        transfers: Messages between stages.
        memory: Memory of each rank.
        pipeline: Measured costs and the observed order.
        collectives: Per global rank, in order of their start.
        profiler: When the profiler was at work on each global rank.
        origin_ns: When its first action began, on the reference rank's clock.
        window_ns: Its pipeline window.
        waits: Per global rank, when its host waited for its device.
        beside_ns: Per global rank and action, of each kernel how long a communication kernel was beside it; empty
            where nobody asked.
    """

    group: PipelineGroup
    clocks: Clocks
    step: Step
    messages: StepMessages
    work: StepWork
    p2p_ops: Mapping[int, tuple[StageOp, ...]]
    transfers: tuple[Transfer, ...]
    memory: Mapping[int, MemoryFacts]
    pipeline: Pipeline
    collectives: Mapping[int, Sequence[StepCollective]]
    profiler: Mapping[int, Spans]
    origin_ns: int
    window_ns: int
    waits: Mapping[int, Waits]
    beside_ns: Mapping[int, Sequence[list[int]]] = field(default_factory=dict)

    @cached_property
    def observed(self) -> Timeline:
        """Its Timeline; of most steps that are looked at together nobody asks for it."""
        return _observed_timeline(self)

    def turns(self) -> dict[int, list[Turn]]:
        """The actions of each rank in the order of their launches, with what came ahead of them."""
        return {
            rank: turns_of(work.segments, self.messages.posts[rank], self.waits[rank])
            for rank, work in self.work.ranks.items()
        }


def record_step(
    reading: StepReading, group: PipelineGroup, step: Step, survey: Survey, heard: Account | None
) -> RecordedStep:
    """Look at a step, one of those that are read.

    Args:
        reading: What the Run holds of it, and maybe of others.
        group: The pipeline.
        step: The step.
        survey: What is known of the whole capture.
        heard: Takes up what is to say of the step; None if nobody asks.

    Raises:
        ReconstructError: If it does not hold whole forwards and backwards, or its messages do not pair up.
    """
    account = heard or Account()
    messages = messages_of_step(survey, group, step)
    work = find_work(reading, group, step, messages, account)
    messages = work.messages
    p2p_ops = stage_ops(reading, step, messages, work.placed)
    if work.placed is None:
        messages, p2p_ops = join_labelled(messages, p2p_ops)
    _record_tensors(messages, account)
    check_times(step, p2p_ops, work.ranks, account)
    if heard is not None:
        note_cautions(reading, step, work.ranks, heard)
        note_profiler(reading, step, work.ranks, heard)
    transfers = find_transfers(group, messages, p2p_ops, survey, account)
    memory = memory_facts(reading, group, step, work.ranks, account)
    collectives = step_collectives(reading, group, step, survey)
    tails = tails_without_waits(reading, group, work.ranks, collectives, account)
    uses = {rank: uses_of(w, collectives.get(rank, ())) for rank, w in work.ranks.items()}
    aligned = survey.clocks.aligned_ns
    spans = [(aligned(r, s.start_ns), aligned(r, s.end_ns)) for r, w in work.ranks.items() for s in w.segments]
    origin = min(start for start, _ in spans)
    return RecordedStep(
        group=group,
        clocks=survey.clocks,
        step=step,
        messages=messages,
        work=work,
        p2p_ops=p2p_ops,
        transfers=tuple(transfers),
        memory=memory,
        pipeline=replace(
            _pipeline(reading, group, step, work.ranks, memory, tails, uses, transfers, messages),
            buffered=buffers_sends(messages.messages, survey.clocks, Account()),
        ),
        collectives=collectives,
        profiler=profiler_spans(reading, step, group.ranks),
        origin_ns=origin,
        window_ns=max(end for _, end in spans) - origin,
        waits={rank: read_waits(reading, rank, step.spans[rank]) for rank in group.ranks},
    )


def _record_tensors(messages: StepMessages, account: Account) -> None:
    listed = [
        f"{' or '.join(map(str, counts))} from rank {src} to {dst}"
        for (src, dst), counts in tensors_per_hop(messages).items()
    ]
    if listed:
        account.note(
            NoticeCode.MESSAGES_TOGETHER,
            f"several tensors are handed on at once, and count as one message: {', '.join(listed)}",
        )


def record_other_steps(
    run: Run,
    group: PipelineGroup,
    steps: Sequence[Step],
    chosen: Step,
    survey: Survey,
    evidence: StepEvidence,
    account: Account,
    most: int,
) -> list[RecordedStep]:
    """Look at other complete steps, the nearest ones if there are many, in order of their distance.

    Args:
        run: The Run.
        group: The pipeline.
        steps: All of its steps.
        chosen: The one that was looked at already.
        survey: What is known of the whole capture.
        evidence: What may be used.
        account: Told which ones are left out.
        most: So many at most.
    """
    others = [
        s for s in steps
        if s.status == "complete" and s.number != chosen.number and s.exchanged == chosen.exchanged
    ]  # fmt: skip
    nearest = sorted(others, key=lambda s: (abs(s.number - chosen.number), s.number))[:most]
    if len(others) > most:
        account.note(
            NoticeCode.COSTS_OF_SOME_STEPS,
            f"costs are of {most + 1} of {len(others) + 1} complete steps, those about the chosen one",
        )
    recorded = []
    # Read in order of time: what is read together is read with all that lies between.
    in_time = [(group, step) for step in others if step in nearest]
    for _, step, made in record_each(run, in_time, survey, evidence):
        if isinstance(made, RecordedStep):
            recorded.append(made)
            continue
        account.note(
            NoticeCode.COSTS_OF_SOME_STEPS,
            f"step {step.number} is left out of the costs: {made.message}",
            subject=SubjectKind.STEP(step.number),
        )
    return sorted(recorded, key=lambda one: nearest.index(one.step))


def record_each(
    run: Run, steps: Sequence[tuple[PipelineGroup, Step]], survey: Survey, evidence: StepEvidence
) -> Iterator[tuple[PipelineGroup, Step, RecordedStep | ReconstructError]]:
    """Look at steps of pipelines, with what is read of several at once; where one cannot be reconstructed, why."""
    ranks = {rank for group, _ in steps for rank in group.ranks}
    kernels = sum(survey.kernels.get(rank, 0) for rank in ranks)
    at_once = max(1, MOST_KERNELS * len(steps) // max(1, kernels))
    for first in range(0, len(steps), at_once):
        together = steps[first : first + at_once]
        reading = StepReading(run, [step for _, step in together], sorted(ranks), evidence)
        for group, step in together:
            try:
                yield group, step, record_step(reading, group, step, survey, None)
            except ReconstructError as error:
                yield group, step, error


def with_beside(run: Run, group: PipelineGroup, recorded: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Steps with what communication kernels were beside the kernels of their actions."""
    residents = read_residents(run, group, [each.work.ranks for each in recorded])
    return [
        replace(
            each,
            beside_ns={rank: kernels_beside_ns(w.segments, residents[rank]) for rank, w in each.work.ranks.items()},
        )
        for each in recorded
    ]


def _pipeline(
    reading: StepReading,
    group: PipelineGroup,
    step: Step,
    work: Mapping[int, RankWork],
    memory: Mapping[int, MemoryFacts],
    tails: Mapping[int, Tail],
    uses: Mapping[int, RankUses],
    transfers: Sequence[Transfer],
    messages: StepMessages,
) -> Pipeline:
    orders = [[Action(s.stage, s.kind, s.microbatch) for s in work[rank].segments] for rank in group.ranks]
    observed = schedule_from_orders(orders, name=OBSERVED)
    devices = reading.devices
    stages = []
    for stage in range(observed.shape.stages):
        rank = group.ranks[observed.shape.rank_of(stage)]
        costs = {}
        for kind in {a.kind for a in orders[observed.shape.rank_of(stage)] if a.stage == stage}:
            segments = [s for s in work[rank].segments if s.stage == stage and s.kind is kind]
            segments.sort(key=lambda s: s.microbatch)
            costs[kind] = tuple(memory[rank].cost(s) for s in segments)
        forward = [t for t in transfers if t.src_stage == stage and t.kind is ActionKind.FORWARD]
        backward = [t for t in transfers if t.src_stage == stage and t.kind is ActionKind.BACKWARD]
        stages.append(
            StageProfile(
                stage=stage,
                costs=costs,
                forward_payload_bytes=payload(forward),
                backward_payload_bytes=payload(backward),
                forward_transfer_ns=median_transfer_ns(forward),
                backward_transfer_ns=median_transfer_ns(backward),
                evidence=work[rank].evidence,
                collectives={kind: awaited for (of, kind), awaited in uses[rank].awaited.items() if of == stage},
            )
        )
    p2p = p2p_mode(messages.posts, work)
    ranks = tuple(
        RankProfile(
            rank=rank, static_bytes=memory[rank].static_bytes, tail=tails[rank], hbm_bytes=devices[rank].hbm_bytes,
            tail_peak_bytes=memory[rank].tail_peak,
            overhead_bytes=memory[rank].overhead_bytes, load=rank_load(devices[rank].name, work[rank].segments),
            # One that blocks compute is over before the next one: a buffer takes one message after another.
            receive_buffer_bytes=0 if p2p == "blocking" else standing_buffer_bytes(
                messages.posts[rank], memory[rank].log, [k.launch_ns for s in work[rank].segments for k in s.kernels]
            ),
            overlapped=uses[rank].overlapped,
        )
        for rank in group.ranks
    )  # fmt: skip
    return Pipeline(
        tuple(stages), ranks, observed, p2p, step.number,
        outside_ns=outside_ns(reading, group, step, work),
        marked_ns=max(end - start for start, end in map(step.spans.__getitem__, group.ranks))
        if step.evidence == "label" else None,
    )  # fmt: skip
