"""Reports that ``tracetool replay --json`` wrote, read again: by compare, and into histories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.comparison.report import REPORT_SCHEMA, ReportInfo
from tracetool.errors import SchemaVersion, StoreError, TraceToolError
from tracetool.ingestion.recording import RECORDING_VERSION, Recording, StepRecord, pipeline_of
from tracetool.tables.metrics import IN_REPORTS, METRICS
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracetool.comparison.report import EachStepInfo, ResultInfo, StepInfo

_LONGEST_NS = 366 * 86_400 * 10**9


def differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of what was asked otherwise; what only one version of the tool knows of is as the other one does it."""
    return [key for key, value in base.items() if key in new and new[key] != value]


def read_report(path: Path) -> ReportInfo:
    """Read a report of ``tracetool replay --json``.

    Raises:
        StoreError: If it cannot be read or is damaged.
        SchemaVersion: If another major version of the schema, or of the report, wrote it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}.", hint="name a report.json") from error
    again = "write it again with: tracetool replay TRACES --json > report.json"
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}.", hint=again) from error
    if not isinstance(head, dict):
        raise StoreError(f"{path} is damaged: it holds no report.", hint=again)
    identifier, version = (str(head.get(key)) for key in ("$schema", "schema_version"))
    if identifier != REPORT_SCHEMA:
        raise SchemaVersion(
            f"{path} is {identifier}; a report is {REPORT_SCHEMA}.",
            hint="name what 'tracetool replay --json' wrote",
        )
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise SchemaVersion(
            f"{path} has schema version {version}, this tool reads {SCHEMA_VERSION}.",
            hint=f"its traces are needed: {head.get('command', again)} > {path.name}",
        )
    try:
        report = msgspec.json.decode(data, type=ReportInfo)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path} is damaged: {error}.", hint=again) from error
    why = next(_damages(report), None)
    if why is not None:
        raise StoreError(f"{path} is damaged: {why}.", hint=again)
    return report


def _damages(report: ReportInfo) -> Iterator[str]:
    """What of a report cannot be."""
    names = [report.tool_version, report.run.digest, *(result.schedule for result in report.results)]
    if not all(name.isprintable() for name in names) or not all(result.schedule for result in report.results):
        yield "a name in it is empty, or holds what cannot be printed"
    kept = report.recording
    parts: list[StepInfo | ResultInfo | EachStepInfo | StepRecord] = [report.step, *report.results]
    parts += [each for result in report.results for each in result.each_step]
    if kept is not None:
        yield from _damages_of_recording(kept, report.run.digest)
        parts += kept.steps
    times = [time for part in parts for time in (part.step_ns, part.window_ns)]
    ratios = [getattr(part, name) for part in parts for name in IN_REPORTS if METRICS[name].unit == "1"]
    if not all(0 < time <= _LONGEST_NS for time in times) or not all(0 <= ratio <= 1 for ratio in ratios):
        yield "a step takes no time, more than a year, or idles for more than all of it"


def _damages_of_recording(kept: Recording, digest: str) -> Iterator[str]:
    if kept.digest != digest:
        yield "its recording is of other traces than the report"
    if kept.version != RECORDING_VERSION:
        yield f"its recording is of version {kept.version}, this tool reads {RECORDING_VERSION}"
    if not kept.steps or not all(0 <= step.order < len(kept.orders) for step in kept.steps):
        yield "its recording has no steps, or orders that are not there"
        return
    if len({step.number for step in kept.steps}) < len(kept.steps):
        yield "its recording has two steps of one number"
    for step in kept.steps:
        rows = [action.duration_ns for action in step.actions.values()]
        rows += [message.each_ns for message in step.messages.values()]
        tails = [part.duration_ns for rank in step.ranks for part in rank.tail]
        moved = [message.transfer_ns for message in step.messages.values()]
        times = [time for row in (*rows, tails, moved) for time in row]
        if not step.actions or not all(rows) or not all(0 <= time <= _LONGEST_NS for time in times):
            yield f"step {step.number} of its recording lacks times, or has some that cannot be"
            continue
        try:
            pipeline_of(kept, step)
        except (ValueError, LookupError, StopIteration, TraceToolError) as error:
            told = error.message.rstrip(".") if isinstance(error, TraceToolError) else str(error)
            yield f"step {step.number} of its recording cannot be run: {told}"
