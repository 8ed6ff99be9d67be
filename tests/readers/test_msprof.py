"""The reader of the msprof command's output, on the real capture of 2023 against an independent parse of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import texts
from helpers.recorded import data
from helpers.thorough import spread
from readers.ascend_reading import find, read_capture, read_only

from tracetool.ingestion import discover, ingest
from tracetool.readers.msprof import READER

if TYPE_CHECKING:
    from pathlib import Path

PARTLY = (1, 2, 10)
"""Iterations whose timelines changed copies have."""
PROF = "PROF_000001_20230818142704322_COJGGGCANRMICFBC"
REAL = f"ascend/mindspore-ai+mindinsight/tests/utils/resource/profiler/{PROF}"
# start_info.0: collectionTimeBegin in us, clockMonotonicRaw in ns.
OFFSET = 1692340024324979 * 1000 - 56579931060630


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real tree with the timelines of some iterations."""
    real = data(REAL)
    folder = tmp_path_factory.mktemp("part") / PROF
    for file in real.rglob("*"):
        if file.is_file() and (file.parent.name != "timeline" or int(file.stem.rpartition("_")[2]) in PARTLY):
            target = folder / file.relative_to(real)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    return folder


@pytest.fixture
def copy(part: Path, tmp_path: Path) -> Path:
    """A copy of that, to be changed."""
    return shutil.copytree(part, tmp_path / PROF)


def parsed(pattern: str) -> list[list[dict[str, Any]]]:
    """Spans of each file by the standard library, times as decimals."""
    files = sorted(data(REAL).rglob(pattern), key=lambda f: int(f.stem.rpartition("_")[2]))
    assert len(files) == 10
    return [[e for e in json.loads(f.read_text(), parse_float=Decimal) if e["ph"] == "X"] for f in files]


def ns(microseconds: object) -> int:
    return round(Decimal(str(microseconds)) * 1000)


def test_real_kernels_count_once() -> None:
    """task_time_*.json lists each task once; msprof_*.json repeats them beside other tracks."""
    found = read_capture(READER, data(REAL))
    tasks = [e for file in parsed("task_time_*.json") for e in file]
    kernels = [e for e in tasks if e["args"]["Task Type"] in ("AI_CORE", "AI_CPU")]
    rows = found.events("kernel")
    assert len(tasks) == 4900
    assert len(rows) == len(kernels) == 1390
    assert Counter(
        (r["name"], r["stream"], r["start_ns"], r["duration_ns"], r["kernel_class"]) for r in rows
    ) == Counter((e["name"], e["tid"], ns(e["ts"]) + OFFSET, ns(e["dur"]), e["args"]["Task Type"]) for e in kernels)
    others = Counter(f"device task {e['args']['Task Type']}" for e in tasks if e not in kernels)
    assert {k: v for k, v in found.report.skipped.items() if k.startswith("device task")} == others
    assert found.report.dropped.total() == found.report.repaired.total() == 0
    assert found.advanced == found.source.size_bytes
    assert any("20 timelines (hccl, task_time)" in note for note in texts(found.report.notes))


def test_real_communication() -> None:
    found = read_capture(READER, data(REAL))
    files = parsed("hccl_*.json")
    big = [e for file in files for e in file if "args" not in e]
    rows = found.tables["comms"]
    assert [(r["start_ns"], r["end_ns"] - r["start_ns"]) for r in rows] == [
        (ns(e["ts"]) + OFFSET, ns(e["dur"])) for e in big
    ]
    assert {(r["operation"], r["peer"], r["stream"]) for r in rows} == {("allreduce", None, None)}
    # What goes over links: everything but copies inside the device.
    moved = [
        sum(e["args"]["size(Byte)"] for e in file if "args" in e and e["args"]["link type"] != "ON_CHIP")
        for file in files
    ]
    assert [r["payload_bytes"] for r in rows] == moved


def test_real_steps() -> None:
    """Each step_trace_*.json lists all ten iterations; they are ten steps."""
    found = read_capture(READER, data(REAL))
    iterations = [
        e for e in parsed("step_trace_*.json")[0] if e["name"].startswith("Iteration ") and "Refresh" not in e["name"]
    ]
    assert [(s["step"], s["start_ns"], s["end_ns"]) for s in found.tables["steps"]] == [
        (e["args"]["Iteration ID"], ns(e["ts"]) + OFFSET, ns(e["ts"]) + OFFSET + ns(e["dur"])) for e in iterations
    ]
    assert len(iterations) == 10


