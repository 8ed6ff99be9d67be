"""A history of reports in one file, and whether a figure has taken a step in it.

The history: one Parquet file, a row per entry, schedule and metric, small enough to keep in a repository.
"""

from __future__ import annotations

import io
import json
import re
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Any

from tracetool.comparison.reported import read_report
from tracetool.errors import AlreadyExists, Option, StoreError
from tracetool.model.pipeline import P2P_MODES, max_if_known
from tracetool.model.schedule import OBSERVED
from tracetool.store import whole_file
from tracetool.tables.fields import WithFigures, fields_of
from tracetool.tables.metrics import OF_REPLAY
from tracetool.tables.results import HISTORY
from tracetool.units import format_bits, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracetool.comparison.report import ReportInfo, ResultInfo, StepInfo
    from tracetool.ingestion.recording import StepRecord


_VERSION = b"2"
_KEY = b"tracetool_history"
_FIRST_KNOWN = frozenset(
    ("dcs", "links", "hbm_bytes", "p2p", "activation_bytes", "static_bytes", "overlap_ratio", "interference",
     "pipelines", "link_sharing", "taken")
)  # fmt: skip
"""Of a what-if, what every version wrote down, whatever it was."""
_IN_WORDS = frozenset(("dcs", "links", "hbm_bytes", "microbatches", "taken", "rank_dcs"))
"""Of a what-if, what words of its own tell, or need not."""
_UNASKED = {"overlap_ratio": 1, "interference": True, "pipelines": 1, "link_sharing": "temporal"}
"""Of a what-if, what is so unless it was asked for otherwise; anything else is empty then."""
_SIZES = ("peak_hbm_bytes",)
"""Of one step only: a recording's other steps hold no memory of what was replayed."""


class Value(WithFigures, kw_only=True):
    """A row of the history."""

    __annotations__ = fields_of(of=HISTORY)


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
    if version == b"1":
        return [_of_version_1(row) for row in table.to_pylist()]
    if version != _VERSION:
        what = "no history" if version is None else f"a history of version {version.decode(errors='replace')}"
        raise StoreError(f"{path} is {what}; this tool reads version {_VERSION.decode()}.", hint=hint)
    return [Value(**row) for row in table.select(Value.__struct_fields__).to_pylist()]


def _of_version_1(row: dict[str, Any]) -> Value:
    """A row whose schedule still had its variant behind it, as in ``geopipe +2,2,0,0 in-order``."""
    parts = re.fullmatch(rf"(.*?) ((?:\+[\d,]+ )?(?:{'|'.join(P2P_MODES)}))", row["schedule"])
    schedule, variant = parts.groups() if parts else (row["schedule"], "")
    return Value(**row | {"what_if": "", "schedule": schedule, "variant": variant})


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
        raise StoreError(f"{label!r} cannot name an entry.", hint=f"give a {Option.LABEL} of printable letters")
    before = read_history(path) if path.exists() else []
    if any(value.label == label for value in before):
        raise AlreadyExists(f"{path} has an entry {label!r}.", hint=f"give another {Option.LABEL}")
    entry = max((value.entry for value in before), default=0) + 1
    added = [
        Value(entry=entry, label=label, at=at, **origin, metric=metric, value=value)
        for origin, figures in _figures(read_report(report))
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
    import pyarrow.parquet as pq

    table = HISTORY.arrow([(value,) for value in values]).replace_schema_metadata({_KEY: _VERSION})
    texts = [column.name for column in HISTORY.columns if column.type == "string"]
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=texts)
    return buffer.getvalue()


def _figures(report: ReportInfo) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """What each part of a report is about, as rows have it, with its figures."""
    origin = {"digest": report.run.digest, "tool_version": report.tool_version}
    # Medians over the steps, as compare takes them.
    steps = report.recording.steps if report.recording is not None else [report.step]
    each = [_values(step) for step in steps]
    observed = origin | {"scenario": "", "what_if": "", "schedule": OBSERVED, "variant": ""}
    yield observed, {name: median(step[name] for step in each) for name in each[0]}
    for name, result in {result.schedule: result for result in (report.baseline, *report.results)}.items():
        values = _values(result)
        of_step = [metric for metric in values if metric not in _SIZES]
        medians = {metric: median(result.by_step(metric, report.step.number).values()) for metric in of_step}
        # What later versions added counts where it was asked for, so that series of before go on.
        kept = {key: value for key, value in report.asked.items() if key in _FIRST_KNOWN or value}
        kept.pop("microbatches", None)
        asked = {"scenario": kept | result.chosen, "microbatches": [result.microbatches]}
        scenario = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
        what_if = {"scenario": scenario, "what_if": _words(report.asked, result)}
        yield origin | what_if | {"schedule": name, "variant": result.variant}, values | medians


def _words(scenario: Mapping[str, Any], result: ResultInfo) -> str:
    """A what-if in words, short enough for a line."""
    words = [
        f"{link['src_dc']}→{link['dst_dc']} {format_bits(link['bandwidth_bytes_per_s'])} "
        f"{format_duration(link['latency_ns'])}"
        for link in scenario.get("links", ())
    ]
    words += [f"HBM {format_size(scenario['hbm_bytes'])}"] if scenario.get("hbm_bytes") else []
    words.append(f"{result.microbatches} microbatches")
    words += scenario.get("taken", ())
    for name, value in {**scenario, **result.chosen}.items():
        if name not in _IN_WORDS and value and value != _UNASKED.get(name):
            words.append(f"{name} {str(value)[:12]}" if isinstance(value, int | float | str) else name)
        elif value is False and _UNASKED.get(name):
            words.append(f"no {name}")
    return ", ".join(words)


def _values(part: StepInfo | StepRecord | ResultInfo) -> dict[str, float]:
    values = {}
    for name in (*OF_REPLAY, *_SIZES):
        value = getattr(part, name, None)
        if isinstance(value, list):
            value = max_if_known(value)
        if value is not None:
            values[name] = float(value)
    return values
