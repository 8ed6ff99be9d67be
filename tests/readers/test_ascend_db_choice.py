"""Several records of one rank: which is taken, what is said; and the databases of msprof and older releases."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.ascend_capture import ALONE, ORDERS, OUTPUT, Capture, of_text, simple
from helpers.notices import texts
from helpers.recorded import SAMPLES, data
from helpers.thorough import spread

from tracetool.errors import MissingRank
from tracetool.ingestion import discover
from tracetool.readers import Source, SourceReport
from tracetool.readers.ascend import READER

SAMPLE = SAMPLES / "ascend-1f1b" / "rank_1_ascend_pt"
DATABASE = "ascend_pytorch_profiler_1.db"
START = 1_700_000_000_000_000_000


@dataclass
class Read:
    """What was read of one source."""

    tables: dict[str, list[dict[str, Any]]]
    report: SourceReport

    def events(self, category: str) -> list[dict[str, Any]]:
        return [row for row in self.tables.get("events", []) if row["category"] == category]

    def says(self, part: str) -> bool:
        return any(part in note for note in texts(self.report.notes))


def sources(folder: Path) -> list[Source]:
    return READER.find(sorted(f for f in folder.rglob("*") if f.is_file())).sources


def read_source(source: Source) -> Read:
    report = SourceReport()
    tables: dict[str, list[dict[str, Any]]] = {}
    advanced: list[int] = []
    identity = READER.identify(source)
    rank = -1 if identity.rank is None else identity.rank
    for name, rows in READER.read(source, rank, identity, frozenset(), report, advanced.append):
        tables.setdefault(name, []).extend(rows.to_pylist())
    assert sum(advanced) == source.size_bytes
    return Read(tables, report)


def read(folder: Path) -> Read:
    (source,) = sources(folder)
    return read_source(source)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Rank 1 of the sample as text and, beside it, as a database."""
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "rank"))
    of_text(SAMPLE, 1, ORDERS[1]).write(folder / OUTPUT / DATABASE)
    return folder


def rewrite(folder: Path, change: Any) -> None:
    """Write the database anew after a change of its rows."""
    path = folder / OUTPUT / DATABASE
    path.unlink()
    capture = of_text(SAMPLE, 1, ORDERS[1])
    change(capture)
    capture.write(path)


# --- Text and database of one rank


def test_equal_records_are_counted_once_and_the_database_is_taken(both: Path) -> None:
    text, found = read(SAMPLE), read(both)
    assert len(found.events("kernel")) == len(text.events("kernel"))
    assert None not in {k["correlation"] for k in found.events("kernel")}
    assert len(found.tables["comms"]) == len(text.tables["comms"])
    assert len(found.tables["memory"]) == len(text.tables["memory"])
    count = len(text.events("kernel"))
    assert found.says(f"kernels: {count:,} taken from {DATABASE}, not the {count:,} in kernel_details.csv")
    assert found.says("memory: ")
    # Vendor's figures are in the text alone.
    assert found.tables["steps"] == text.tables["steps"]


def test_the_text_is_taken_where_the_database_has_less(both: Path) -> None:
    text = read(SAMPLE)

    def lose(capture: Capture) -> None:
        for table in ("TASK", "COMMUNICATION_OP", "MEMORY_RECORD"):
            del capture.rows[table][5:]

    rewrite(both, lose)
    found = read(both)
    for table in ("comms", "memory", "steps"):
        assert found.tables[table] == text.tables[table], table
    assert found.events("kernel") == text.events("kernel")
    assert len(found.events("launch")) > 0, "the database alone has the host's side"
    assert found.says("taken from kernel_details.csv")
    assert found.says("communication operations: 14 taken from kernel_details.csv, not the 5 in " + DATABASE)


