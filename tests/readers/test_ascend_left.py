"""Files of a rank's output that are not read are named with the reason, and none of them is lost to other readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.ascend_capture import OUTPUT, simple
from helpers.recorded import data
from readers.ascend_reading import find

from tracetool.ingestion import discover
from tracetool.readers.ascend import READER

if TYPE_CHECKING:
    from pathlib import Path

UNUSED = "no table needs it"
LOG = "belongs to the database"


@pytest.mark.parametrize("name", ["data/pytorch/text/level1/rank0_ascend_pt", "st/level2/rank_0_ascend_pt"])
def test_real_outputs_leave_their_other_tables(name: str) -> None:
    folder = data(f"ascend/Ascend+msinsight/test/{name}")
    finding = find(READER, folder)
    (source,) = finding.sources
    output = {f for f in (folder / OUTPUT).iterdir() if f.is_file()}
    assert {left.path: left.reason for left in finding.left} == dict.fromkeys(output - set(source.files), UNUSED)
    names = {left.path.name for left in finding.left}
    assert names == {f.name for f in output if f.suffix == ".csv"} - {
        "kernel_details.csv", "memory_record.csv", "step_trace_time.csv", "operator_memory.csv", "npu_module_mem.csv",
    }  # fmt: skip


def test_what_sqlite_keeps_beside_a_database_belongs_to_it(tmp_path: Path) -> None:
    path = simple().write(tmp_path / "x_ascend_pt" / OUTPUT / "ascend_pytorch_profiler_0.db")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"")
    path.with_name("notes.txt-wal").write_bytes(b"")
    result = discover([tmp_path])
    assert [f.source.files for f in result.sources] == [(path,)]
    assert {left.path.name: left.reason for left in result.left} == {
        f"{path.name}-wal": LOG, f"{path.name}-shm": LOG, "notes.txt-wal": "empty (0 bytes)",
    }  # fmt: skip


def test_text_that_is_no_table_stays_unknown(tmp_path: Path) -> None:
    output = tmp_path / "x_ascend_pt" / OUTPUT
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text("Name,Start Time(us),Duration(us)\nk,1.5,2\n")
    (output / "other.csv").write_text("a,b\n1,2\n")
    for name, content in (("a.json", b'{"a": 1, "b": 2}'), ("b.bin", b"\xff\xfe,\0"), ("c.txt", b"one word\n")):
        (output / name).write_bytes(content)
    finding = find(READER, tmp_path)
    assert [(left.path.name, left.reason) for left in finding.left] == [("other.csv", UNUSED)]
