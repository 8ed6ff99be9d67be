"""From a Run's tables to the pipeline that made them, and its observed Timeline.

The best evidence present wins: labels of the framework, then autograd's own sequence numbers, then the
types of kernels. What was found by which evidence is kept with the result; what was left out is noted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import MissingRank, NoDeviceActivity, ReconstructError
from tracetool.model.action import Action, ActionKind
from tracetool.model.load import known_load
from tracetool.model.pipeline import Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import schedule_from_orders
from tracetool.reconstruct.account import Account, Finding
from tracetool.reconstruct.cautions import note_cautions
from tracetool.reconstruct.closeup import Row, cost_rows, look_closely, loose_rows, read_residents
from tracetool.reconstruct.collective_uses import RankUses, step_collectives, uses_of
from tracetool.reconstruct.contention import read_devices
from tracetool.reconstruct.copies import find_copies, with_copies
from tracetool.reconstruct.groups import PipelineGroup, chosen_pipeline, find_pipelines
from tracetool.reconstruct.memory import MemoryFacts, memory_facts
from tracetool.reconstruct.message_times import check_times
from tracetool.reconstruct.observed_timeline import observed_timeline
from tracetool.reconstruct.receive_buffers import standing_buffer_bytes, tell_standing_buffers
from tracetool.reconstruct.segments import RankWork, Segment, Work, find_work
from tracetool.reconstruct.steps import Step, choose_step, steps_of
from tracetool.reconstruct.surroundings import outside_ns
from tracetool.reconstruct.survey import Survey, survey_run
from tracetool.reconstruct.tails import Tail, tails_without_waits
from tracetool.reconstruct.transfers import (
    StageOp,
    StepMessages,
    buffers_sends,
    check_counts,
    find_transfers,
    median_transfer_ns,
    messages_of_step,
    p2p_mode,
    payload,
    stage_ops,
)
from tracetool.units import format_count, format_ranges, format_ranks

_MOST_OTHER_STEPS = 7

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.timeline import Timeline, Transfer
    from tracetool.reconstruct.coordinates import Coordinates
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What a Run turned out to hold.

    Attributes:
        pipeline: Measured costs and the observed order.
        observed: The Timeline of the chosen step.
        p2p_ops: Every send and receive of the step, per global rank, in order of posting.
        segments: Every action of the step with its kernels, per global rank, on the rank's own clock.
        notes: What was inferred, left out or is missing, one sentence each.
        findings: Facts with the evidence for them.
        tables: Rows of the tables costs, kernel_actions and layers.
        hosts: Host of each recorded rank; None where its trace does not name it.
        steps: All steps of the pipeline, in order of time.
        coordinates: Where each rank of the job sits.
    """

    pipeline: Pipeline
    observed: Timeline
    p2p_ops: Mapping[int, tuple[StageOp, ...]]
    segments: Mapping[int, tuple[Segment, ...]]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    hosts: Mapping[int, str | None] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    coordinates: tuple[Coordinates, ...] = ()

    def __repr__(self) -> str:
        return f"<Reconstruction: {self.pipeline!r}>"