def test_another_capture_beside_the_text_is_left_out(both: Path) -> None:
    def later(capture: Capture) -> None:
        for rows in capture.rows.values():
            for row in rows:
                for column in ("startNs", "endNs", "timestamp", "timestampNs", "startTimeNs", "endTimeNs"):
                    row.update({column: row[column] + 3600 * 10**9} if column in row else {})

    rewrite(both, later)
    found = read(both)
    assert found.says(f"text files left out: recorded at another time than {DATABASE}")
    assert len(found.tables["comms"]) == len(read(SAMPLE).tables["comms"])
    first = min(e["start_ns"] for e in read(SAMPLE).tables["events"]) + 3600 * 10**9
    for table, column in (("events", "start_ns"), ("comms", "start_ns"), ("memory", "time_ns")):
        assert min(row[column] for row in found.tables[table]) >= first - 10**9, table


def test_a_damaged_text_file_is_left_out_for_the_database(both: Path) -> None:
    expected = read(both).tables
    for name in ("kernel_details.csv", "communication.json", "memory_record.csv"):
        path = both / OUTPUT / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 3])
    found = read(both)
    for table in ("events", "memory", "steps"):
        assert found.tables[table] == expected[table], table
    assert found.report.dropped["damaged operation in communication.json"] == 1


def test_a_database_below_the_folders_capture_belongs_to_the_rank(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "rank"))
    of_text(SAMPLE, 1, ORDERS[1]).write(
        folder / "PROF_000001_x" / "mindstudio_profiler_output" / "msprof_20250101000000.db"
    )
    (source,) = sources(tmp_path)
    assert source.path == folder
    assert len(read_source(source).events("launch")) > 0


# Ranks of one capture: another one has other messages in the same files.
@spread("rank", range(4), 1)
def test_real_analysis_alone_tells_what_the_json_files_tell(rank: int, tmp_path: Path) -> None:
    real = data("ascend/Ascend+msinsight/test/st/level2") / f"rank_{rank}_ascend_pt"
    folder = Path(shutil.copytree(real, tmp_path / "rank"))
    # What takes most of the reading has no communication.
    for name in ("memory_record.csv", "operator_memory.csv", "npu_module_mem.csv"):
        (folder / OUTPUT / name).unlink(missing_ok=True)
    (folder / OUTPUT / "analysis.db").unlink()
    text = read(folder)
    shutil.copy(real / OUTPUT / "analysis.db", folder / OUTPUT)
    assert read(folder).tables == text.tables
    for name in ("communication.json", "communication_matrix.json", "step_trace_time.csv"):
        (folder / OUTPUT / name).unlink()
    found = read(folder)
    assert found.tables == text.tables
    assert {c["evidence"] for c in found.tables["comms"] if c["peer"] is not None} == {"matrix"}


# --- Identity


def test_tasks_are_believed_about_the_device(tmp_path: Path) -> None:
    capture = simple(rank=3)
    for task in capture.rows["TASK"]:
        task["deviceId"] = 5
    capture.write(tmp_path / "x.db")
    (found,) = discover([tmp_path]).sources
    assert (found.rank, found.identity.device) == (3, 5)
    assert read(tmp_path).says("RANK_DEVICE_MAP says device [0], its tasks ran on [5]")


@pytest.mark.parametrize("name", ["ascend_pytorch_profiler_6.db", "ascend_mindspore_profiler_6.db", "rank6.db"])
def test_rank_of_a_capture_without_one_is_its_names(tmp_path: Path, name: str) -> None:
    simple(rank=-1).write(tmp_path / name)
    (found,) = discover([tmp_path]).sources
    assert found.rank == 6


@pytest.mark.parametrize("name", ["msprof_20250101000000.db", "ascend_pytorch_profiler.db"])
def test_msprof_and_single_card_captures_do_not_say_their_rank(tmp_path: Path, name: str) -> None:
    simple(rank=-1).write(tmp_path / "PROF_000001_2025" / name)
    (found,) = discover([tmp_path]).sources
    assert (found.rank, found.identity.rank, found.rank_from) == (0, None, "being the only one")
    assert len(read(tmp_path).events("kernel")) == 3
    simple(rank=-1).write(tmp_path / "PROF_000002_2025" / name)
    with pytest.raises(MissingRank, match=name):
        discover([tmp_path])