def test_real_identity_and_clock() -> None:
    found = read_capture(READER, data(REAL))
    assert (found.identity.rank, found.identity.device, found.identity.host) == (0, 0, "A2007104679")
    assert found.source.member == "device 0"
    # The capture lasted from 14:27:04 to 14:28:02 of 18 August 2023 by its own dates (UTC+8 in the text).
    begin, end = 1692340024324979000, 1692340082430569000
    times = [row["start_ns"] for row in found.tables["events"] + found.tables["steps"]]
    assert begin < min(times) < max(times) < end


def test_real_tree_is_ingested(tmp_path: Path) -> None:
    run = ingest([data(REAL)], tmp_path / "real.run")
    assert run.rows("SELECT rank, device, host FROM ranks") == [(0, 0, "A2007104679")]
    assert run.rows("SELECT category, count(*) FROM events GROUP BY category ORDER BY category") == [
        ("kernel", 1390), ("launch", 14),
    ]  # fmt: skip


def test_folders_may_have_any_name(part: Path, copy: Path) -> None:
    expected = read_capture(READER, part)
    copy.joinpath("device_0", "timeline").rename(copy / "device_0" / "lines")
    copy.joinpath("device_0").rename(copy / "card")
    found = read_only(READER, copy)
    assert found.tables == expected.tables
    assert found.identity == expected.identity


