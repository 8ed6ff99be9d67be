"""Exports of Nsight Systems: golden numbers of real ones, every form of export, secrets, and what is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from helpers.nsys_export import NCCL_DOMAIN, NESTED, SECRET, How, Tables
from helpers.recorded import data, run_of
from helpers.thorough import spread

from tracetool.errors import IngestError, TraceToolError
from tracetool.ingestion import IngestOptions, discover, ingest
from tracetool.readers.nsys.capture import about, capture_of
from tracetool.readers.nsys.forms import opened
from tracetool.readers.nsys.nvtx import Payloads
from tracetool.readers.nsys.stored import process_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

TWO_RANKS, LAZY, ALL_TABLES = "two-ranks-2026.2", "nccl-nvtx-2023.4", "nccl-nvtx-2022.4-all-tables"
KERNELS, CALLS, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
EPOCH = 1_779_787_126_655_288_414
PIDS = {148: 1793, 149: 1794}
"""Kernels per process of the real export of two ranks, as the format's reference counts them."""


def sample(name: str) -> Path:
    """A real export."""
    return data("nsys", f"{name}.sqlite")


def read_as(path: Path, output: Path, pids: list[int]) -> Run:
    """A Run of an export of several ranks, which are told by hand."""
    ranks = {f"{path.name}:{pid}": rank for rank, pid in enumerate(pids)}
    return ingest([path], output, options=IngestOptions(ranks=ranks))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The Run of the real export of two ranks."""
    return read_as(sample(TWO_RANKS), tmp_path_factory.mktemp("nsys") / "x.run", list(PIDS))


def test_golden_numbers_of_two_ranks_in_one_file(two_ranks: Run) -> None:
    about_file = capture_of(sample(TWO_RANKS))
    assert (about_file.base_ns, sorted(about_file.processes)) == (EPOCH, list(PIDS))
    assert [p.device for p in about_file.processes.values()] == [0, 1]
    kernels = two_ranks.rows("SELECT rank, count(*) FROM events WHERE category = 'kernel' GROUP BY 1 ORDER BY 1")
    assert kernels == list(enumerate(PIDS.values()))
    sendrecv = "SELECT rank, count(*), min(blocks), max(blocks) FROM events WHERE name LIKE 'ncclDevKernel_SendRecv%'"
    assert two_ranks.rows(f"{sendrecv} GROUP BY 1 ORDER BY 1") == [(0, 31, 32, 32), (1, 31, 32, 32)]
    ((ranges,),) = two_ranks.rows("SELECT count(*) FROM events WHERE category IN ('op', 'annotation')")
    assert ranges == 16_693
    waits = "SELECT rank, count(*) FROM events WHERE name = 'cudaStreamSynchronize' GROUP BY 1 ORDER BY 1"
    assert two_ranks.rows(waits) == [(0, 15), (1, 15)]
    first = two_ranks.rows("SELECT min(start_ns) FROM events WHERE category = 'kernel' AND rank = 0")
    assert first == [(EPOCH + 72_897_756_889,)]


def test_correlations_join_within_a_process_only(two_ranks: Run) -> None:
    pairs = two_ranks.rows(
        "SELECT count(*) FROM events k JOIN events l ON l.rank = k.rank AND l.correlation = k.correlation "
        "AND l.category = 'launch' WHERE k.category = 'kernel'"
    )
    assert pairs == [(3577,)]  # 3,587 kernels, 10 of which the window cut off from their launch
    early = two_ranks.rows(
        "SELECT count(*) FROM events k JOIN events l ON l.rank = k.rank AND l.correlation = k.correlation "
        "AND l.category = 'launch' WHERE k.category = 'kernel' AND k.start_ns < l.start_ns"
    )
    assert early == [(0,)]


def test_every_launch_knows_the_innermost_operator_around_it(two_ranks: Run) -> None:
    """Compared with a search over all pairs by the standard library."""
    with sqlite3.connect(f"file:{sample(TWO_RANKS)}?mode=ro&immutable=1", uri=True) as connection:
        rows = connection.execute(
            "SELECT r.start, (SELECT n.text FROM NVTX_EVENTS n WHERE n.globalTid = r.globalTid AND n.domainId = 0 "
            "AND n.text LIKE '%op_id%' AND n.text NOT LIKE 'nccl:%' AND n.text NOT LIKE 'FSDP::%' "
            "AND n.start <= r.start AND n.end >= r.start ORDER BY n.start DESC LIMIT 1) "
            "FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE (r.globalTid >> 24 & 16777215) = 148 ORDER BY r.start LIMIT 60"
        ).fetchall()
    wanted = {EPOCH + start: text and text.split(", ")[0] for start, text in rows}
    found = two_ranks.rows(
        "SELECT l.start_ns, o.name FROM events l LEFT JOIN events o ON o.rank = l.rank AND o.category = 'op' "
        "AND o.external_id = l.external_id WHERE l.rank = 0 AND l.category = 'launch' ORDER BY 1 LIMIT 30"
    )
    assert found == [(start, wanted[start]) for start, _ in found]


def test_what_collectives_are_made_of_is_no_message(two_ranks: Run) -> None:
    counted = two_ranks.rows("SELECT rank, operation, count(*), count(start_ns) FROM comms GROUP BY ALL ORDER BY ALL")
    # 30 calls of all_to_all, each a send and a receive per rank; the kernel without a launch was cut off.
    assert counted == [(r, o, n, n) for r in (0, 1) for o, n in (("all_to_all", 30), ("sendrecv", 1))]


@pytest.mark.parametrize(("name", "filled"), [(LAZY, 11), (ALL_TABLES, 10)])
def test_golden_numbers_of_nccl_without_a_device(name: str, filled: int, tmp_path: Path) -> None:
    path = sample(name)
    pids = sorted(capture_of(path).processes)
    assert len(pids) == 2
    with opened(path) as stored:
        assert sum(1 for _ in stored.rows(NVTX, "start")) == 70
        # The tables that hold anything, but for lists of what numbers mean; 2022.4 has none of the capture's options.
        held = [t for t in stored.tables if not t.startswith(("ENUM_", "UnwindMethod")) and any(stored.rows(t, "id"))]
    assert len(held) == filled
    run = read_as(path, tmp_path / "x.run", pids)
    assert run.rows("SELECT operation, count(*) FROM comms GROUP BY 1 ORDER BY 1") == [
        ("allreduce", 6), ("recv", 6), ("send", 6),
    ]  # fmt: skip
    assert run.rows("SELECT count(*), count(peer), count(payload_bytes) FROM comms WHERE evidence = 'unknown'") == [
        (18, 0, 0)
    ]
    assert [step for (step,) in run.rows("SELECT step FROM steps WHERE rank = 0 ORDER BY 1")] == [0, 1, 2]


def test_a_file_of_several_ranks_asks_which_is_which(tmp_path: Path) -> None:
    asked = r"2 sources do not say their rank: .*two-ranks-2026\.2\.sqlite:148, "
    with pytest.raises(IngestError, match=asked) as error:
        ingest([sample(TWO_RANKS)], tmp_path / "x.run")
    assert "two-ranks-2026.2.sqlite:148=0" in (error.value.hint or "")
    assert "two-ranks-2026.2.sqlite:149=1" in (error.value.hint or "")


def test_ids_with_the_highest_bit_are_negative_in_sqlite() -> None:
    assert process_of(-144115188075855872 + (148 << 24)) == 148
    assert process_of(2**64 - 144115188075855872 + (148 << 24)) == 148
    assert process_of(None) is None


def test_payloads_are_decoded_by_their_schema(tmp_path: Path) -> None:
    """Layouts of NCCL 2.16, which names no communicator and calls sizes otherwise, and of 2.25."""
    tables = Tables()
    schemas: dict[int, list[tuple[str, int, int | None]]] = {
        9: [("Bytes", 18, None), ("Peer rank", 5, 8)],
        10: [("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)],
    }
    for schema, entries in schemas.items():
        for n, (name, kind, offset) in enumerate(entries):
            tables.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=NCCL_DOMAIN, schemaId=schema, idx=n, type=kind,
                       name=name, offset=offset)  # fmt: skip
    with opened(tables.write(tmp_path / "x.sqlite")) as stored:
        payloads = Payloads(stored)

    def blob(schema: int, body: bytes) -> bytes:
        return struct.pack("<4Q", NCCL_DOMAIN, schema, len(body), 0) + body

    old = payloads.decoded(blob(9, struct.pack("<Qi4x", 4096, 3)), None)
    assert (old.communicator, old.size_bytes, old.peer) == (None, 4096, 3)
    new = payloads.decoded(blob(10, struct.pack("<QQi4x", 2**64 - 1, 4096, 3)), None)
    assert (new.communicator, new.size_bytes, new.peer) == (str(2**64 - 1), 4096, 3)
    names: tuple[int | str, ...] = -1, "0xffffffffffffffff"
    for identifier in names:
        text = json.dumps({"NCCL communicator ID": identifier, "Message size [bytes]": "4096", "Peer rank": 3})
        assert payloads.decoded(None, text) == new
    for damaged in (b"", blob(10, b"")[:20], blob(11, b"12345678"), blob(10, b"123")):
        assert payloads.decoded(damaged, None).peer is None
    assert payloads.decoded(None, "{").size_bytes is None


@pytest.fixture(scope="module")
def of_sqlite(exported: Path) -> Run:
    """Its Run."""
    return run_of(exported)


def test_ranks_and_devices_come_from_the_environment_and_the_tables(of_sqlite: Run) -> None:
    assert of_sqlite.rows("SELECT rank, world_size, host, device_name, sm_count FROM ranks ORDER BY 1") == [
        (rank, 2, "node0", "NVIDIA H200", 132) for rank in (0, 1)
    ]
    kinds = Counter(evidence for (evidence,) in of_sqlite.rows("SELECT evidence FROM comms WHERE peer IS NOT NULL"))
    assert kinds.keys() == {"metadata"}


def test_nothing_secret_gets_out(exported: Path, of_sqlite: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The secret is in the environment, a command line, what the program printed, and StringIds."""
    for file in exported.iterdir():
        assert SECRET.encode() in file.read_bytes()
    for file in of_sqlite.path.rglob("*"):
        if file.suffix == ".parquet":
            for column in pq.read_table(file).columns:
                assert SECRET not in str(column.to_pylist())
        elif file.is_file():
            assert SECRET.encode() not in file.read_bytes()
    for found in discover([exported]).sources:
        assert SECRET not in repr(found)
    assert SECRET not in repr(capture_of(sorted(exported.iterdir())[0]))
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err