def reconstruct(
    run: Run,
    *,
    step: int | None = None,
    pipeline: int = 0,
    copy_missing: bool = False,
    use_labels: bool = True,
    every_step: bool = False,
    survey: Survey | None = None,
    account: Account | None = None,
) -> Reconstruction:
    """Find stages, microbatches, costs and transfers of one step.

    Args:
        run: The ingested traces.
        step: Step number; by default the complete one of median length.
        pipeline: Which one of several side by side, counted by their lowest rank.
        copy_missing: Whether ranks that were not recorded are copied from a recorded rank of the same stage.
        use_labels: Off hides the framework's own labels, to see what the rest of the trace tells.
        every_step: Also look at what actions cost in the other complete steps (``Reconstruction.tables``).
        survey: What is known of the whole capture, if it was looked at before.
        account: Takes up how things were found, beyond what it holds already.

    Raises:
        NoDeviceActivity: If there are no kernels.
        NoPipeline: If no rank sends to another one.
        MissingRank: If a rank of the pipeline was not recorded.
        UnmatchedTransfer: If sends and receives do not pair up.
        ReconstructError: If the step does not hold whole forwards and backwards.

    Example:
        >>> found.pipeline.observed.shape.microbatches, found.pipeline.p2p, found.observed.name
        (8, 'grouped', 'observed')
        >>> tt.reconstruct(run, step=7)
        Traceback (most recent call last):
        tracetool.errors.ReconstructError: ...
    """
    account = account or Account()
    for text in notes_of_sources(run.manifest.get("sources", ())):
        account.note(text)
    hosts = dict(run.rows("SELECT rank, host FROM ranks"))
    kernels = _kernels(run)
    if not kernels:
        _check_host_only(run, account)
    if copy_missing:
        run, survey, kernels = _copied(run, pipeline, survey, account, use_labels=use_labels)
    survey = survey or survey_run(run, account, use_labels=use_labels)
    groups = survey.pipelines or find_pipelines(run, p2p=survey.p2p, groups=survey.groups, use_labels=use_labels)
    group = chosen_pipeline(groups, pipeline, account)
    _check_recorded(run, group, kernels)
    steps = steps_of(run, group.ranks, account)
    chosen = choose_step(steps, group.ranks, step, account)
    how = _How(use_labels=use_labels, has_device=bool(kernels))
    messages, work = _work(run, group, chosen, survey, how, account)
    p2p_ops = stage_ops(run, chosen, messages, work.placed)
    check_times(chosen, p2p_ops, work.ranks, account)
    note_cautions(run, chosen, work.ranks, account)
    transfers = find_transfers(group, messages, p2p_ops, survey, account)
    memory = memory_facts(run, group, chosen, work.ranks, account)
    collectives = step_collectives(run, chosen)
    tails = tails_without_waits(run, group, work.ranks, collectives, account)
    uses = {rank: uses_of(w, collectives.get(rank, ())) for rank, w in work.ranks.items()}
    aligned = survey.clocks.aligned_ns
    origin = min(aligned(rank, s.start_ns) for rank, w in work.ranks.items() for s in w.segments)
    residents = read_residents(run, group, work.ranks)
    logs = {rank: facts.log for rank, facts in memory.items() if facts.log is not None}
    window_ns = max(aligned(rank, s.end_ns) for rank, w in work.ranks.items() for s in w.segments) - origin
    closeup = look_closely(run, group, chosen, work.ranks, residents, logs, window_ns, account)
    found = _pipeline(run, group, chosen, work.ranks, memory, tails, uses, transfers, messages)
    found = replace(
        found,
        stages=tuple(closeup.complete(stage) for stage in found.stages),
        buffered=buffers_sends(messages.messages, survey.clocks, account),
        outside_ns=outside_ns(run, group, chosen, work.ranks),
    )
    check_counts(transfers, found.observed.shape)
    _tell(account, found, work, transfers)
    tell_standing_buffers(found.ranks, account)
    if found.observed.shape.microbatches == 1 and found.p2p != "grouped":
        account.note(f"with one microbatch a trace cannot show how transfers are issued: {found.p2p} is assumed")
    return Reconstruction(
        pipeline=found,
        observed=observed_timeline(group, work.ranks, transfers, memory, survey.clocks, origin),
        p2p_ops=p2p_ops,
        segments={rank: w.segments for rank, w in work.ranks.items()},
        notes=tuple(account.notes),
        findings=tuple(account.findings),
        tables={
            "costs": [
                *cost_rows(chosen.number, work.ranks, residents),
                *(_other_costs(run, group, steps, chosen, survey, how, account) if every_step else ()),
            ],
            "kernel_actions": [*closeup.kernel_rows(), *loose_rows(work.ranks)],
            "layers": closeup.layer_rows(),
        },
        hosts=hosts,
        steps=tuple(steps),
        coordinates=survey.coordinates,
    )


def _copied(
    run: Run, number: int, survey: Survey | None, account: Account, *, use_labels: bool
) -> tuple[Run, Survey | None, dict[int, int]]:
    """The Run with copies of ranks that were not recorded, what is known of it, and its kernels per rank."""
    # What a look without the copies says is said again with them.
    seen = survey or survey_run(run, Account(), use_labels=use_labels)
    pipelines = seen.pipelines or find_pipelines(run, p2p=seen.p2p, groups=seen.groups, use_labels=use_labels)
    chosen_pipeline(pipelines, number, Account())
    copies = find_copies(run, pipelines, number)
    if copies:
        run = with_copies(run, copies, pipelines, seen.groups, account)
        survey = survey_run(run, account, use_labels=use_labels, copies=copies)
    return run, survey, _kernels(run)


def _kernels(run: Run) -> dict[int, int]:
    return dict(run.rows("SELECT rank, count(*) FROM events WHERE category = 'kernel' GROUP BY rank"))


