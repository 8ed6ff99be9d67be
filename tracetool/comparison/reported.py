"""What reports say: of their steps, where they hold no recording, and of the schedules that they replayed.

Reports that ``tracetool replay --json`` wrote, read again: by compare, and into histories.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.comparison.report import REPORT_SCHEMA, ReportInfo
from tracetool.comparison.values import Key, Values
from tracetool.errors import SchemaVersion, StoreError, TraceToolError
from tracetool.ingestion.recording import RECORDING_VERSION, Recording, StepRecord, pipeline_of
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import max_if_known
from tracetool.tables.metrics import IN_REPORTS, METRICS, OF_RANK, OF_REPLAY
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.comparison.report import EachStepInfo, ResultInfo, StepInfo

StepOf = tuple[str, tuple[int, ...], int]
"""What tells a step from all others: digest of the traces, ranks of the pipeline, number."""

_OVER_BASELINE = ("reduction", "step_change_ratio", "step_change_error_ratio")
_WORDS = frozenset(
    ("$schema", "schema_version", "tool_version", "command", "notes", "warnings", "remark", "name", "refused",
     "scenario", "taken", "choice")
)  # fmt: skip
"""What of a report is no figure, but words or what was asked."""


def values_of_reports(reports: Sequence[ReportInfo], known: set[StepOf]) -> tuple[dict[Key, Values], list[Notice]]:
    """Values of reports, each step once, and notes on schedules that were replayed in several ways.

    Args:
        reports: Those of one side.
        known: Steps that a recording of the side tells.
    """
    ways: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        for result in report.results:
            settings = "".join(f", {name} {value}" for name, value in result.chosen.items())
            ways[result.schedule].add(f"{result.variant}, {result.microbatches} microbatches{settings}")
    rows: dict[Key, dict[StepOf, float]] = defaultdict(dict)
    for report in reports:
        of = report.run.digest, tuple(report.run.global_ranks)
        looked_at = (*of, report.step.number)
        for result in report.results:
            if len(ways[result.schedule]) > 1:
                continue
            for name in OF_REPLAY:
                for number, value in result.by_step(name, report.step.number).items():
                    rows[Key(name, result.schedule)].setdefault((*of, number), value)
            _add_peak(rows, result.peak_hbm_bytes, result.schedule, looked_at)
        if report.recording is None and looked_at not in known:
            _add_step(rows, report, looked_at)
    several = [
        Notice(
            NoticeCode.NOT_COMPARED,
            f"{name} was replayed in several ways on one side ({'; '.join(sorted(by_report))}): it is not compared",
        )
        for name, by_report in ways.items()
        if len(by_report) > 1
    ]
    return {key: Values(tuple(by_report.values())) for key, by_report in rows.items()}, several


def _add_step(rows: dict[Key, dict[StepOf, float]], report: ReportInfo, step: StepOf) -> None:
    for name in IN_REPORTS:
        rows[Key(name)].setdefault(step, getattr(report.step, name))
    _add_peak(rows, report.step.peak_hbm_bytes, "", step)
    for name in OF_RANK:
        for rank, size in zip(report.run.global_ranks, getattr(report.step, name), strict=False):
            if size is not None:
                rows[Key(name, f"rank{rank}")].setdefault(step, size)


def _add_peak(rows: dict[Key, dict[StepOf, float]], sizes: Sequence[int | None], scope: str, step: StepOf) -> None:
    peak = max_if_known(sizes)
    if peak is not None:
        rows[Key("peak_hbm_bytes", scope)].setdefault(step, peak)


def scenario_of(reports: Sequence[ReportInfo]) -> Mapping[str, Any] | None:
    """What the reports asked; None if they asked several things."""
    asked = [report.asked for report in reports]
    return asked[0] if asked and all(each == asked[0] for each in asked) else None


def figures_of(path: Path) -> dict[str, object]:
    """Every figure of a report by its path, as ``results[geopipe].feasible``; words are none.

    Args:
        path: A report that was read already.
    """
    report = msgspec.json.decode(path.read_bytes())
    # Reductions and changes are over the baseline, which may be another schedule.
    over = (report.get("baseline") or {}).get("schedule")
    return {f"{at} over {over}" if at.endswith(_OVER_BASELINE) else at: value for at, value in _figures(report, "")}


def _figures(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        if path == "baseline":
            path = f"baseline[{value.get('schedule')}]"
        if path.endswith(".jitter"):
            path = f"{path}[{value.get('seed')}]"
        for key, of_key in value.items():
            if key not in _WORDS:
                yield from _figures(of_key, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            # Schedules by their names: two reports need not have asked for the same ones.
            named = each.get("schedule", place) if isinstance(each, dict) else place
            yield from _figures(each, f"{path}[{named}]")
    else:
        yield path, value


_LONGEST_NS = 366 * 86_400 * 10**9


def differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of what was asked otherwise; what only one version of the tool knows of is as the other one does it."""
    # A what-if without a network is on none: versions that knew of none had none.
    one, other = ({"network": None, **side} for side in (base, new))
    return [key for key, value in one.items() if key in other and other[key] != value]


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
            damage = error.message.rstrip(".") if isinstance(error, TraceToolError) else str(error)
            yield f"step {step.number} of its recording cannot be run: {damage}"