# What is told of a table that is missing is one text.
@spread("table", [KERNELS, CALLS, NVTX, "StringIds", "META_DATA_CAPTURE", "ANALYSIS_FILE"], 2)
def test_no_error_of_a_damaged_file_tells_a_secret(exported: Path, table: str, tmp_path: Path) -> None:
    file = shutil.copy(sorted(exported.iterdir())[0], tmp_path / "rank0.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute(f'DROP TABLE "{table}"')
    texts = []
    try:
        run = ingest([file], tmp_path / "x.run")
        texts.append(json.dumps(run.manifest))
    except TraceToolError as error:
        texts += [error.message, error.hint or ""]
    assert SECRET not in "".join(texts)


def test_graphs_memory_and_diagnostics(tmp_path: Path) -> None:
    """CUDA graphs hide kernels, what the driver gives is memory of the whole process, and lost events are said."""
    tables = Tables()
    process = 7 << 24
    tables.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
    tables.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=50, end=90, deviceId=0, streamId=7, correlationId=5,
               globalPid=process, graphId=3)  # fmt: skip
    tables.add(
        CALLS, start=40, end=45, globalTid=process | 9, correlationId=5, nameId=tables.text("cudaGraphLaunch_v1")
    )
    # Pinned memory is the host's (``ENUM_CUDA_MEM_KIND`` of 2023.4 and 2026.2).
    for at, size, freed, kind in ((10, 100, 0, 2), (15, 1000, 0, 1), (20, 60, 1, None)):
        tables.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=at, globalPid=process, deviceId=0, address=1, bytes=size,
                   memKind=kind, memoryOperationType=freed)  # fmt: skip
    tables.add("DIAGNOSTIC_EVENT", timestamp=-5, severity=3, text=f"lost events of {SECRET}")
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.rows("SELECT category, name, start_ns - 1779787126655288414, correlation FROM events ORDER BY 3") == [
        ("launch", "cudaGraphLaunch", 40, 5), ("kernel", "CUDA graph 3", 50, 5),
    ]  # fmt: skip
    assert run.rows("SELECT component, delta_bytes, block FROM memory ORDER BY time_ns") == [
        ("APP", 100, 1), ("APP", -60, 1),
    ]  # fmt: skip
    (source,) = run.manifest["sources"]
    assert source["unread"] == {"CUDA graphs whose kernels are hidden": 1}
    assert source["skipped"] == {"memory of the host": 1}
    notes = " ".join(source["notes"])
    assert "--cuda-graph-trace=node" in notes
    assert "the profiler itself reports 1 problem" in notes
    assert SECRET not in json.dumps(run.manifest)