def notes_of_sources(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was noted while reading, a line per note with the ranks that it concerns.

    Args:
        sources: Those of a Run's manifest.
    """
    ranks: dict[str, list[int]] = {}
    others = []
    for source in sources:
        for note in source["notes"]:
            if source["rank"] is None:
                others.append(f"{source['path']}: {note}")
            else:
                ranks.setdefault(note, []).append(source["rank"])
    return [f"{format_ranks(listed)}: {note}" for note, listed in ranks.items()] + others


def _check_host_only(run: Run, account: Account) -> None:
    """A trace without a device can be read only where the host itself computed: backwards ran, messages were sent."""
    ((events, nodes, messages),) = run.rows(
        "SELECT count(*), count(*) FILTER (category = 'op' AND starts_with(name, 'autograd::engine::')), "
        "(SELECT count(*) FROM comms WHERE operation IN ('send', 'recv')) FROM events"
    )
    if not (nodes and messages):
        raise NoDeviceActivity(
            f"{run.name} holds no kernels{': its traces show the host only' if events else ''}.",
            hint="record with ProfilerActivity.CUDA (or NPU), and export inside on_trace_ready"
            if events
            else "a vendor's analysis or communication records alone cannot be replayed: name the folders of the "
            "traces that it was made of (tracetool info says what is here)",
        )
    account.note("no kernels in the traces: the host's own ops are taken as the compute, as in a run on CPUs")


class _How(NamedTuple):
    """Whether labels may be used, and whether the traces hold a device."""

    use_labels: bool
    has_device: bool


def _work(
    run: Run, group: PipelineGroup, step: Step, survey: Survey, how: _How, account: Account
) -> tuple[StepMessages, Work]:
    messages = messages_of_step(survey, group, step)
    return messages, find_work(
        run, group, step, messages.posts, messages.messages,
        use_labels=how.use_labels, has_device=how.has_device, account=account,
    )  # fmt: skip


def _other_costs(
    run: Run, group: PipelineGroup, steps: Sequence[Step], chosen: Step, survey: Survey, how: _How, account: Account
) -> list[Row]:
    """What actions cost in the other complete steps, the nearest ones first if there are many."""
    others = [s for s in steps if s.status == "complete" and s.number != chosen.number]
    others.sort(key=lambda s: (abs(s.number - chosen.number), s.number))
    if len(others) > _MOST_OTHER_STEPS:
        account.note(
            f"costs are of {_MOST_OTHER_STEPS + 1} of {len(others) + 1} complete steps, those about the chosen one"
        )
    rows: list[Row] = []
    for step in others[:_MOST_OTHER_STEPS]:
        try:
            _, work = _work(run, group, step, survey, how, Account())
        except ReconstructError as error:
            account.note(f"step {step.number} is left out of the costs: {error.message}")
            continue
        rows += cost_rows(step.number, work.ranks, read_residents(run, group, work.ranks))
    return rows


def _tell(account: Account, pipeline: Pipeline, work: Work, transfers: Sequence[Transfer]) -> None:
    """Say how stages, microbatches and messages were found."""
    shape = pipeline.observed.shape
    for position, profile in enumerate(pipeline.ranks):
        mine = work.ranks[profile.rank]
        kinds = Counter(s.kind.value for s in mine.segments)
        stages = sorted({s.stage for s in mine.segments})
        account.find(
            "segments", f"rank {profile.rank}",
            f"pipeline rank {position}, {format_count(len(stages), 'stage')} ({format_ranges(stages)}): "
            + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            mine.evidence, work.confidence,
        )  # fmt: skip
    by_messages = work.placed is not None
    account.find(
        "transfers", "all",
        f"{len(transfers)} messages between {shape.stages} stages of {shape.microbatches} microbatches",
        "messages" if by_messages else "label",
        work.placed.agreeing / max(1, work.placed.messages) if work.placed is not None else 1.0,
        "both ends of each are neighbouring stages of one microbatch" if by_messages else None,
    )  # fmt: skip


def _check_recorded(run: Run, group: PipelineGroup, kernels: Mapping[int, int]) -> None:
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    missing = [rank for rank in group.ranks if rank not in recorded]
    if missing:
        raise MissingRank(
            f"{len(group.ranks) - len(missing)} of {len(group.ranks)} pipeline ranks were recorded "
            f"(missing: {', '.join(map(str, missing))}).",
            hint="add the traces of the missing ranks, or copy them from other pipelines (--copy-missing-ranks)",
        )
    silent = [rank for rank in group.ranks if kernels and rank not in kernels]
    if silent:
        damaged = [s["rank"] for s in run.manifest.get("sources", ()) if s["rank"] in silent and s["dropped"]]
        raise NoDeviceActivity(
            f"no kernels on {format_ranks(silent)} of the pipeline {list(group.ranks)}.",
            hint=f"the file of {format_ranks(damaged)} is damaged (tracetool info says where): fetch it again"
            if damaged
            else "record device activity on every pipeline rank (a rank with any file of its own is not copied "
            "from another one), or choose another --pipeline",
        )


def _pipeline(
    run: Run,
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
    observed = schedule_from_orders(orders, name="observed")
    devices = read_devices(run, group.ranks)
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
                collectives={kind: found for (of, kind), found in uses[rank].awaited.items() if of == stage},
            )
        )
    ranks = tuple(
        RankProfile(
            rank, memory[rank].static_bytes, tails[rank], devices[rank].hbm_bytes, memory[rank].tail_peak,
            memory[rank].overhead_bytes, known_load(devices[rank].name),
            standing_buffer_bytes(
                messages.posts[rank], memory[rank].log, [k.launch_ns for s in work[rank].segments for k in s.kernels]
            ),
            uses[rank].overlapped,
        )
        for rank in group.ranks
    )  # fmt: skip
    return Pipeline(tuple(stages), ranks, observed, p2p_mode(messages.posts), step.number)
