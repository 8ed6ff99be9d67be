"""Fuzz target: any bytes as an export of Nsight Systems: ``python tests/fuzz/fuzz_nsys.py -max_total_time=300``.

The first byte chooses the form: a database, JSON lines, Arrow streams, or cells of any type in a sound database.
Nothing but the tool's own errors may be raised.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.nsys_export import COLUMNS, CREATED, NCCL_DOMAIN, NESTED, Tables

with atheris.instrument_imports(include=["tracetool.readers"]):
    from tracetool.errors import TraceToolError
    from tracetool.ingestion.discover import discover
    from tracetool.readers import READERS, SourceReport

_FOLDER = Path(tempfile.mkdtemp(prefix="tracetool-fuzz-"))
_FORMS = ("rank0.sqlite", "rank0.jsonl", "rank0.arrows")
_PROCESS = 7 << 24
_EXTREMES: tuple[int | str, ...] = (
    0, 1, -1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), _PROCESS, _PROCESS | 7, NESTED, NCCL_DOMAIN,
    str(_PROCESS), str(_PROCESS | 7), "²",
)  # fmt: skip


def seeds(folder: Path) -> None:
    """Write a small export in each form as an input to start from."""
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    tables = Tables()
    name, calls = tables.text("ncclDevKernel_SendRecv"), tables.text("ncclSend")
    tables.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_779_787_126_655_288_414)
    tables.add("NVTX_EVENTS", start=1, eventType=CREATED, text="NCCL", globalTid=_PROCESS | 7, domainId=NCCL_DOMAIN)
    tables.add("NVTX_EVENTS", start=5, end=9, eventType=NESTED, textId=calls, globalTid=_PROCESS | 7,
               domainId=NCCL_DOMAIN, jsonText='{"Peer rank": 1, "Message size [bytes]": 8}')  # fmt: skip
    tables.add("NVTX_EVENTS", start=2, end=20, eventType=NESTED, text="aten::mm, seq = 3, op_id = 1",
               globalTid=_PROCESS | 7, domainId=0)  # fmt: skip
    tables.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=7, end=8, globalTid=_PROCESS | 7, correlationId=1, nameId=name)
    tables.add("CUPTI_ACTIVITY_KIND_KERNEL", start=10, end=15, deviceId=0, streamId=7, correlationId=1,
               globalPid=_PROCESS, demangledName=name, shortName=name, gridX=1, gridY=1, gridZ=1)  # fmt: skip
    database = tables.write(folder / "database")
    with sqlite3.connect(database, isolation_level=None) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("VACUUM")
    database.write_bytes(b"\0" + database.read_bytes())
    lines = [{"table": table, **row} for table, rows in tables.rows.items() for row in rows]
    (folder / "lines").write_bytes(b"\1" + b"\n".join(map(_encoded, lines)))
    with (folder / "streams").open("wb") as file:
        file.write(b"\2")
        for table, rows in tables.rows.items():
            made = pa.Table.from_pylist(rows).replace_schema_metadata({"table_name": table})
            with pa.ipc.new_stream(file, made.schema) as writer:
                writer.write_table(made)
    (folder / "cells").write_bytes(b"\3" + bytes(range(256)))


def _encoded(row: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.encode(row)


def _write_cells(path: Path, data: bytes) -> None:
    """Rows of cells of any type, in tables of a sound database."""
    chosen = atheris.FuzzedDataProvider(data)

    def cell() -> object:
        kind = chosen.ConsumeIntInRange(0, 7)
        if kind < 3:
            return _EXTREMES[chosen.ConsumeIntInRange(0, len(_EXTREMES) - 1)]
        if kind == 3:
            return chosen.ConsumeInt(8)
        if kind == 4:
            return chosen.ConsumeFloat()
        if kind == 5:
            return chosen.ConsumeUnicodeNoSurrogates(20)
        return chosen.ConsumeBytes(40) if kind == 6 else None

    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for table, columns in COLUMNS.items():
            names = [part.split()[0] for part in columns.split(", ")]
            # Without types, so that cells stay what they are.
            connection.execute(f"CREATE TABLE {table} ({', '.join(names)})")
            for _ in range(chosen.ConsumeIntInRange(0, 3)):
                marks = ", ".join("?" * len(names))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", [cell() for _ in names])
    connection.close()


def one(data: bytes) -> None:
    """One input."""
    if not data:
        return
    for name in _FORMS:
        (_FOLDER / name).unlink(missing_ok=True)
    form = data[0] % (len(_FORMS) + 1)
    path = _FOLDER / _FORMS[form % len(_FORMS)]
    if form == len(_FORMS):
        _write_cells(path, data[1:])
    else:
        path.write_bytes(data[1:])
    try:
        for found in discover([path]).sources:
            reader, report = READERS.get(found.reader), SourceReport()
            for _, rows in reader.read(
                found.source, found.stored_rank, found.identity, frozenset(), report, lambda _: None
            ):
                rows.validate(full=True)
    except TraceToolError:
        pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        seeds(Path(sys.argv[2]))
        sys.exit()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
