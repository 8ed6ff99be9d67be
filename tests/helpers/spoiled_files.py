"""Small folders of every format but Kineto's, and ways to spoil their files."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from helpers import ascend_capture, labelled
from helpers.recorded import SAMPLES

from tracetool.errors import TraceToolError
from tracetool.ingestion.discover import DiscoveredSource, discover
from tracetool.readers import READERS, SourceReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_FIELD = re.compile(rb'(?<=[,\n])[^,\n"]*(?=[,\n])')
_VALUE = re.compile(rb'(?<=[:\[,])\s*(?:"[^"\\]*"|-?[\d.]+|null|true|false)(?=\s*[,}\]])')
_ODD_NUMBERS = [
    b"0",
    b"-1",
    b"9" * 9,
    b"4294967295",
    b"2147483648",
    b"9" * 19,
    b"9" * 25,
    b"9" * 5000,
    b"1e400",
    b"-1e18",
]
_ODD_NUMBERS += [b"1E+15", b"NaN", b"inf", b"-Infinity", b"0x7f", b"1_0", b"", b"1.5", b"\xd9\xa3"]
_ODD_FIELDS = [
    b"",
    b"N/A",
    b"null",
    b'"',
    b'""',
    b'"a,b"',
    b"\0",
    b"\xff",
    b"x" * 9999,
    b"-",
    b"\xef\xbb\xbf",
    b"=1+1",
    b"\r",
]
_ODD_VALUES = [
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b"9" * 30,
    b'"\\ud800"',
    b'"x"',
    b"[[[]]]",
    b'{"a":1}',
]
_ODD_VALUES += [b"[" * 3000 + b"]" * 3000, b"0.5", b'"9999999999999999999999"', b'"-1"', b'"1E+20"', b'"\\u0000"']
_ODD_CELLS: list[Any] = [
    None,
    -1,
    2**63 - 1,
    -(2**63),
    2**31,
    1e300,
    float("inf"),
    "",
    "x",
    "9" * 30,
    b"\xff\0",
    "1.5",
    0,
    -0.5,
]


def ascend_text(folder: Path) -> None:
    shutil.copytree(SAMPLES / "ascend-1f1b" / "rank_1_ascend_pt", folder / "rank_1_ascend_pt")


def ascend_database(folder: Path) -> None:
    text = SAMPLES / "ascend-1f1b" / "rank_1_ascend_pt"
    capture = ascend_capture.of_text(text, 1, ascend_capture.ORDERS[1])
    ascend_capture.add_host_side(capture)
    capture.write(folder / "rank_1_ascend_pt" / ascend_capture.OUTPUT / "ascend_pytorch_profiler_1.db")


def labelled_table(folder: Path) -> None:
    labelled.write_table(folder / "table.parquet", [row.columns for row in labelled.job(2, 1, 2, steps=2)])


def labelled_timeline(folder: Path) -> None:
    labelled.write_events(folder / "timeline.json", labelled.ndtimeline_events(labelled.job(2, 1, 2)))


FORMATS: dict[str, Callable[[Path], None]] = {
    function.__name__: function for function in (ascend_text, ascend_database, labelled_table, labelled_timeline)
}


def spoil(path: Path, random: Random) -> str:
    """Change one file; what was done."""
    content = bytearray(path.read_bytes())
    kinds = ["flip", "cut", "remove", "put", "zero", "repeat"]
    if path.suffix in (".csv", ".json"):
        kinds += ["number", "number", "field" if path.suffix == ".csv" else "value"] * 2
    if path.suffix == ".db":
        kinds += ["cell"] * 4
    kind = random.choice(kinds)
    at = random.randrange(len(content)) if content else 0
    if kind == "flip":
        for _ in range(random.choice([1, 1, 5, 50])):
            content[random.randrange(len(content))] = random.randrange(256)
    elif kind == "cut":
        del content[at:]
    elif kind == "remove":
        del content[at : at + random.choice([1, 3, 100, 4096])]
    elif kind == "put":
        content[at:at] = random.choice([b"\0", b"\n", b'"', b"}", b"]", b",", b"{", b"\r", random.randbytes(20)])
    elif kind == "zero":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    elif kind == "repeat":
        content[at:at] = content[random.randrange(len(content)) :][:2000]
    elif kind == "cell":
        return _spoil_cell(path, random)
    else:
        pattern, odd = {
            "number": (_NUMBER, _ODD_NUMBERS),
            "field": (_FIELD, _ODD_FIELDS),
            "value": (_VALUE, _ODD_VALUES),
        }[kind]
        places = [match.span() for match in pattern.finditer(content)]
        for start, end in sorted(random.sample(places, min(len(places), random.choice([1, 1, 3]))), reverse=True):
            content[start:end] = random.choice(odd)
    path.write_bytes(content)
    return f"{path.name}: {kind}"


def _spoil_cell(path: Path, random: Random) -> str:
    try:
        return _change_cells(path, random)
    except sqlite3.DatabaseError:
        return f"{path.name}: spoiled beyond opening before"


def _change_cells(path: Path, random: Random) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        table = random.choice(tables)
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        column = random.choice(columns)
        action = random.randint(0, 9)
        value = random.choice(_ODD_CELLS)
        try:
            if action == 0:
                connection.execute(f'DROP TABLE "{table}"')
            elif action == 1:
                connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
            elif action == 2:
                connection.execute(f'DELETE FROM "{table}" WHERE rowid % 2')
            else:
                rows = (
                    ""
                    if action < 5
                    else f'WHERE rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {random.randint(0, 20)})'
                )
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? {rows}', (value,))
        except sqlite3.Error:
            pass
    return f"{path.name}: {table}.{column} {action} {value!r}"


def read_all(folder: Path) -> tuple[Counter[str], list[str]]:
    """Read what there is as ingest does; number of rows per table, and what was refused. Anything else is raised."""
    rows: Counter[str] = Counter()
    refused: list[str] = []
    try:
        discovery = discover([folder])
    except TraceToolError as error:
        json.dumps(error.message)
        return rows, [error.message]
    refused += [left.reason for left in discovery.failed]
    for found in discovery.sources:
        try:
            for name, count in _read(found).items():
                rows[name] += count
        except TraceToolError as error:
            refused.append(error.message)
    return rows, refused


def _read(found: DiscoveredSource) -> Counter[str]:
    from tracetool.tables.run import TABLES

    report = SourceReport()
    rows: Counter[str] = Counter()
    reader = READERS.get(found.reader)
    for name, table in reader.read(
        found.source, found.stored_rank, found.identity, frozenset(), report, lambda _: None
    ):
        table.select(TABLES[name].arrow_schema().names).cast(TABLES[name].arrow_schema()).validate(full=True)
        rows[name] += table.num_rows
    assert set(report.places) <= set(report.dropped) | set(report.repaired)
    return rows
