"""What is compared: recordings, or reports that replay wrote.

What was computed: recordings of other work may be compared, but their steps cannot, nor are they one job's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from tracetool.comparison.job import ChosenPipeline, Item, as_the_first, chosen_pipelines, is_waited_for
from tracetool.comparison.reported import StepOf, figures_of, read_report, scenario_of, values_of_reports
from tracetool.comparison.values import Key, Values, values_of
from tracetool.errors import Option, ScenarioError, TraceToolError
from tracetool.ingestion.recording import Recording, recording_of
from tracetool.model.job import ALIKE_RATIO
from tracetool.model.notice import Notice, NoticeCode, Notices, SubjectKind
from tracetool.reconstruction.job import SlowRank, slow_ranks
from tracetool.store.run import Run
from tracetool.tables.run import SCHEMA_VERSION
from tracetool.units import format_count, format_ranges, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.comparison.report import ResultInfo

Named = tuple[str, Item]
_ALIKE = 0.05
"""Kernels of an action may be more or fewer by that share: libraries choose. Beyond it the action is another one."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the steps of a recording compute.

    Attributes:
        stages: Number of stages.
        global_ranks: Ranks of the pipeline.
        microbatches: Microbatches of a step.
        payload_bytes: Per sending stage and kind the bytes of a message, where they are known.
        kernels: Per stage and kind the compute kernels of an action, where they are known.
        holders: Ranks that hold the same stages; None where one pipeline is all that is known.
    """

    stages: int
    global_ranks: tuple[int, ...]
    microbatches: int
    payload_bytes: Mapping[str, int]
    kernels: Mapping[str, int]
    holders: int | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Stages, ranks and microbatches."""
        return self.stages, len(self.global_ranks), self.microbatches

    def is_as_large(self, other: Work) -> bool:
        """Whether both have as many stages, ranks and microbatches, as far as is known."""
        return self.shape == other.shape and (None in (self.holders, other.holders) or self.holders == other.holders)


def work_of(recording: Recording) -> Work:
    """The work of a recording, by its first step."""
    step = recording.steps[0]
    return Work(
        stages=len({name.rstrip("FBIWR") for name in step.actions}),
        global_ranks=tuple(recording.global_ranks),
        microbatches=max(len(action.duration_ns) for action in step.actions.values()),
        payload_bytes={n: m.payload_bytes for n, m in step.messages.items() if m.payload_bytes is not None},
        kernels={name: action.kernels for name, action in step.actions.items() if action.kernels is not None},
        holders=None if recording.job is UNSET else max(len(stage.ranks) for stage in recording.job.stages),
    )


def differences(one: Work, other: Work) -> list[str]:
    """In what two recordings differ, as ``8 against 16 microbatches``; empty if they may be of one job."""
    texts = [
        f"{here} against {there} {noun}"
        for here, there, noun in (
            (one.stages, other.stages, "stages"), (one.microbatches, other.microbatches, "microbatches"),
            (one.holders, other.holders, "ranks per stage"),
        )
        if None not in (here, there) and here != there
    ]  # fmt: skip
    if one.global_ranks != other.global_ranks:
        texts.append(f"ranks {format_ranges(one.global_ranks)} against {format_ranges(other.global_ranks)}")
    if one.stages != other.stages:
        return texts
    pairs = ((n, one.payload_bytes[n], other.payload_bytes[n]) for n in one.payload_bytes if n in other.payload_bytes)
    sizes = [f"{format_size(a)} against {format_size(b)} ({name})" for name, a, b in pairs if a != b]
    texts += [f"messages of {sizes[0]}"] if sizes else []
    counts = ((n, one.kernels[n], other.kernels[n]) for n in one.kernels if n in other.kernels)
    apart = [(abs(a - b) / max(a, b, 1), f"{a} against {b} kernels in {n}") for n, a, b in counts]
    worst = max(apart, default=(0.0, ""))
    return [*texts, worst[1]] if worst[0] > _ALIKE else texts


def check_one_job(named: Sequence[tuple[str, Recording]]) -> None:
    """Refuse recordings of other work on one side: their steps are no steps of one job.

    Args:
        named: The recordings of a side, each with its name.

    Raises:
        ScenarioError: If two differ.
    """
    for name, recording in named[1:]:
        apart = differences(work_of(named[0][1]), work_of(as_the_first(named[0][1], recording)))
        if apart:
            raise ScenarioError(
                f"{named[0][0]} and {name} are not of one job: {'; '.join(apart)}.",
                hint="a side is one job, recorded several times: compare others one by one",
            )


