"""Figures from the text files of a cluster analysis, as rows without their source.

Figures from ``cluster_analysis.db``, opened so that nothing is written beside it.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.cann import csv_header, csv_rows, small_integer
from tracetool.readers.cann.db import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport

    ByteCount = Callable[[int], None]

_STEP = re.compile(r"^(?:step)?(\d+)$")
_NO_TIMES = ("Step", "Type", "Index")
_SKIPPED = "figure that is no number"


class VendorFigure(NamedTuple):
    """One row of ``vendor_figures``."""

    subject: str
    name: str
    rank: int | None
    step: int | None
    metric: str
    value: float


class _Rank(msgspec.Struct):
    time: dict[str, Any] = msgspec.field(name="Communication Time Info", default_factory=dict)
    bandwidth: dict[str, dict[str, Any]] = msgspec.field(name="Communication Bandwidth Info", default_factory=dict)


class _Group(msgspec.Struct):
    type: str = ""
    rank_set: list[int] = msgspec.field(default_factory=list)
    group_name: str | int = ""
    group_id: str | int = ""
    pg_name: str = ""


class _Groups(msgspec.Struct):
    collective: list[list[int]] = msgspec.field(default_factory=list)
    p2p: list[list[int]] = msgspec.field(default_factory=list)
    comm_group_parallel_info: list[_Group] = msgspec.field(default_factory=list)


def step_figures(path: Path, report: SourceReport, advance: ByteCount) -> Iterator[VendorFigure]:
    """``cluster_step_trace_time.csv``: times in us of ranks, and per stage the maximum of each column."""
    columns = tuple(name for name in csv_header(path) if name not in _NO_TIMES)
    for step, kind, index, *values in csv_rows(path, _NO_TIMES, columns, advance, report):
        report.rows += 1
        rank = small_integer(index) if kind == "rank" else None
        named = zip(columns, values, strict=True)
        cells = ((name if name.endswith("Index") else f"{name}(us)", text) for name, text in named)
        yield from _numbers(kind, index, rank, step_of(step), cells, report)


def communication_figures(path: Path, report: SourceReport, advance: ByteCount) -> Iterator[VendorFigure]:
    """``cluster_communication.json``: times and traffic of each operation on each rank."""
    for group, step, operation, ranks in _operations(path, dict[str, _Rank], report, advance):
        for rank_text, about in ranks.items():
            traffic = (
                (f"{transport} {metric}", value)
                for transport, figures in about.bandwidth.items()
                for metric, value in figures.items()
                if metric != "Size Distribution"
            )
            rank, name = small_integer(rank_text), operation_name(operation, group)
            yield from _numbers("operation", name, rank, step, (*about.time.items(), *traffic), report)


def matrix_figures(path: Path, report: SourceReport, advance: ByteCount) -> Iterator[VendorFigure]:
    """``cluster_communication_matrix.json``: traffic of each link in each operation."""
    for group, step, operation, links in _operations(path, dict[str, dict[str, Any]], report, advance):
        for link, about in links.items():
            transport = about.get("Transport Type", "")
            cells = ((f"{transport} {m}", v) for m, v in about.items() if m not in ("Transport Type", "Op Name"))
            name = f"{link} {operation_name(operation, group)}"
            yield from _numbers("link", name, None, step, cells, report)


def group_figures(path: Path, report: SourceReport, advance: ByteCount) -> Iterator[VendorFigure]:
    """``communication_group.json``: each group's ranks, with their position in it."""
    text = path.read_bytes()
    advance(len(text))
    groups = msgspec.json.decode(text, type=_Groups)
    named = [(group_name(g.pg_name, str(g.group_id), str(g.group_name), g.rank_set), g.rank_set) for g in
             groups.comm_group_parallel_info]  # fmt: skip
    listed = [] if named else groups.collective
    for kind, lists in (("collective", listed), ("p2p", groups.p2p)):
        named += [(group_name(kind, "", "", ranks), ranks) for ranks in lists]
    names: set[str] = set()
    for name, ranks in named:
        report.rows += 1
        if name in names:
            report.skipped["group listed twice"] += 1
            continue
        names.add(name)
        yield from (
            VendorFigure("group", name, rank, None, "position in rank_set", place) for place, rank in enumerate(ranks)
        )


def group_name(use: str, group_id: str, hashed: str, ranks: Iterable[int]) -> str:
    """What a group is for, how the framework calls it, its hash, and its ranks: no one of them is unique."""
    members = f"({', '.join(map(str, ranks))})"
    return " ".join(part for part in (use, group_id, hashed, members) if part)


def operation_name(operation: str, group: str) -> str:
    """The vendor's name of an operation; sums over a group name the group."""
    return operation if "@" in operation else f"{operation} {group}"


def step_of(text: str) -> int | None:
    """The number in ``step13`` or ``13``; None where the analysis knew no steps."""
    match = _STEP.match(text)
    return small_integer(match[1]) if match is not None else None


