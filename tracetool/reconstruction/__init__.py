"""From a Run's tables to the pipeline that made them, and its observed Timeline.

The best evidence present wins: labels of the framework, then autograd's own sequence numbers, then the
types of kernels. What was found by which evidence is kept with the result; what was left out is noted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracetool.errors import CopyableRank, MissingRank, NoDeviceActivity, NoPipeline, Option, ReconstructError, checked
from tracetool.model.notice import Notice, NoticeCode, SourceCode, SubjectKind
from tracetool.model.pipeline import BLOCKING
from tracetool.model.scenario import Taken
from tracetool.reconstruction.actions.transfers import StageOp, buffers_sends, check_counts
from tracetool.reconstruction.capture import Account, Finding
from tracetool.reconstruction.capture.copies import find_copies, taken_copies, with_copies, without_source
from tracetool.reconstruction.capture.groups import PipelineGroup, chosen_pipeline, find_pipelines
from tracetool.reconstruction.capture.survey import Survey, kept_survey, kernels_of, survey_run
from tracetool.reconstruction.closeup import Row, closeup_of, loose_rows
from tracetool.reconstruction.closeup.contention import cost_rows
from tracetool.reconstruction.closeup.launches import find_launches, has_late_launches
from tracetool.reconstruction.memory.log import record_standing_buffers
from tracetool.reconstruction.reasons import captured, with_cause
from tracetool.reconstruction.recorded_step import RecordedStep, record_other_steps, record_step, with_beside
from tracetool.reconstruction.steps import Step, choose_step, steps_of
from tracetool.reconstruction.steps.reading import StepReading, step_evidence
from tracetool.units import format_count, format_ranges, format_ranks

KEPT = "reconstruction"
"""What a Run keeps the reconstruction as that is asked for without any wish."""
_AS_KEPT = (None, 0, False, True, False, None, None, None)
_MOST_OTHER_STEPS = 7
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.timeline import Timeline, Transfer
    from tracetool.reconstruction.actions import Segment
    from tracetool.reconstruction.actions.segments import StepWork
    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.reconstruction.closeup.contention import CostRow
    from tracetool.store.run import Run


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What a Run turned out to hold.

    Attributes:
        pipeline: Measured costs and the observed order.
        observed: The Timeline of the chosen step.
        p2p_ops: Every send and receive of the step, per global rank, in order of posting.
        segments: Every action of the step with its kernels, per global rank, on the rank's own clock.
        notes: What was inferred, left out or is missing.
        findings: Facts with the evidence for them.
        tables: Rows of the tables costs, kernel_actions and layers.
        hosts: Host of each recorded rank; None where its trace does not name it.
        steps: All steps of the pipeline, in order of time.
        coordinates: Where each rank of the job sits.
        recorded_steps: With ``every_step``, what each of them holds, in order of time.
        step_notes: With ``every_step``, what is to say about the others.
        taken: What of it was not measured where it is used.
    """

    pipeline: Pipeline
    observed: Timeline
    p2p_ops: Mapping[int, tuple[StageOp, ...]]
    segments: Mapping[int, tuple[Segment, ...]]
    notes: tuple[Notice, ...]
    findings: tuple[Finding, ...] = ()
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    hosts: Mapping[int, str | None] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    coordinates: tuple[Coordinates, ...] = ()
    recorded_steps: tuple[RecordedStep, ...] = field(default=(), repr=False, compare=False)
    step_notes: tuple[Notice, ...] = ()
    taken: Taken = field(default_factory=Taken)

    def __repr__(self) -> str:
        return f"<Reconstruction: {self.pipeline!r}>"

    @property
    def costs(self) -> list[CostRow]:
        """What every action of the step cost."""
        rows = cast("Sequence[CostRow]", self.tables.get("costs", ()))
        return [row for row in rows if row.step == self.pipeline.step]