@dataclass(frozen=True, slots=True)
class SideSource:
    """One Run or report of a side.

    Attributes:
        name: What the user named.
        digest: Digest of the traces.
        tool_version: Version that measured.
        schema_version: Version of the schema it was written by.
        steps: Numbers of the steps it holds.
        global_ranks: Ranks of its pipeline.
    """

    name: str
    digest: str
    tool_version: str
    schema_version: str
    steps: tuple[int, ...]
    global_ranks: tuple[int, ...]

    @property
    def each_step(self) -> set[StepOf]:
        """What tells each of its steps from all others."""
        return {(self.digest, self.global_ranks, number) for number in self.steps}


class ReportedReplay(NamedTuple):
    """What a report says of a schedule.

    Attributes:
        step: Number of the step whose costs it took.
        result: The schedule and its figures.
    """

    step: int
    result: ResultInfo


@dataclass(frozen=True, slots=True)
class Side:
    """The base, or the new side.

    Attributes:
        sources: Its Runs and reports, in the order given.
        values: What it measured.
        recordings: Those of its sources that hold costs; without any no cause can be told.
        scenario: What its reports replayed, as they say; None without reports.
        replays: Per schedule that its reports replayed, all in one way, how.
        figures: Of a side that is one report, every figure of it by its path; else None.
        notes: What was left out.
    """

    sources: tuple[SideSource, ...]
    values: Mapping[Key, Values]
    recordings: tuple[Recording, ...]
    scenario: Mapping[str, Any] | None = None
    replays: Mapping[str, ReportedReplay] = field(default_factory=dict)
    figures: Mapping[str, object] | None = None
    notes: tuple[Notice, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of its traces, sorted."""
        return tuple(sorted(source.digest for source in self.sources))


def sides_of(base: Sequence[Named], new: Sequence[Named], *, pipeline: int | None = None) -> tuple[Side, Side]:
    """Read both sides, of jobs with several pipelines the one that sets the step of each.

    Args:
        base: Per source of the base its name and a Run, or the path of a report.
        new: Likewise.
        pipeline: Which one of several side by side, of Runs; by default that which sets the step.

    Raises:
        ScenarioError: If two of a side are recordings of other work.
        StoreError: If a report cannot be read, or is of another schema.
        TraceToolError: If a Run holds no pipeline that could be reconstructed.
    """
    if pipeline is not None:
        base_side, new_side = (side_of(side, [ChosenPipeline(pipeline)] * len(side)) for side in (base, new))
    else:
        chosen = chosen_pipelines(*([item for _, item in side] for side in (base, new)))
        base_side, new_side = (side_of(side, each) for side, each in zip((base, new), chosen, strict=True))
    return base_side, new_side


def side_of(items: Sequence[tuple[str, Run | Path | Recording]], chosen: Sequence[ChosenPipeline | None] = ()) -> Side:
    """Read a side.

    Args:
        items: Per source its name and a Run, the path of a report, or a recording.
        chosen: Per source, which pipeline of a Run is meant; by default that which sets its step.

    Raises:
        ScenarioError: If two are recordings of other work.
        StoreError: If a report cannot be read, or is of another schema.
        TraceToolError: If a Run holds no pipeline that could be reconstructed.
    """
    sources, named, reports = [], list[tuple[str, Recording]](), []
    left_out: list[Notice] = []
    for (given, item), choice in zip_longest(items, chosen):
        # Names of files may hold anything: what is not printable could steer a terminal, or a runner of CI.
        name = "".join(sign if sign.isprintable() else "?" for sign in given)
        if isinstance(item, Path):
            report = read_report(item)
            reports.append(report)
            if report.recording is not None:
                named.append((name, report.recording))
                left_out += _left_out(name, report.recording, ())
            run = report.run
            steps = [s.number for s in report.recording.steps] if report.recording else [report.step.number]
            ranks = tuple(run.global_ranks)
            sources.append(
                SideSource(name, run.digest, report.tool_version, report.schema_version, tuple(steps), ranks)
            )
            continue
        if isinstance(item, Recording):
            recording = item
        else:
            number, longest = choice or (None, None)
            try:
                recording = recording_of(item, pipeline=number, longest=longest)
            except TraceToolError as error:
                raise type(error)(f"{name}: {error.message}", hint=error.hint) from error
        slow = slow_ranks(item) if isinstance(item, Run) else ()
        left_out += _left_out(name, recording, slow)
        version = SCHEMA_VERSION if isinstance(item, Recording) else str(item.manifest["schema_version"])
        named.append((name, recording))
        numbers = tuple(step.number for step in recording.steps)
        ranks = tuple(recording.global_ranks)
        sources.append(SideSource(name, recording.digest, recording.tool_version, version, numbers, ranks))
    check_one_job(named)
    # Whatever the order in which a shell lists them, the same sources are the same side.
    named.sort(key=lambda one: (one[1].digest, one[1].global_ranks))
    reports.sort(key=lambda report: (report.run.digest, report.run.global_ranks, report.step.number))
    recordings, notes = _each_once([recording for _, recording in named])
    values: dict[Key, Values] = dict(values_of([as_the_first(recordings[0], one) for one in recordings]))
    known = {(r.digest, tuple(r.global_ranks), step.number) for r in recordings for step in r.steps}
    reported, conflicts = values_of_reports(reports, known)
    for key, figures in reported.items():
        before = values.get(key)
        values[key] = figures if before is None else Values(before.per_step + figures.per_step)
    only_report = [item for _, item in items if isinstance(item, Path)] if len(items) == len(reports) == 1 else []
    return Side(
        sources=tuple(sources),
        values=values,
        recordings=tuple(recordings),
        scenario=scenario_of(reports),
        replays={
            result.schedule: ReportedReplay(report.step.number, result)
            for report in reports
            for result in report.results
            if Key("step_ns", result.schedule) in reported
        },
        figures=next(map(figures_of, only_report), None),
        notes=(*left_out, *notes, *conflicts),
    )


def _left_out(name: str, recording: Recording, slow: Sequence[SlowRank]) -> list[Notice]:
    """What of the traces is not compared: a change there would not be seen."""
    notices = Notices()
    if others := _other_pipelines(recording):
        notices.add(NoticeCode.PIPELINES_LEFT_OUT, f"{name}: {others}")
    if recording.job is not UNSET:
        for number, why in recording.job.unread.items():
            text = f"{name}: whether pipeline {number} sets the step is not known: {why}"
            notices.add(NoticeCode.PIPELINE_LEFT_OUT, text, subject=SubjectKind.PIPELINE(number))
    if slow and slow[0].rank not in recording.global_ranks and is_waited_for(recording, slow[0].rank):
        notices.add(
            NoticeCode.RANK_SLOW_ELSEWHERE,
            f"{name}: {slow[0]}; those compared may wait for it: {Option.PIPELINE(slow[0].pipeline)} looks at it",
            subject=SubjectKind.RANK(slow[0].rank),
        )
    steps = len(recording.steps)
    if recording.complete_steps is not None and recording.complete_steps > steps:
        notices.add(
            NoticeCode.STEPS_LEFT_OUT,
            f"{name}: {steps} of {recording.complete_steps} complete steps are compared, those about the one of "
            "median length",
        )
    return notices


def _other_pipelines(recording: Recording) -> str:
    """What of the other pipelines of a job is not compared; empty of a single one."""
    job, ranks = recording.job, format_ranges(recording.global_ranks)
    if job is UNSET:
        known = recording.pipelines > 1
        return f"one of {recording.pipelines} pipelines side by side is compared (ranks {ranks})" if known else ""
    count = max(len(stage.ranks) for stage in job.stages)
    text = f"one of {count} pipelines side by side is compared (ranks {ranks})"
    if len(job.recorded) > 1 and job.sets_step:
        text += f", which sets the step: none that was recorded takes longer by {ALIKE_RATIO:.0%} or more"
    elif len(job.recorded) > 1:
        text += f", a change in another one is not seen: {Option.PIPELINE('N')} looks at it"
    if missing := count - len(job.recorded):
        text += f"; {'the other' if count == 2 else missing} {'was' if missing == 1 else 'were'} not recorded whole"
        text += ", a change there is not seen"
    return text


def _each_once(recordings: Sequence[Recording]) -> tuple[list[Recording], tuple[Notice, ...]]:
    """Recordings without the steps that an earlier one has: the same traces twice are no more evidence than once."""
    known: set[StepOf] = set()
    kept, twice = [], 0
    for recording in recordings:
        of = recording.digest, tuple(recording.global_ranks)
        new = [step for step in recording.steps if (*of, step.number) not in known]
        known |= {(*of, step.number) for step in new}
        twice += len(recording.steps) - len(new)
        if new:
            kept.append(msgspec.structs.replace(recording, steps=new))
    sentence = f"{format_count(twice, 'step')} of the same traces given twice: each counts once"
    return kept, (Notice(NoticeCode.STEPS_SHARED, sentence),) if twice else ()


def is_report(path: Path) -> bool:
    """Whether a path is a JSON file that says it is a report, or is none that a reader of traces would know."""
    if not path.is_file() or path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        return b'"urn:tracetool:schema:' in file.read(200)
