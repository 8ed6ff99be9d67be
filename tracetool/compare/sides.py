"""What is compared: recordings, or reports that replay wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tracetool.compare.values import OF_STEP, Key, Values, values_of
from tracetool.compare.work import check_one_job
from tracetool.recording import Recording, recording_of
from tracetool.report_file import read_report
from tracetool.tables import SCHEMA_VERSION
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.report_file import ReportFile, ResultPart
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class Source:
    """One Run or report of a side.

    Attributes:
        name: What the user named.
        digest: Digest of the traces.
        tool_version: Version that measured.
        schema_version: Version of the schema it was written by.
        steps: Numbers of the steps it holds.
    """

    name: str
    digest: str
    tool_version: str
    schema_version: str
    steps: tuple[int, ...]


class ReportedReplay(NamedTuple):
    """What a report says of a schedule.

    Attributes:
        step: Number of the step whose costs it took.
        result: The schedule and its figures.
    """

    step: int
    result: ResultPart


@dataclass(frozen=True, slots=True)
class Side:
    """The base, or the new side.

    Attributes:
        sources: Its Runs and reports, in the order given.
        values: What it measured.
        recordings: Those of its sources that hold costs; without any no cause can be told.
        scenario: What its reports replayed, as they say; None without reports.
        replays: Per schedule that its reports replayed, how; of several reports the first one's.
        notes: What was left out.
    """

    sources: tuple[Source, ...]
    values: Mapping[Key, Values]
    recordings: tuple[Recording, ...]
    scenario: Mapping[str, Any] | None = None
    replays: Mapping[str, ReportedReplay] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of its traces, sorted."""
        return tuple(sorted(source.digest for source in self.sources))


def side_of(items: Sequence[tuple[str, Run | Path | Recording]], *, pipeline: int = 0) -> Side:
    """Read a side.

    Args:
        items: Per source its name and a Run, the path of a report, or a recording.
        pipeline: Which one of several side by side, of Runs.

    Raises:
        ScenarioError: If two are recordings of other work.
        StoreError: If a report cannot be read, or is of another schema.
        TraceToolError: If a Run holds no pipeline that could be reconstructed.
    """
    sources, named, reports = [], list[tuple[str, Recording]](), []
    for name, item in items:
        if isinstance(item, Path):
            report = read_report(item)
            reports.append(report)
            if report.recording is not None:
                named.append((name, report.recording))
            run = report.run
            steps = [s.number for s in report.recording.steps] if report.recording else [report.step.number]
            sources.append(Source(name, run.digest, report.tool_version, report.schema_version, tuple(steps)))
            continue
        recording = item if isinstance(item, Recording) else recording_of(item, pipeline=pipeline)
        version = SCHEMA_VERSION if isinstance(item, Recording) else str(item.manifest["schema_version"])
        named.append((name, recording))
        numbers = tuple(step.number for step in recording.steps)
        sources.append(Source(name, recording.digest, recording.tool_version, version, numbers))
    left_out = [told for name, recording in named for told in _left_out(name, recording)]
    check_one_job(named)
    recordings, notes = _each_once([recording for _, recording in named])
    values: dict[Key, Values] = dict(values_of(recordings))
    for key, found in _values_of_reports(reports).items():
        before = values.get(key)
        values[key] = found if before is None else Values(before.per_step + found.per_step)
    scenarios = [report.scenario for report in reports]
    scenario = scenarios[0] if scenarios and all(each == scenarios[0] for each in scenarios) else None
    replays = {
        result.schedule: ReportedReplay(report.step.number, result)
        for report in reversed(reports)
        for result in report.results
    }
    return Side(tuple(sources), values, tuple(recordings), scenario, replays, (*left_out, *notes))


def _left_out(name: str, recording: Recording) -> list[str]:
    """What of the traces is not compared: a change there would not be seen."""
    told = []
    if recording.pipelines > 1:
        told.append(
            f"{name}: one of {recording.pipelines} pipelines side by side is compared (ranks "
            f"{format_ranges(recording.global_ranks)}), a change in another one is not seen: --pipeline N looks at it"
        )
    steps = len(recording.steps)
    if recording.complete_steps is not None and recording.complete_steps > steps:
        told.append(
            f"{name}: {steps} of {recording.complete_steps} complete steps are compared, those about the one of median "
            "length"
        )
    return told


def _each_once(recordings: Sequence[Recording]) -> tuple[list[Recording], tuple[str, ...]]:
    """Recordings without the steps that an earlier one has: the same traces twice are no more evidence than once."""
    seen: set[tuple[str, int]] = set()
    kept, twice = [], 0
    for recording in recordings:
        new = [step for step in recording.steps if (recording.digest, step.number) not in seen]
        seen |= {(recording.digest, step.number) for step in new}
        twice += len(recording.steps) - len(new)
        if new:
            kept.append(msgspec.structs.replace(recording, steps=new))
    told = f"{format_count(twice, 'step')} of the same traces given twice: each counts once"
    return kept, (told,) if twice else ()


def _values_of_reports(reports: Sequence[ReportFile]) -> dict[Key, Values]:
    """What reports say of their step, where they hold no recording, and of the schedules they replayed."""
    rows: dict[Key, list[float]] = {}
    seen: set[tuple[Key, str, int]] = set()
    for report in reports:
        for result in report.results:
            for name in ("step_ns", "window_ns", "bubble_ns", "bubble_ratio", "cross_dc_bubble_ns"):
                key = Key(name, result.schedule)
                for number, value in result.by_step(name, report.step.number).items():
                    # The same step twice is no more evidence than once.
                    if (key, report.run.digest, number) not in seen:
                        seen.add((key, report.run.digest, number))
                        rows.setdefault(key, []).append(value)
            _peaks(rows, result.peak_hbm_bytes, result.schedule)
        if report.recording is None:
            for name in OF_STEP:
                if name != "compute_ns":
                    rows.setdefault(Key(name), []).append(getattr(report.step, name))
            _peaks(rows, report.step.peak_hbm_bytes, "")
            for name, sizes in (("peak_hbm_bytes", report.step.peak_hbm_bytes),
                                ("overhead_bytes", report.step.overhead_bytes)):  # fmt: skip
                for rank, size in zip(report.run.global_ranks, sizes, strict=False):
                    if size is not None:
                        rows.setdefault(Key(name, f"rank{rank}"), []).append(size)
    return {key: Values(tuple(found)) for key, found in rows.items()}


def _peaks(rows: dict[Key, list[float]], sizes: Sequence[int | None], scope: str) -> None:
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        rows.setdefault(Key("peak_hbm_bytes", scope), []).append(max(known))


def is_report(path: Path) -> bool:
    """Whether a path is a JSON file that says it is a report, or is none that a reader of traces would know."""
    if not path.is_file() or path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        return b'"urn:tracetool:schema:' in file.read(200)
