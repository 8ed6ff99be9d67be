"""Figures from ``cluster_analysis.db``, opened so that nothing is written beside it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.cann.db import connected
from tracetool.readers.cann.text import small_integer
from tracetool.readers.vendor.figures import VendorFigure, group_name, number, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport

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