@checked
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
    reading: StepReading | None = None,
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
        reading: Of the step that is looked at, among others, if it is read with those.

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
    as_kept = (step, pipeline, copy_missing, use_labels, every_step, survey, account, reading) == _AS_KEPT
    if as_kept and isinstance(kept := run.kept(KEPT), Reconstruction):
        return kept
    account = account or Account()
    for note in notes_of_sources(run.manifest.get("sources", ())):
        account.notes.add(note.code, note.text)
    hosts = dict(run.rows("SELECT rank, host FROM ranks"))
    noted = Account()
    if survey is None and use_labels and not copy_missing and (known := kept_survey(run)) is not None:
        survey, noted = known
    kernels = kernels_of(run) if survey is None else survey.kernels
    if not kernels:
        _check_host_only(run, account)
    account.take_up(noted)
    taken = Taken()
    if copy_missing:
        run, survey, kernels, taken = _copied(run, pipeline, survey, kernels, account, use_labels=use_labels)
    survey = survey or survey_run(run, account, use_labels=use_labels, kernels=kernels)
    run = survey.run
    pipelines = _because(run, list(kernels), lambda: _pipelines(survey, use_labels=use_labels))
    group = chosen_pipeline(pipelines, pipeline, account)
    _check_recorded(run, group, pipelines, kernels)
    _check_chain(group)
    run = run.of_ranks([*group.ranks, *taken.copied_ranks.values()])
    steps = steps_of(run, group.ranks, account, survey.clocks)
    chosen = _because(run, group.ranks, lambda: choose_step(steps, group.ranks, step, account))
    evidence = step_evidence(survey, use_labels=use_labels)
    reading = reading or StepReading(run, [chosen], group.ranks, evidence)
    try:
        recorded = record_step(reading, group, chosen, survey, account)
    except ReconstructError as error:
        raise with_cause(error, run, chosen.spans, group.ranks) from error
    work, transfers = recorded.work, recorded.transfers
    others: list[RecordedStep] = []
    turns = recorded.turns()
    is_late = has_late_launches(turns)
    beside = account if is_late else Account()
    if every_step or is_late:
        others = record_other_steps(run, group, steps, chosen, survey, evidence, beside, _MOST_OTHER_STEPS)
    recorded, *others = with_beside(run, group, [recorded, *others])
    launches = find_launches([turns, *(other.turns() for other in others)], account)
    logs = {rank: facts.log for rank, facts in recorded.memory.items() if facts.log is not None}
    closeup = closeup_of(
        reading, group, chosen, work.ranks, recorded.beside_ns, logs, recorded.window_ns, launches, account
    )
    pipe = replace(
        recorded.pipeline,
        stages=tuple(closeup.complete(stage) for stage in recorded.pipeline.stages),
        ranks=tuple(replace(rank, gaps_left_out=rank.rank in launches.ranks) for rank in recorded.pipeline.ranks),
        buffered=buffers_sends(recorded.messages.messages, survey.clocks, account),
    )
    check_counts(transfers, pipe.observed.shape)
    _record_findings(account, pipe, work, transfers)
    record_standing_buffers(pipe.ranks, account)
    if pipe.observed.shape.microbatches == 1 and pipe.p2p not in BLOCKING:
        account.note(
            NoticeCode.P2P_ASSUMED,
            f"with one microbatch a trace cannot show how transfers are issued: {pipe.p2p} is assumed",
        )
    others = others if every_step else []
    return Reconstruction(
        pipeline=pipe,
        observed=recorded.observed,
        p2p_ops=recorded.p2p_ops,
        segments={rank: w.segments for rank, w in work.ranks.items()},
        notes=tuple(account.notes),
        findings=tuple(account.findings),
        tables={
            "costs": [
                row for one in (recorded, *others) for row in cost_rows(one.step.number, one.work.ranks, one.beside_ns)
            ],
            "kernel_actions": [*closeup.kernel_rows(), *loose_rows(work.ranks)],
            "layers": closeup.layer_rows(),
        },
        hosts=hosts,
        steps=tuple(steps),
        coordinates=survey.coordinates,
        recorded_steps=tuple(sorted([recorded, *others], key=lambda each: each.step.start_ns)) if every_step else (),
        step_notes=() if is_late else tuple(beside.notes),
        taken=taken,
    )