def test_metadata_names_rank_and_groups(tmp_path: Path) -> None:
    capture = simple(rank=-1)
    groups = {"group_name_3": {"group_name": "pp", "group_rank": 1, "global_ranks": [0, 8]}}
    capture.add("META_DATA", name="parallel_group_info", value=json.dumps(groups))
    capture.add("META_DATA", name="distributed_args", value='{"rank": 8, "world_size": 16}')
    capture.add("META_DATA", name="SCHEMA_VERSION", value="1.0.0")
    capture.write(tmp_path / "x.db")
    (found,) = discover([tmp_path]).sources
    assert (found.rank, found.identity.world_size) == (8, 16)
    assert [(g.name, g.description, g.ranks) for g in found.identity.groups] == [("group_name_3", "pp", (0, 8))]


@pytest.mark.parametrize("ranks", [(-1, -1), (4, 5)])
def test_each_device_of_a_database_is_a_source(tmp_path: Path, ranks: tuple[int, int]) -> None:
    capture = Capture()
    for rank, device in zip(ranks, (2, 3), strict=True):
        capture.add("RANK_DEVICE_MAP", rankId=rank, deviceId=device)
        for number in range(device):
            connection = 10 * device + number
            capture.kernel(
                f"on{device}", "Add", START + number, START + number + 1, device=device, connection=connection
            )
            capture.launch(START - 100, connection)
    capture.write(tmp_path / "msprof_20250101000000.db")
    found = sources(tmp_path)
    assert [source.member for source in found] == ["device 2", "device 3"]
    for source, rank, device in zip(found, ranks, (2, 3), strict=True):
        identity = READER.identify(source)
        assert (identity.rank, identity.device) == (None if rank < 0 else rank, device)
        result = read_source(source)
        assert [k["name"] for k in result.events("kernel")] == [f"on{device}"] * device
        assert {e["correlation"] for e in result.events("launch")} == {
            k["correlation"] for k in result.events("kernel")
        }


# --- Less than everything


def test_missing_tables_are_said_with_what_they_cost(tmp_path: Path) -> None:
    simple().write(tmp_path / "x.db")
    found = read(tmp_path)
    for part in (
        "no COMMUNICATION_OP in x.db: its communication is unknown",
        "no PYTORCH_API in x.db: operators of the framework are unknown",
        "no STEP_TIME in x.db: the host's marks of its steps are unknown",
        "and no MEMORY_RECORD in a database: memory of this rank is unknown",
        "and no StepTraceTime in a database: the vendor's times of its steps are unknown",
    ):
        assert found.says(part), part
    assert not found.says("compute of this rank is unknown")
    assert found.tables["comms"] == found.tables["steps"] == []


def test_level0_has_operations_without_bytes_or_peers(tmp_path: Path) -> None:
    capture = of_text(SAMPLE, 1, ORDERS[1])
    for task in capture.rows["COMMUNICATION_TASK_INFO"]:
        task.update(size=-1, srcRank=ALONE, dstRank=ALONE)
    capture.write(tmp_path / "x.db")
    found = read(tmp_path)
    assert found.says("holds neither bytes nor peers, as at Level0")
    assert {(c["payload_bytes"], c["peer"], c["evidence"]) for c in found.tables["comms"]} == {(None, None, "unknown")}
    assert {c["operation"] for c in found.tables["comms"]} == {"batchsendrecv", "allreduce"}
    assert found.says("messages are unknown")


def test_over_rdma_the_sender_logs_the_payload(tmp_path: Path) -> None:
    capture = simple(rank=0)
    groups = {"net": {"group_name": "pp", "group_rank": 0, "global_ranks": [0, 8, 16]}}
    capture.add("META_DATA", name="parallel_group_info", value=json.dumps(groups))
    name, group = capture.text("hcom_send__822_0_1"), capture.text("net")
    capture.add("COMMUNICATION_OP", opName=name, startNs=START, endNs=START + 9, groupName=group, opId=1, opType=name)
    for kind, rdma, size in (("RDMASend", 0, 4), ("RDMASend", 1, 20_971_520), ("Notify_Wait", 65535, 0)):
        capture.add(
            "COMMUNICATION_TASK_INFO", taskType=capture.text(kind), rdmaType=rdma, srcRank=0, dstRank=1,
            transportType=1, size=size, linkType=3, opId=1,
        )  # fmt: skip
    capture.write(tmp_path / "x.db")
    (row,) = read(tmp_path).tables["comms"]
    assert (row["operation"], row["peer"], row["payload_bytes"], row["group"]) == ("send", 8, 20_971_520, "net")


