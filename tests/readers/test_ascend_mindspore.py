"""MindSpore's folders: the same tree as torch_npu's under another name, without Device_id columns."""

from __future__ import annotations

import csv
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import data
from helpers.thorough import spread
from readers.ascend_reading import find, read_capture, read_only

from tracetool.ingestion import discover
from tracetool.readers.ascend import READER

if TYPE_CHECKING:
    from pathlib import Path

LEVEL2 = "ascend/Ascend+msinsight/test/st/level2"
OUTPUT = "ASCEND_PROFILER_OUTPUT"


def as_mindspore(real: Path, folder: Path) -> Path:
    """A copy of a real torch_npu folder with the differences that real MindSpore folders have."""
    for file in sorted(f for f in real.rglob("*") if f.is_file()):
        target = folder / file.relative_to(real)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for path in folder.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as stream:
            records = list(csv.reader(stream))
        if "Device_id" not in records[0]:
            continue
        gone = records[0].index("Device_id")
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([*r[:gone], *r[gone + 1 :]] for r in records)
    (folder / OUTPUT / "dataset.csv").write_text("Operation,Stage,Occurrences,Avg. time (us)\n", encoding="utf-8")
    (folder / OUTPUT / "minddata_pipeline_raw_0.csv").write_text("op_id,op_type\n", encoding="utf-8")
    return folder


# Files of a tree are found by their names alone (below); what is in them is read by one reader (test_ascend).
@pytest.mark.thorough
# Rank 2 has the same files as rank 0, ranks 1 and 3 have fewer: that none is asked for in vain they alone find.
@spread("rank", range(4), 1)
def test_tree_of_mindspore_reads_like_torch_npus(rank: int, tmp_path: Path) -> None:
    real = data(LEVEL2) / f"rank_{rank}_ascend_pt"
    folder = as_mindspore(real, tmp_path / f"node1_{rank}_20251127001122333_ascend_ms")
    expected, found = read_capture(READER, real), read_only(READER, folder)
    assert found.tables == expected.tables
    assert found.report.dropped.total() == 0
    assert (found.identity.rank, found.identity.world_size) == (rank, 4)
    assert found.identity.groups == expected.identity.groups
    assert found.identity.device is None, "only Device_id columns say it"


def test_nested_folders_are_not_taken_for_a_cluster(tmp_path: Path) -> None:
    real = data(LEVEL2) / "rank_2_ascend_pt"
    folder = as_mindspore(real, tmp_path / "outer_ascend_ms" / "inner_ascend_ms")
    assert [s.path for s in find(READER, tmp_path).sources] == [folder]
    assert [(f.rank, f.source.path) for f in discover([tmp_path]).sources] == [(2, folder)]
