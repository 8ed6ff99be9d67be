"""Allocations that databases list in NPU_OP_MEM: read where no other table has them, counted once where one does."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.recorded import data
from helpers.thorough import spread

from tracetool.ingestion import ingest
from tracetool.reports.recording.findings import find_gaps

if TYPE_CHECKING:
    from tracetool.store.run import Run

LEVEL1 = Path("Ascend+msinsight", "test", "data", "pytorch", "db", "level1")
DATABASE = Path("ASCEND_PROFILER_OUTPUT", "ascend_pytorch_profiler_0.db")
MIB = 1 << 20


def _rows(run: Run) -> list[tuple[object, ...]]:
    return run.rows("SELECT time_ns, delta_bytes, allocated_bytes, reserved_bytes, block FROM memory ORDER BY time_ns")


def test_twelve_allocations_of_a_mebibyte_and_their_releases(tmp_path: Path) -> None:
    run = ingest([data("cases", "ascend-npu-op-mem")], tmp_path / "x.run")
    first = 1764246877000000000
    assert _rows(run) == [
        *((first + n * 10**6, MIB, (n + 1) * MIB, 64 * MIB, 10**12 + n * MIB) for n in range(12)),
        *((first + (20 + n) * 10**6, -MIB, (11 - n) * MIB, 64 * MIB, 10**12 + n * MIB) for n in range(12)),
    ]
    assert run.rows("SELECT DISTINCT component FROM memory") == [("PTA",)]
    assert not any("memory" in gap.lacks for gap in find_gaps(run))
    assert not any("memory of this rank" in note for s in run.manifest["sources"] for note in s["notes"])


# Words are those of two versions of the profiler.
@spread("words", [("malloc", "free"), ("allocate", "release")], 1)
def test_the_same_records_come_from_either_table(words: tuple[str, str], tmp_path: Path) -> None:
    """Of a public capture MEMORY_RECORD has the graph engine's levels, too: they are those of NPU_OP_MEM."""
    source = data("ascend", *LEVEL1.parts, "rank0_ascend_pt")
    whole = ingest([source], tmp_path / "whole.run")
    copy = tmp_path / "rank0_ascend_pt"
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    with closing(sqlite3.connect(copy / DATABASE)) as database, database:
        for table in ("MEMORY_RECORD", "OP_MEMORY", "NPU_MEM", "NPU_MODULE_MEM"):
            database.execute(f"DROP TABLE {table}")
        for old, new in zip(("allocate", "release"), words, strict=True):
            database.execute("UPDATE STRING_IDS SET value = ? WHERE value = ?", (new, old))
    run = ingest([copy], tmp_path / "x.run")
    levels = "SELECT time_ns, allocated_bytes, reserved_bytes FROM memory WHERE component = 'GE' ORDER BY ALL"
    assert run.rows(levels) == whole.rows(levels)
    assert run.rows("SELECT count(*), sum(delta_bytes) FROM memory") == [(114, 0)]


def test_a_record_of_an_unknown_kind_is_dropped_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(data("cases", "ascend-npu-op-mem"), folder, copy_function=shutil.copyfile)
    (file,) = folder.iterdir()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE NPU_OP_MEM SET type = 1 WHERE timestampNs = 1764246877000000000")
        database.execute("UPDATE NPU_OP_MEM SET size = NULL WHERE timestampNs = 1764246877001000000")
        database.execute("UPDATE NPU_OP_MEM SET timestampNs = 0 WHERE timestampNs = 1764246877002000000")
    run = ingest([folder], tmp_path / "x.run")
    assert len(_rows(run)) == 21
    assert run.manifest["sources"][0]["dropped"] == {
        "allocation of unknown size or kind": 2,
        "memory time is no number": 1,
    }
