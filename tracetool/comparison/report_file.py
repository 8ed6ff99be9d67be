"""Reports that ``tracetool replay --json`` wrote, read again: by compare, and into histories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.errors import SchemaVersion, StoreError, TraceToolError
from tracetool.ingestion.recording import RECORDING_VERSION, Recording, StepRecord, pipeline_of
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LONGEST_NS = 366 * 86_400 * 10**9
REPORT_SCHEMA = "urn:tracetool:schema:1:report"


class RunPart(msgspec.Struct):
    """Which recording."""

    name: str
    digest: str
    global_ranks: list[int]


class StepPart(msgspec.Struct):
    """The step that was observed."""

    number: int
    step_ns: int
    window_ns: int
    bubble_ns: int
    bubble_ratio: float
    peak_hbm_bytes: list[int | None]
    microbatches: int | None = None
    overhead_bytes: list[int | None] = []


class EachStepPart(msgspec.Struct):
    """A result by one recorded step."""

    number: int
    step_ns: int
    window_ns: int
    bubble_ns: int
    bubble_ratio: float
    cross_dc_bubble_ns: int


class ResultPart(msgspec.Struct):
    """A schedule that was replayed."""

    schedule: str
    p2p: str
    step_ns: int
    window_ns: int
    bubble_ns: int
    bubble_ratio: float
    cross_dc_bubble_ns: int
    peak_hbm_bytes: list[int | None]
    extra_forwards: list[int] | None = None
    microbatches: int | None = None
    each_step: list[EachStepPart] = []
    choice: dict[str, Any] = {}

    def by_step(self, metric: str, looked_at: int) -> dict[int, float]:
        """A metric of the step by each recorded step, in order of time, by the step's number.

        Args:
            metric: Its name.
            looked_at: Number of the step that the result itself is of.
        """
        others: dict[int, float] = {one.number: getattr(one, metric) for one in self.each_step}
        return others | {looked_at: getattr(self, metric)}

    @property
    def chosen(self) -> dict[str, Any]:
        """What was asked of it alone, without what was left to be chosen."""
        return {name: value for name, value in self.choice.items() if value is not None}

    @property
    def variant(self) -> str:
        """How it ran, as in ``+2,2,0,0 in-order``."""
        depth = "+" + ",".join(map(str, self.extra_forwards)) if self.extra_forwards else ""
        return f"{depth} {self.p2p}".strip()


class ReportFile(msgspec.Struct):
    """What is read of a report; what later versions add is not."""

    schema_version: str
    tool_version: str
    command: str
    run: RunPart
    step: StepPart
    scenario: dict[str, Any]
    results: list[ResultPart]
    baseline: ResultPart | None = None
    notes: list[str] = []
    taken: dict[str, Any] = {}
    recording: Recording | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """The what-if, and what was taken from other recordings, as far as the version that wrote it knew of it.

        As many microbatches as were recorded are none asked for.
        """
        noted = {note.split(" ")[0] for note in self.notes if note.startswith(("--costs-from", "--memory-from"))}
        results = [*self.results, *([] if self.baseline is None else [self.baseline])]
        found = next((result.microbatches for result in results), None)
        return {
            **self.scenario,
            **self.taken,
            "microbatches": None if found == self.step.microbatches else found,
            "taken": sorted(noted),
        }


def differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of what was asked otherwise; what only one version of the tool knows of is as the other one does it."""
    return [key for key, value in base.items() if key in new and new[key] != value]


def read_report(path: Path) -> ReportFile:
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
        report = msgspec.json.decode(data, type=ReportFile)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path} is damaged: {error}.", hint=again) from error
    why = next(_damages(report), None)
    if why is not None:
        raise StoreError(f"{path} is damaged: {why}.", hint=again)
    return report


def _damages(report: ReportFile) -> Iterator[str]:
    """What of a report cannot be."""
    names = [report.tool_version, report.run.digest, *(result.schedule for result in report.results)]
    if not all(name.isprintable() for name in names) or not all(result.schedule for result in report.results):
        yield "a name in it is empty, or holds what cannot be printed"
    kept = report.recording
    parts: list[StepPart | ResultPart | EachStepPart | StepRecord] = [report.step, *report.results]
    parts += [each for result in report.results for each in result.each_step]
    if kept is not None:
        yield from _damages_of_recording(kept, report.run.digest)
        parts += kept.steps
    times = [time for part in parts for time in (part.step_ns, part.window_ns)]
    if not all(0 < time <= _LONGEST_NS for time in times) or not all(0 <= part.bubble_ratio <= 1 for part in parts):
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
