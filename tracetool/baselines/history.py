"""The history: one Parquet file, a row per entry, schedule and metric, small enough to keep in a repository."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import AlreadyExists, StoreError
from tracetool.metrics import METRICS
from tracetool.parts import whole_file
from tracetool.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

REPORT_SCHEMA = "urn:tracetool:schema:1:report"
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


def add_report(path: Path, report: bytes, *, label: str, at: str | None = None) -> list[Value]:
    """Append a report to a history; the file changes in one step.

    Args:
        path: The history; made if it is not there.
        report: What ``tracetool replay --json`` printed.
        label: What to call the entry; no other one may be called so.
        at: When it was.

    Returns:
        The rows added.

    Raises:
        AlreadyExists: If an entry of this label is there.
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
        for told, figures in _figures(_read_report(report))
        for metric, value in figures
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


def _read_report(text: bytes) -> dict[str, Any]:
    hint = "a baseline is what tracetool replay --json prints (report.json)"
    try:
        report = json.loads(text)
    except ValueError as error:
        raise StoreError(f"the report is no JSON: {error}.", hint=hint) from error
    if not isinstance(report, dict) or report.get("$schema") != REPORT_SCHEMA:
        raise StoreError("this is no report of tracetool replay --json.", hint=hint)
    version = str(report.get("schema_version", ""))
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise StoreError(
            f"the report has schema version {version or 'none'}, this tool reads {SCHEMA_VERSION}.",
            hint="make it anew from the traces with tracetool replay --json",
        )
    return report


def _figures(report: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str, str], list[tuple[str, float]]]]:
    """Digest, version, scenario and schedule of each part of a report, with its figures."""
    try:
        digest, version = report["run"]["digest"], report["tool_version"]
        asked = {"scenario": report["scenario"], "microbatches": [r["microbatches"] for r in report["results"]]}
        scenario = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
        yield (digest, version, "", "observed"), _values(report["step"])
        replayed = {_name(result): result for result in (report["baseline"], *report["results"])}
        for name, result in replayed.items():
            yield (digest, version, scenario, name), _values(result)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the report is damaged: {error!r}.", hint="make it anew with tracetool replay --json"
        ) from error


def _name(result: dict[str, Any]) -> str:
    extra = result["extra_forwards"]
    depth = "" if not extra else " +" + ",".join(map(str, extra))
    return f"{result['schedule']}{depth} {result['p2p']}"


def _values(part: dict[str, Any]) -> list[tuple[str, float]]:
    found = []
    for name in _KEPT:
        value = part.get(name)
        if isinstance(value, list):
            value = None if None in value or not value else max(value)
        if value is not None and name in METRICS:
            found.append((name, float(value)))
    return found
