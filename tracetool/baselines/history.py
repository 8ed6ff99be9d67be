"""The history: one Parquet file, a row per entry, schedule and metric, small enough to keep in a repository."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import AlreadyExists, StoreError
from tracetool.parts import whole_file
from tracetool.report_file import read_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from tracetool.recording import StepRecord
    from tracetool.report_file import ReportFile, ResultPart, StepPart

OBSERVED = "observed"
"""What a series of recorded steps is about."""

_VERSION = b"1"
_KEY = b"tracetool_history"
_KEPT = ("step_ns", "window_ns", "bubble_ns", "bubble_ratio", "cross_dc_bubble_ns", "peak_hbm_bytes")


class Value(NamedTuple):
    """A row of the history.

    Attributes:
        entry: Number of the report, from 1 on.
        label: What the user calls it: a commit, a date.
        at: When it was, as the user says it; None if not said.
        digest: Digest of the traces.
        tool_version: Version of the tool that made the report.
        scenario: Digest of the what-if that schedules were replayed in; empty for what was observed.
        schedule: ``observed``, or the name of a replayed schedule with its extra forwards.
        metric: Name, as in ``METRICS``; peaks are those of the rank that needs most.
        value: In the metric's unit.
    """

    entry: int
    label: str
    at: str | None
    digest: str
    tool_version: str
    scenario: str
    schedule: str
    metric: str
    value: float


def read_history(path: Path) -> list[Value]:
    """All rows of a history, in order of entries.

    Raises:
        StoreError: If there is no such file, or it is no history of this version.
    """
    import pyarrow.parquet as pq

    hint = "make one with: tracetool baseline add REPORT.json --label v1"
    if not path.is_file():
        raise StoreError(f"there is no history {path}.", hint=hint)
    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged, or no history: {error}.", hint="restore it from the repository"
        ) from error
    version = (table.schema.metadata or {}).get(_KEY)
    if version != _VERSION:
        found = "no history" if version is None else f"a history of version {version.decode(errors='replace')}"
        raise StoreError(f"{path} is {found}; this tool reads version {_VERSION.decode()}.", hint=hint)
    return [Value(**row) for row in table.select(Value._fields).to_pylist()]


def add_report(path: Path, report: Path, *, label: str, at: str | None = None) -> list[Value]:
    """Append a report to a history; the file changes in one step.

    Args:
        path: The history; made if it is not there.
        report: File of what ``tracetool replay --json`` printed.
        label: What to call the entry; no other one may be called so.
        at: When it was.

    Returns:
        The rows added.

    Raises:
        AlreadyExists: If an entry of this label is there.
        SchemaVersion: If another major version of the schema wrote the report.
        StoreError: If the label cannot be one, or the report or the history cannot be read or written.
    """
    if not label.strip() or not label.isprintable():
        raise StoreError(f"{label!r} cannot name an entry.", hint="give a --label of printable letters")
    before = read_history(path) if path.exists() else []
    if any(value.label == label for value in before):
        raise AlreadyExists(f"{path} has an entry {label!r}.", hint="give another --label")
    entry = max((value.entry for value in before), default=0) + 1
    added = [
        Value(entry, label, at, *told, metric, value)
        for told, figures in _figures(read_report(report))
        for metric, value in figures.items()
    ]
    try:
        with whole_file(path) as file:
            file.write(_parquet([*before, *added]))
    except OSError as error:
        raise StoreError(f"could not write {path}: {error}.", hint="check the disk") from error
    return added


def _parquet(values: list[Value]) -> bytes:
    """Deterministic: equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ("label", "at", "digest", "tool_version", "scenario", "schedule", "metric")
    schema = pa.schema(
        [("entry", pa.int32()), *((name, pa.string()) for name in texts), ("value", pa.float64())],
        metadata={_KEY: _VERSION},
    )
    table: pa.Table = pa.Table.from_pylist([value._asdict() for value in values], schema=schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=list(texts))
    return buffer.getvalue()


def _figures(report: ReportFile) -> Iterator[tuple[tuple[str, str, str, str], dict[str, float]]]:
    """Digest, version, scenario and schedule of each part of a report, with its figures."""
    asked = {"scenario": report.scenario, "microbatches": [result.microbatches for result in report.results]}
    scenario = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    origin = report.run.digest, report.tool_version
    steps = report.recording.steps if report.recording is not None else [report.step]
    each = [_values(step) for step in steps]
    # The median over the steps, as compare takes it.
    yield (*origin, "", OBSERVED), {name: median(step[name] for step in each) for name in each[0]}
    results = ([] if report.baseline is None else [report.baseline]) + report.results
    for name, result in {_name(result): result for result in results}.items():
        yield (*origin, scenario, name), _values(result)


def _name(result: ResultPart) -> str:
    extra = result.extra_forwards
    depth = "" if not extra else " +" + ",".join(map(str, extra))
    return f"{result.schedule}{depth} {result.p2p}"


def _values(part: StepPart | StepRecord | ResultPart) -> dict[str, float]:
    found = {}
    for name in _KEPT:
        value = getattr(part, name, None)
        if isinstance(value, list):
            value = None if None in value or not value else max(value)
        if value is not None:
            found[name] = float(value)
    return found