def test_transfers_over_what_is_not_understood_are_counted(tmp_path: Path) -> None:
    capture = of_text(SAMPLE, 1, ORDERS[1])
    for number, name in enumerate(("SDMA", "RDMA", "LOCAL", "UB")):
        capture.add("ENUM_HCCL_TRANSPORT_TYPE", id=number, name=name)
    moved = [task for task in capture.rows["COMMUNICATION_TASK_INFO"] if task["linkType"] == 1]
    for task in moved:
        task["transportType"] = 3
    capture.write(tmp_path / "x.db")
    found = read(tmp_path)
    assert found.report.skipped["transfer over UB: which way it goes is not known"] == len(moved) > 0


def test_ranges_and_copies(tmp_path: Path) -> None:
    capture = simple(1)
    capture.add(
        "TASK", startNs=START, endNs=START + 50, taskType=capture.text("MEMCPY_ASYNC"), globalTaskId=77, streamId=4
    )
    capture.add("MEMCPY_INFO", globalTaskId=77, size=512, memcpyOperation=1)
    capture.add("ENUM_MEMCPY_OPERATION", id=1, name="host to device")
    for kind, message, end in (
        (1, "forward_step", START + 70),
        (0, "a point", START),
        (2, "backward_step", START + 90),
    ):
        capture.add("MSTX_EVENTS", startNs=START, endNs=end, eventType=kind, message=capture.text(message), globalTid=5)
    capture.write(tmp_path / "x.db")
    found = read(tmp_path)
    assert [(m["name"], m["duration_ns"], m["stream"]) for m in found.events("memcpy")] == [("host to device", 50, 4)]
    assert [(m["name"], m["duration_ns"], m["thread"]) for m in found.events("annotation")] == [
        ("forward_step", 70, 5), ("backward_step", 90, 5),
    ]  # fmt: skip
    assert found.report.skipped["marker without a duration"] == 1


def test_a_step_is_what_was_launched_in_it(tmp_path: Path) -> None:
    capture = simple(6)
    # Kernel n starts 1000 n after the first and was launched 300 before that.
    capture.add("STEP_TIME", id=4, startNs=START - 400, endNs=START + 1800)
    capture.add("STEP_TIME", id=5, startNs=START + 1900, endNs=START + 4750)
    capture.add("STEP_TIME", id=6, startNs=START + 9000, endNs=START + 9500)
    capture.write(tmp_path / "x.db")
    found = read(tmp_path)
    assert [(s["step"], s["start_ns"] - START, s["end_ns"] - START) for s in found.tables["steps"]] == [
        (4, 0, 2500), (5, 3000, 5500), (6, 9000, 9500),
    ]  # fmt: skip
    assert found.says("steps [6] ran nothing on the device")


def test_events_outside_the_recording_are_said(tmp_path: Path) -> None:
    capture = simple(3)
    capture.add("SESSION_TIME_INFO", startTimeNs=START - 1000, endTimeNs=START + 1500)
    capture.write(tmp_path / "x.db")
    # The third kernel starts at START + 2000, its launch 300 before.
    assert read(tmp_path).says("2 events lie outside the recording's time")


def test_columns_of_the_csv_are_what_the_capture_is_made_of() -> None:
    """The synthetic databases hold all records of the text they are made from."""
    with (SAMPLE / OUTPUT / "kernel_details.csv").open(newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream))
    capture = of_text(SAMPLE, 1, ORDERS[1])
    assert len(capture.rows["COMPUTE_TASK_INFO"]) + len(capture.rows["COMMUNICATION_OP"]) == len(records)