def number(value: object) -> float | None:
    """A figure as the vendor wrote it; None for ``N/A``, blanks and texts."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _operations(
    path: Path, kind: Any, report: SourceReport, advance: ByteCount
) -> Iterator[tuple[str, int | None, str, Any]]:
    text = path.read_bytes()
    advance(len(text))
    content = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, kind]]])
    for group, steps in content.items():
        for step, operations in steps.items():
            for operation, about in operations.items():
                report.rows += 1
                yield group, step_of(step), operation, about


def _numbers(
    subject: str,
    name: str,
    rank: int | None,
    step: int | None,
    cells: Iterable[tuple[str, object]],
    report: SourceReport,
) -> Iterator[VendorFigure]:
    for metric, value in cells:
        figure = number(value)
        if figure is None:
            report.skipped[_SKIPPED] += 1
        else:
            yield VendorFigure(subject, name, rank, step, metric, figure)


DATABASE = "database"

# Units are in the analysis' documents, not in its columns.
_UNITS = {
    "start_timestamp": "(us)", "elapsed_time": "(ms)", "transit_time": "(ms)", "wait_time": "(ms)",
    "synchronization_time": "(ms)", "idle_time": "(ms)", "synchronization_time_ratio": "", "wait_time_ratio": "",
    "transit_size": "(MB)", "bandwidth": "(GB/s)", "large_packet_ratio": "",
}  # fmt: skip
_STEP_COLUMNS = ("step", "type", "index")

Record = dict[str, object]


def holds_figures(path: Path) -> bool:
    """Whether a database has any of the tables that are read."""
    try:
        with connected(path) as connection:
            return bool(_tables(connection) & _READ.keys())
    except (sqlite3.Error, OSError, UnicodeDecodeError, MalformedTrace):
        return False


def database_figures(path: Path, report: SourceReport, advance: Callable[[int], None]) -> Iterator[VendorFigure]:
    """All figures; a table that is damaged costs the others nothing.

    Args:
        path: The database.
        report: Told about damage, and what is no number.
        advance: Called with the file bytes consumed.
    """
    with connected(path) as connection:
        for table in sorted(_tables(connection) & _READ.keys()):
            records = _records(connection, table, path, report)
            yield from _READ[table](records, report)
    advance(path.stat().st_size)


def _step_figures(records: Iterator[Record], report: SourceReport) -> Iterator[VendorFigure]:
    for record in records:
        kind, index = _text(record, "type"), _text(record, "index")
        rank = small_integer(index) if kind == "rank" else None
        for column, value in record.items():
            if column not in _STEP_COLUMNS:
                unit = "" if column.endswith("_index") else "(us)"
                yield from _figure(kind, index, rank, record, f"{column}{unit}", value, report)


def _time_figures(records: Iterator[Record], report: SourceReport) -> Iterator[VendorFigure]:
    for record in records:
        rank = small_integer(_text(record, "rank_id"))
        for column in (c for c in record if c in _UNITS):
            metric = f"{column}{_UNITS[column]}"
            yield from _figure("operation", _operation(record), rank, record, metric, record[column], report)


def _bandwidth_figures(records: Iterator[Record], report: SourceReport) -> Iterator[VendorFigure]:
    """There is a row per package size, each with the same sums."""
    listed: set[int] = set()
    for record in records:
        key = hash(tuple(_text(record, c) for c in ("step", "rank_id", "hccl_op_name", "group_name", "band_type")))
        if key in listed:
            report.skipped["package size of a transport"] += 1
            continue
        listed.add(key)
        rank, transport = small_integer(_text(record, "rank_id")), _text(record, "band_type")
        for column in (c for c in record if c in _UNITS):
            metric = f"{transport} {column}{_UNITS[column]}"
            yield from _figure("operation", _operation(record), rank, record, metric, record[column], report)


def _matrix_figures(records: Iterator[Record], report: SourceReport) -> Iterator[VendorFigure]:
    for record in records:
        name = f"{_text(record, 'src_rank')}-{_text(record, 'dst_rank')} {_operation(record)}"
        transport = _text(record, "transport_type")
        for column in (c for c in record if c in _UNITS):
            metric = f"{transport} {column}{_UNITS[column]}"
            yield from _figure("link", name, None, record, metric, record[column], report)


def _group_figures(records: Iterator[Record], report: SourceReport) -> Iterator[VendorFigure]:
    for record in records:
        members = [small_integer(part.strip()) for part in _text(record, "rank_set").strip("()[]").split(",")]
        ranks = [rank for rank in members if rank is not None]
        if len(ranks) < len(members):
            report.skipped["member of a group that is no rank"] += len(members) - len(ranks)
        use = _text(record, "pg_name") or _text(record, "type")
        name = group_name(use, _text(record, "group_id"), _text(record, "group_name"), ranks)
        for place, rank in enumerate(ranks):
            yield VendorFigure("group", name, rank, None, "position in rank_set", place)


_READ: dict[str, Callable[[Iterator[Record], SourceReport], Iterator[VendorFigure]]] = {
    "ClusterStepTraceTime": _step_figures,
    "ClusterCommunicationTime": _time_figures,
    "ClusterCommunicationBandwidth": _bandwidth_figures,
    "ClusterCommunicationMatrix": _matrix_figures,
    "CommunicationGroupMapping": _group_figures,
}


def _figure(
    subject: str, name: str, rank: int | None, record: Record, metric: str, value: object, report: SourceReport
) -> Iterator[VendorFigure]:
    figure = number(value)
    if figure is None:
        report.skipped["figure that is no number"] += 1
    else:
        yield VendorFigure(subject, name, rank, step_of(_text(record, "step")), metric, figure)


def _operation(record: Record) -> str:
    name, group = _text(record, "hccl_op_name"), _text(record, "group_name")
    return f"{name}@{group}" if group else name


def _text(record: Record, column: str) -> str:
    value = record.get(column)
    return "" if value is None else str(value)


def _records(connection: sqlite3.Connection, table: str, path: Path, report: SourceReport) -> Iterator[Record]:
    count = 0
    try:
        cursor = connection.execute(f'SELECT * FROM "{table}"')
        columns = [about[0] for about in cursor.description]
        for values in cursor:
            count += 1
            report.rows += 1
            yield dict(zip(columns, values, strict=True))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        report.drop(f"rest of table {table}: {error}", FilePlace(str(path), count, "row"))


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