def record_steps(run: Run, *, pipeline: int = 0, most: int = 32) -> list[RecordedStep]:
    """Look at complete steps without their single kernels: those about the one of median length, in order of time.

    Args:
        run: The ingested traces.
        pipeline: Which one of several side by side.
        most: So many steps at most.

    Raises:
        TraceToolError: As ``reconstruct``.
    """
    account = Account()
    survey = survey_run(run, account)
    if not survey.kernels:
        _check_host_only(run, account)
    run = survey.run
    pipelines = _pipelines(survey)
    group = chosen_pipeline(pipelines, pipeline, account)
    _check_recorded(run, group, pipelines, survey.kernels)
    _check_chain(group)
    run = run.of_ranks(group.ranks)
    steps = steps_of(run, group.ranks, account, survey.clocks)
    chosen = choose_step(steps, group.ranks, None, account)
    evidence = step_evidence(survey)
    recorded_steps = [
        record_step(StepReading(run, [chosen], group.ranks, evidence), group, chosen, survey, account),
        *record_other_steps(run, group, steps, chosen, survey, evidence, account, most - 1),
    ]
    return sorted(with_beside(run, group, recorded_steps), key=lambda each: each.step.start_ns)


def _because(run: Run, ranks: Sequence[int], find: Callable[[], T]) -> T:
    """What is found; if that fails, with what the whole capture of some ranks lacks as the cause."""
    try:
        return find()
    except ReconstructError as error:
        raise with_cause(error, run, captured(run, ranks), ranks) from error


def _pipelines(survey: Survey, *, use_labels: bool = True) -> Sequence[PipelineGroup]:
    """Those that were found, or the reason why there are none."""
    return survey.pipelines or find_pipelines(
        survey.run, p2p=survey.p2p, groups=survey.groups, use_labels=use_labels, rings=survey.rings
    )


def _copied(
    run: Run, number: int, survey: Survey | None, kernels: Mapping[int, int], account: Account, *, use_labels: bool
) -> tuple[Run, Survey | None, Mapping[int, int], Taken]:
    """The Run with copies of ranks that were not recorded, what is known of it, its kernels per rank, the copies."""
    # What a look without the copies says is said again with them.
    survey_of_run = survey or survey_run(run, Account(), use_labels=use_labels, kernels=kernels)
    pipelines = _pipelines(survey_of_run, use_labels=use_labels)
    chosen_pipeline(pipelines, number, Account())
    copies = find_copies(run, pipelines, number)
    if not copies:
        return run, survey, kernels, Taken()
    taken = taken_copies(run, survey_of_run.coordinates, copies)
    run = with_copies(run, taken, pipelines, survey_of_run.groups, account)
    survey = survey_run(run, account, use_labels=use_labels, copies=copies)
    return run, survey, survey.kernels, taken


def notes_of_sources(sources: Iterable[Mapping[str, Any]]) -> list[Notice]:
    """What was noted while reading, each once with the ranks that it concerns.

    Args:
        sources: Those of a Run's manifest.
    """
    ranks: dict[tuple[SourceCode, str], list[int]] = {}
    others = []
    for source in sources:
        for note, name in zip_longest(source["notes"], source.get("note_codes", ()), fillvalue=""):
            code = SourceCode.__members__.get(name, SourceCode.UNCODED)
            if source["rank"] is None:
                others.append(Notice(code, f"{source['path']}: {note}"))
            else:
                ranks.setdefault((code, note), []).append(source["rank"])
    return [Notice(code, f"{format_ranks(listed)}: {note}") for (code, note), listed in ranks.items()] + others


def unread_events(sources: Sequence[Mapping[str, Any]], ranks: Collection[int] | None = None) -> str:
    """How many events of which kinds no table took, in words; empty if there are none.

    Args:
        sources: Of a Run's manifest.
        ranks: Only of these; of all by default.
    """
    counts: Counter[str] = Counter()
    for source in sources:
        if ranks is None or source["rank"] in ranks:
            counts.update(source.get("unread", {}))
    kinds = ", ".join(kind for kind, _ in counts.most_common(6))
    return f"{format_count(counts.total(), 'event')} of kinds that are not read ({kinds})" if counts else ""