def test_ranges_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    tables = Tables()
    process = 7 << 24
    for start, end, text in ((0, 100, "aten::outer, op_id = 1"), (10, 50, "aten::inner, op_id = 2")):
        tables.add(NVTX, start=start, end=end, eventType=NESTED, text=text, globalTid=process | 7, domainId=0)
    for number, at in enumerate((60, 20)):
        tables.add(CALLS, start=at, end=at + 1, globalTid=process | 7, correlationId=number, nameId=1)
        tables.add(KERNELS, start=at + 5, end=at + 9, deviceId=0, streamId=7, correlationId=number, globalPid=process,
                   demangledName=1, shortName=1)  # fmt: skip
    tables.add("StringIds", id=1, value="kernel")
    path = tables.write(tmp_path / "rank0.sqlite")
    with sqlite3.connect(path) as connection:
        for table in (NVTX, CALLS):
            connection.execute(f"CREATE TABLE turned AS SELECT * FROM {table} ORDER BY start DESC")
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"ALTER TABLE turned RENAME TO {table}")
    run = ingest([path], tmp_path / "x.run")
    assert run.rows(
        "SELECT k.correlation, o.name FROM events k JOIN events o ON o.external_id = k.external_id "
        "WHERE o.category = 'op' AND k.category = 'kernel' ORDER BY 1"
    ) == [(0, "aten::outer"), (1, "aten::inner")]