# Each kind of file has a table that another one has too: which of them is not looked for there, its own case tells.
@spread("gone", ["task_time", "hccl", "msprof", "step_trace"], ["task_time"])
def test_each_table_comes_from_whatever_file_has_it(part: Path, copy: Path, gone: str) -> None:
    expected = read_capture(READER, part)
    for file in copy.rglob(f"{gone}_*.json"):
        file.unlink()
    found = read_only(READER, copy)
    assert found.tables["comms"] == expected.tables["comms"]
    # Each step_trace_*.json lists those of all iterations.
    steps = [step for step in expected.tables["steps"] if gone != "step_trace" or step["step"] in PARTLY]
    assert found.tables["steps"] == steps

    def tasks(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted((r["start_ns"], r["stream"], r["name"], r["duration_ns"]) for r in rows)

    assert tasks(found.events("kernel")) == tasks(expected.events("kernel"))


def test_one_iteration_missing_in_one_file_is_taken_from_another(part: Path, copy: Path) -> None:
    expected = read_capture(READER, part)
    (copy / "device_0" / "timeline" / "msprof_0_2_2.json").write_bytes(b"")
    found = read_only(READER, copy)
    assert len(found.events("kernel")) == len(expected.events("kernel"))
    assert len(found.tables["comms"]) == 3


def test_without_start_info_times_stay_those_since_boot(part: Path, copy: Path) -> None:
    expected = read_capture(READER, part)
    (copy / "device_0" / "start_info.0").unlink()
    found = read_only(READER, copy)
    assert [r["start_ns"] + OFFSET for r in found.tables["events"]] == [
        r["start_ns"] for r in expected.tables["events"]
    ]
    assert any("no start_info relates them to wall clock" in note for note in texts(found.report.notes))


def test_missing_end_info_is_an_unfinished_capture(copy: Path) -> None:
    (copy / "device_0" / "end_info.0").unlink()
    assert any("no end_info: the capture is unfinished" in note for note in texts(read_only(READER, copy).report.notes))


def test_a_capture_that_was_never_exported_is_left(copy: Path) -> None:
    shutil.rmtree(copy / "device_0" / "timeline")
    (copy / "device_0" / "data").mkdir()
    (copy / "device_0" / "data" / "hwts.data.0.slice_0").write_bytes(b"\1\2\3")
    found = find(READER, copy)
    assert found.sources == []
    assert [(left.path, left.reason) for left in found.left] == [
        (copy, f"not parsed yet; run: msprof --export=on --output={copy}")
    ]


def test_one_device_that_was_never_exported_is_left(copy: Path) -> None:
    shutil.copytree(copy / "device_0", copy / "device_1", ignore=shutil.ignore_patterns("timeline"))
    found = find(READER, copy)
    assert [(s.path, s.member) for s in found.sources] == [(copy, "device 0")]
    assert [left.path for left in found.left] == [copy / "device_1"]


@pytest.mark.parametrize("place", [".", "mindstudio_profiler_output"])
def test_a_capture_exported_as_a_database_is_not_called_unparsed(copy: Path, place: str) -> None:
    shutil.rmtree(copy / "device_0" / "timeline")
    (copy / place).mkdir(exist_ok=True)
    (copy / place / "msprof_20230818142704.db").write_bytes(b"SQLite format 3\0")
    found = find(READER, copy)
    assert (found.sources, found.left) == ([], [])


def test_a_framework_folder_that_was_never_parsed_names_the_call(copy: Path) -> None:
    shutil.rmtree(copy / "device_0" / "timeline")
    folder = copy.parent / "x_ascend_pt"
    folder.mkdir()
    (folder / "FRAMEWORK").mkdir()
    copy.rename(folder / PROF)
    (left,) = find(READER, folder).left
    assert left.reason == f"not parsed yet; run in Python: torch_npu.profiler.profiler.analyse({str(folder)!r})"


def test_rank_comes_from_the_framework_where_its_own_output_is_missing(copy: Path) -> None:
    folder = copy.parent / "x_ascend_pt"
    folder.mkdir()
    copy.rename(folder / PROF)
    (folder / "profiler_info_5.json").write_text('{"rank_id": "5"}')
    found = read_only(READER, folder)
    assert found.identity.rank == 5
    assert "info.json or the rank table says rank 0: 5 was taken" in texts(found.report.notes)


@pytest.mark.parametrize("name", ["kernel_details.csv", "trace_view.json", "ascend_pytorch_profiler_5.db"])
def test_the_tree_inside_a_parsed_framework_folder_is_left(copy: Path, name: str) -> None:
    folder = copy.parent / "x_ascend_pt"
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    copy.rename(folder / PROF)
    (folder / "profiler_info_5.json").write_text('{"rank_id": "5"}')
    (output / name).write_text("Name,Start Time(us),Duration(us)\n")
    found = find(READER, folder)
    assert found.sources == []
    (left,) = found.left
    assert left.reason == "ASCEND_PROFILER_OUTPUT beside it holds the same, with ranks and steps: that is read"


def test_rank_is_unknown_unless_something_says_it(copy: Path) -> None:
    path = copy / "device_0" / "info.json.0"
    path.write_text(path.read_text().replace('"rank_id":0', '"rank_id":-1'))
    assert read_only(READER, copy).identity.rank is None
    renamed = copy.rename(copy.parent / "rank_12")
    assert [f.rank for f in discover([renamed]).sources] == [12]
    renamed.rename(copy)
    table = {"server_list": [{"server_id": "1.2.3.4", "device": [{"device_id": "0", "rank_id": "3"}]}]}
    (copy / "hccl_1p.json").write_text(json.dumps(table))
    assert read_only(READER, copy).identity.rank == 3


def test_damaged_timeline_costs_its_damage_only(part: Path, copy: Path) -> None:
    for file in copy.rglob("task_time_*.json"):
        file.unlink()
    path = copy / "device_0" / "timeline" / "msprof_0_2_1.json"
    path.write_text(path.read_text().replace('"dur": 23.1,', '"dur": NaN,', 1))
    found = read_only(READER, copy)
    assert len(found.events("kernel")) == len(read_capture(READER, part).events("kernel")) - 1
    assert dict(found.report.repaired) == {"inf or nan read as null": 1}
    assert dict(found.report.dropped) == {"time is no number": 1}
    assert found.report.places["inf or nan read as null"].file == str(path)


@pytest.mark.parametrize("rank", [0, 1])
def test_bytes_of_the_planes_are_those_of_the_vendors_files(rank: int, tmp_path: Path) -> None:
    """communication.json sums what an operation moved over links; a timeline alone gives the same."""
    output = data(f"ascend/Ascend+msinsight/test/data/pytorch/text/level1/rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT")
    shutil.copyfile(output / "trace_view.json", tmp_path / f"rank{rank}.json")
    found = read_only(READER, tmp_path)
    content = json.loads((output / "communication.json").read_text(), parse_float=Decimal)
    listed = {
        key.partition("@")[0]: about["Communication Bandwidth Info"]["HCCS"]["Transit Size(MB)"]
        for kinds in content.values()
        for operations in kinds.values()
        for key, about in operations.items()
        if not key.startswith("Total")
    }
    assert len(found.tables["comms"]) == len(listed) == 4
    assert sorted(r["payload_bytes"] for r in found.tables["comms"]) == sorted(
        round(s * 10**6) for s in listed.values()
    )
    assert {(r["stream"], r["operation"]) for r in found.tables["comms"]} == {(4, "allreduce")}
    assert len(found.events("kernel")) == 187
    assert found.report.dropped.total() == 0
    assert [s["step"] for s in found.tables["steps"]] == [50]