def _check_host_only(run: Run, account: Account) -> None:
    """A trace without a device can be read only where the host itself computed: backwards ran, messages were sent."""
    ((events, nodes, messages),) = run.rows(
        "SELECT count(*), count(*) FILTER (category = 'op' AND starts_with(name, 'autograd::engine::')), "
        "(SELECT count(*) FROM comms WHERE operation IN ('send', 'recv')) FROM events"
    )
    if not (nodes and messages):
        unread = unread_events(run.manifest.get("sources", ()))
        if unread:
            raise NoDeviceActivity(
                f"{run.name} holds no kernels among what is read, and {unread}.",
                hint="kernels of CUDA, HIP, XPU and Ascend devices are read; nothing tells what ran on this one",
            )
        raise NoDeviceActivity(
            f"{run.name} holds no kernels{': its traces show the host only' if events else ''}.",
            hint="record with ProfilerActivity.CUDA (or NPU), and export inside on_trace_ready"
            if events
            else "a vendor's analysis or communication records alone cannot be replayed: name the folders of the "
            "traces that it was made of (tracetool info says what is here)",
        )
    account.note(
        NoticeCode.HOST_ONLY,
        "no kernels in the traces: the host's own ops are taken as the compute, as in a run on CPUs",
    )


def _record_findings(account: Account, pipeline: Pipeline, work: StepWork, transfers: Sequence[Transfer]) -> None:
    """Say how stages, microbatches and messages were found."""
    shape = pipeline.observed.shape
    for position, profile in enumerate(pipeline.ranks):
        mine = work.ranks[profile.rank]
        kinds = Counter(s.kind.value for s in mine.segments)
        stages = sorted({s.stage for s in mine.segments})
        account.find(
            "segments", SubjectKind.RANK(profile.rank),
            f"pipeline rank {position}, {format_count(len(stages), 'stage')} ({format_ranges(stages)}): "
            + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            mine.evidence, work.confidence,
        )  # fmt: skip
    account.find(
        "transfers", "all",
        f"{len(transfers)} messages between {shape.stages} stages of {shape.microbatches} microbatches",
        "messages" if work.placed is not None else "label",
        work.placed.agreeing / max(1, work.placed.messages) if work.placed is not None else 1.0,
        None if work.placed is None else "both ends of each are neighbouring stages of one microbatch",
    )  # fmt: skip
    if pipeline.p2p == "blocking":
        account.find(
            "p2p", "all", "blocking: compute waits for each send and receive", "inferred", 1.0,
            "no compute kernel ran beside any of them",
        )  # fmt: skip


def _check_chain(group: PipelineGroup) -> None:
    if group.skips:
        skips = ", ".join(f"{a} and {b} (ranks {group.ranks[a]} and {group.ranks[b]})" for a, b in group.skips)
        raise NoPipeline(
            f"skip connections are not read: stages {skips} exchange messages past the stages between them.",
            hint="pipelines in which every stage talks to the next one alone can be replayed",
        )


def _check_recorded(
    run: Run, group: PipelineGroup, pipelines: Sequence[PipelineGroup], kernels: Mapping[int, int]
) -> None:
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    missing = [rank for rank in group.ranks if rank not in recorded]
    if missing:
        alone = without_source(group, pipelines, recorded)
        raise (MissingRank if alone else CopyableRank)(
            f"{len(group.ranks) - len(missing)} of {len(group.ranks)} pipeline ranks were recorded "
            f"(missing: {', '.join(map(str, missing))}).",
            hint=f"name the traces of the missing ranks, too: no other rank of the same stage as {format_ranks(alone)} "
            "was recorded"
            if alone
            else f"add the traces of the missing ranks, or replay with copies of others ({Option.COPY_MISSING.on})",
        )
    silent = [rank for rank in group.ranks if kernels and rank not in kernels]
    if silent:
        damaged = [s["rank"] for s in run.manifest.get("sources", ()) if s["rank"] in silent and s["dropped"]]
        raise NoDeviceActivity(
            f"no kernels on {format_ranks(silent)} of the pipeline {list(group.ranks)}.",
            hint=f"the file of {format_ranks(damaged)} is damaged (tracetool info says where): fetch it again"
            if damaged
            else "record device activity on every pipeline rank (a rank with any file of its own is not copied "
            f"from another one), or choose another {Option.PIPELINE}",
        )
