"""Large traces: the events of a real one, again and again, with new ids and later times."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from tracetool.readers.files import ByteStream

if TYPE_CHECKING:
    from pathlib import Path

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\](?=[^\]]*\Z)")
_NUMBERS = re.compile(
    rb'(?P<key>"(?:ts|correlation|External id|id|Sequence number)"\s*:\s*|ProfilerStep#)(?P<whole>\d+)(?P<rest>[.\d]*)'
)


def write_large_trace(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of at least this size.

    Args:
        source: A Kineto trace, compressed or not.
        target: File to write, plain.
        size_bytes: Size wanted.

    Returns:
        Number of copies of the source's events in it.
    """
    text = b"".join(ByteStream(source).blocks(1 << 20))
    begin = _LIST.search(text)
    end = _END.search(text)
    assert begin is not None
    assert end is not None
    events = text[begin.end() : end.start() + 1]
    times = [int(t) for t in re.findall(rb'"ph"\s*:\s*"X".*?"ts"\s*:\s*(\d+)', events, re.DOTALL)]
    span_us = max(times) - min(times) + 1000
    ids = 1 + max(int(i) for i in re.findall(rb'"(?:correlation|External id|Sequence number)"\s*:\s*(\d+)', events))
    copies = 0
    with target.open("wb") as file:
        file.write(text[: begin.end()])
        while file.tell() < size_bytes:
            shift = {b'"ts"': copies * span_us, b"Prof": copies}

            def moved(match: re.Match[bytes], shift: dict[bytes, int] = shift, own: int = copies * ids) -> bytes:
                by = shift.get(match["key"][:4], own)
                return match["key"] + b"%d" % (int(match["whole"]) + by) + match["rest"]

            file.write((b",\n" if copies else b"") + _NUMBERS.sub(moved, events))
            copies += 1
        file.write(text[end.end() - 1 :])
    return copies


def write_large_export(source: Path, target: Path, copies: int) -> int:
    """Write an export of Nsight Systems as SQLite with the rows of another one.

    Args:
        source: An export of one process, as SQLite.
        target: File to write.
        copies: How often each row is to be in it.

    Returns:
        Number of kernels in it.
    """
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        # Nothing of it need outlive a crash.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")
        tables = {}
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [column for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")')]
            if "end" in columns:
                tables[table] = columns
        ends = " UNION ALL ".join(f'SELECT max("end") AS last FROM "{table}"' for table in tables)
        ((span_ns,),) = connection.execute(f"SELECT max(last) + 1000 FROM ({ends})")
        ((ids,),) = connection.execute("SELECT max(correlationId) + 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        shifts = {"start": span_ns, "end": span_ns, "correlationId": ids}
        for table, columns in tables.items():
            cells = ", ".join(f'"{c}" + n * {shifts[c]}' if c in shifts else f'"{c}"' for c in columns)
            connection.execute(f'CREATE TEMP TABLE one AS SELECT * FROM "{table}"')
            connection.execute(
                f'INSERT INTO main."{table}" WITH RECURSIVE copy(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM copy '
                f"WHERE n < ?) SELECT {cells} FROM copy CROSS JOIN one WHERE n > 0",
                (copies - 1,),
            )
            connection.execute("DROP TABLE one")
        connection.execute("COMMIT")
        ((kernels,),) = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    return int(kernels)