@pytest.mark.parametrize("shorter_first", [True, False])
def test_of_ranges_that_begin_together_the_shorter_is_inside(shorter_first: bool, tmp_path: Path) -> None:
    """In whichever order they are stored; clocks of hosts may be coarse."""
    tables = Tables()
    process = 7 << 24
    ranges = [(100, "aten::outer"), (50, "aten::inner")]
    for end, text in sorted(ranges, reverse=not shorter_first):
        tables.add(NVTX, start=0, end=end, eventType=NESTED, text=f"{text}, op_id = 1", globalTid=process | 7,
                   domainId=0)  # fmt: skip
    for number, at in enumerate((10, 60)):
        tables.add(CALLS, start=at, end=at + 1, globalTid=process | 7, correlationId=number, nameId=1)
        tables.add(KERNELS, start=at + 5, end=at + 9, deviceId=0, streamId=7, correlationId=number, globalPid=process,
                   demangledName=1, shortName=1)  # fmt: skip
    tables.add("StringIds", id=1, value="kernel")
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.rows(
        "SELECT k.correlation, o.name FROM events k JOIN events o ON o.external_id = k.external_id "
        "WHERE o.category = 'op' AND k.category = 'kernel' ORDER BY 1"
    ) == [(0, "aten::inner"), (1, "aten::outer")]


def test_a_database_of_something_else_is_none(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    with opened(tmp_path / "other.sqlite") as stored:
        assert about(stored).processes == {}
    with pytest.raises(IngestError, match="no trace"):
        discover([tmp_path])
    assert How().payloads


def test_kernels_of_a_graph_share_the_launch_and_its_operator(tmp_path: Path) -> None:
    """``node`` mode: thousands of kernels have the correlation of one launch."""
    tables = Tables()
    process = 7 << 24
    tables.add(NVTX, start=0, end=50, eventType=NESTED, text="aten::replay, op_id = 1", globalTid=process | 7,
               domainId=0)  # fmt: skip
    tables.add(CALLS, start=10, end=20, globalTid=process | 7, correlationId=3, nameId=tables.text("cudaGraphLaunch"))
    for number in range(3):
        tables.add(KERNELS, start=30 + 10 * number, end=35 + 10 * number, deviceId=0, streamId=7, correlationId=3,
                   globalPid=process, demangledName=tables.text(f"kernel{number}"))  # fmt: skip
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.rows(
        "SELECT k.name, l.name, o.name FROM events k JOIN events l ON l.correlation = k.correlation "
        "AND l.category = 'launch' JOIN events o ON o.external_id = k.external_id AND o.category = 'op' "
        "WHERE k.category = 'kernel' ORDER BY 1"
    ) == [(f"kernel{number}", "cudaGraphLaunch", "aten::replay") for number in range(3)]


@pytest.mark.parametrize("zero", [-77_000_000, 2**53, EPOCH])
def test_times_before_the_capture_and_large_ids_are_exact(zero: int, tmp_path: Path) -> None:
    """Neither ids nor times go through floats, and what began before the capture has a negative time."""
    tables = Tables()
    process, correlation = (7 << 24) - 2**57, 2**53 + 1
    tables.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
    for number in (0, 1):
        tables.add(CALLS, start=zero + number, end=zero + number + 1, globalTid=process | 7, nameId=1,
                   correlationId=correlation + number)  # fmt: skip
        tables.add(KERNELS, start=zero + 3 + number, end=zero + 5 + number, deviceId=0, streamId=7, globalPid=process,
                   correlationId=correlation + number, demangledName=1)  # fmt: skip
    tables.add("StringIds", id=1, value="kernel")
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    base = 0 if zero == EPOCH else EPOCH
    assert run.rows(
        "SELECT l.start_ns, k.start_ns, k.correlation FROM events k JOIN events l ON l.correlation = k.correlation "
        "AND l.category = 'launch' WHERE k.category = 'kernel' ORDER BY 1"
    ) == [(base + zero + n, base + zero + 3 + n, correlation + n) for n in (0, 1)]
