"""Processes of exports of Nsight Systems: their ranks, devices and communicators, of whatever tells them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from helpers.nsys_export import NCCL_DOMAIN, NESTED, Tables

from tracetool.ingestion import IngestOptions, discover, ingest
from tracetool.readers.nsys.capture import capture_of
from tracetool.readers.nsys.forms import opened
from tracetool.readers.nsys.nvtx import Payloads

if TYPE_CHECKING:
    from pathlib import Path

KERNELS, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"


def _process(tables: Tables, pid: int) -> int:
    """A process with a kernel; returns its ``globalPid``."""
    process = pid << 24
    tables.add(KERNELS, start=5, end=9, deviceId=0, streamId=7, correlationId=1, globalPid=process)
    return process


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": 3, "WORLD_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 1}, (3, 4)),
        # Within an allocation, mpirun's ranks all have the number of the shell in it.
        ({"OMPI_COMM_WORLD_RANK": 2, "OMPI_COMM_WORLD_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 1}, (2, 4)),
        ({"PMI_RANK": 1, "PMI_SIZE": 2}, (1, 2)), ({"SLURM_PROCID": 5, "SLURM_NTASKS": 8}, (5, 8)),
        ({"SLURM_PROCID": 5, "WORLD_SIZE": 8}, (5, 8)), ({"RANK": 3}, (3, None)), ({"WORLD_SIZE": 4}, (None, None)),
        ({"RANK": 4, "WORLD_SIZE": 4}, (None, None)), ({"LOCAL_RANK": 1}, (None, None)),
    ],
)  # fmt: skip
def test_the_rank_is_that_of_whoever_started_the_process(
    variables: dict[str, int], expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    tables = Tables()
    _process(tables, 7)
    tables.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="/usr/bin/python3")
    for name, value in variables.items():
        tables.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')
    (process,) = capture_of(tables.write(tmp_path / "x.sqlite")).processes.values()
    assert (process.rank, process.world_size) == expected


def test_ranks_of_several_processes_are_told_by_mpi_threads_and_marks(tmp_path: Path) -> None:
    """What MPI's table, its names of threads, and the zero-bubble fork's marks of steps say; pids are no order."""
    tables = Tables()
    by_table, by_thread, by_mark, silent = (_process(tables, pid) for pid in (30, 20, 10, 5))
    tables.add("MPI_RANKS", globalTid=by_table | 30, rank=0)
    tables.add(NVTX, start=1, eventType=39, text="MPI Rank 1", globalTid=by_thread | 20)
    tables.add(NVTX, start=1, end=9, eventType=NESTED, text="iter_2_5", globalTid=by_mark | 10, domainId=0)
    tables.add(NVTX, start=1, end=9, eventType=NESTED, text="iter_of_mine", globalTid=silent | 5, domainId=0)
    path = tables.write(tmp_path / "x.sqlite", {"MPI_RANKS": "globalTid INTEGER, rank INTEGER"})
    assert {pid: p.rank for pid, p in capture_of(path).processes.items()} == {30: 0, 20: 1, 10: 2, 5: None}


def test_the_advanced_trace_tells_sizes_and_places(tmp_path: Path) -> None:
    """Names without NCCL's prefix, and JSON alone: count and type of an entry, and who is where by each operation."""
    for rank, (name, peer) in enumerate((("Send", 1), ("Recv", 0))):
        tables, process = Tables(), (7 + rank) << 24
        _process(tables, 7 + rank)
        tables.add(NVTX, start=0, eventType=75, text="NCCL", globalTid=process | 7, domainId=4)
        told = {"commHash": 2**64 - 5, "rank": rank, "peer": peer, "count": 4096, "dataType": "ncclBfloat16"}
        tables.add(NVTX, start=2, end=4, eventType=NESTED, text=name, globalTid=process | 7, domainId=4,
                   jsonText=json.dumps(told))  # fmt: skip
        tables.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'RANK="{rank + 2}"')
        tables.write(tmp_path / f"{rank}.sqlite")
    run = ingest([tmp_path], tmp_path / "x.run")
    columns = "rank, operation, peer, payload_bytes, communicator, group_ranks"
    assert run.rows(f"SELECT {columns} FROM comms ORDER BY 1") == [
        (2, "send", 3, 8192, str(2**64 - 5), []), (3, "recv", 2, 8192, str(2**64 - 5), []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("/usr/bin/python3", ["train.py", "--backend", "deepspeed"], 1), ("/usr/bin/bash", ["run.sh"], 1),
        ("/opt/bin/torchrun", ["train.py"], None), ("python", ["-m", "torch.distributed.run", "train.py"], None),
        ("python", ["-u", "-m", "torch.distributed.launch", "x.py"], None), ("env", ["/bin/torchrun", "x.py"], None),
    ],
)  # fmt: skip
def test_the_rank_of_a_launcher_is_not_that_of_whom_it_starts(
    command: str, arguments: list[str], expected: int | None, tmp_path: Path
) -> None:
    """Kubeflow gives each node a ``RANK``, Slurm a number, and torchrun its processes other ones."""
    tables = Tables()
    _process(tables, 7)
    told = [("COMMAND", command), ("ENVIRONMENT_VARIABLE", 'RANK="1"'), ("ENVIRONMENT_VARIABLE", 'WORLD_SIZE="2"')]
    for name, value in [*told, *((f"ARGUMENT_{n}", argument) for n, argument in enumerate(arguments))]:
        tables.add("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=value)
    (process,) = capture_of(tables.write(tmp_path / "x.sqlite")).processes.values()
    assert process.rank == expected


def _joins(tables: Tables, pid: int, *joined: tuple[int, int, int]) -> None:
    """A process that joins communicators, each with its id, size and the place in it, as registered JSON."""
    process = _process(tables, pid)
    tables.add(NVTX, start=0, eventType=75, text="NCCL", globalTid=process | pid, domainId=NCCL_DOMAIN)
    for name, size, place in joined:
        told = json.dumps({"NCCL communicator ID": name, "No. of ranks": size, "Rank": place})
        tables.add(NVTX, start=1, end=2, eventType=NESTED, textId=tables.text("ncclCommInitRankConfig"),
                   globalTid=process | pid, domainId=NCCL_DOMAIN, jsonTextId=tables.text(told))  # fmt: skip


_WITH_JSON_ID = {
    NVTX: "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, jsonText TEXT, jsonTextId INTEGER, binaryData TEXT"
}


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        # The whole job, joined twice, and pipelines of two.
        ([[(1, 4, n), (2, 4, n), (3 + n % 2, 2, n // 2)] for n in range(4)], [0, 1, 2, 3]),
        # Two pipelines of two, and nothing that holds all: who is in which is not told.
        ([[(3 + n % 2, 2, n // 2)] for n in range(4)], [None] * 4),
        # A pipeline and its tensor-parallel group, of the same size: one process has two places.
        ([[(5, 2, 0), (6, 2, 1)], [(5, 2, 1)]], [None] * 2),
        # Before NCCL 2.25 none has a name.
        ([[(0, 2, n // 2)] for n in range(4)], [None] * 4), ([[(0, 2, n)] for n in range(2)], [0, 1]),
    ],
)  # fmt: skip
def test_only_a_communicator_of_all_tells_ranks(
    joined: list[list[tuple[int, int, int]]], expected: list[int | None], tmp_path: Path
) -> None:
    tables = Tables()
    for pid, of_process in enumerate(joined, 10):
        _joins(tables, pid, *of_process)
    tables.write(tmp_path / "x.sqlite", _WITH_JSON_ID)
    sources = discover([tmp_path], keep_conflicts=True).sources
    assert [item.identity.rank for item in sources] == expected


def test_a_communicator_that_the_environment_contradicts_is_not_the_job(tmp_path: Path) -> None:
    """Ranks 4 and 5 of more, which have joined a communicator of two."""
    for place, rank in enumerate((4, 5)):
        tables = Tables()
        _joins(tables, 7, (1, 2, place))
        tables.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'RANK="{rank}"')
        tables.write(tmp_path / f"{rank}.sqlite", _WITH_JSON_ID)
    found = discover([tmp_path])
    assert [(item.identity.rank, item.identity.world_size) for item in found.sources] == [(4, None), (5, None)]
    assert {group.ranks for item in found.sources for group in item.identity.groups} == {(4, 5)}


def test_graphs_and_devices_are_counted_by_process(tmp_path: Path) -> None:
    """Of two processes in a file, one launches graphs and the other runs on two devices."""
    tables = Tables()
    first, second = 7 << 24, 8 << 24
    for start in (10, 20, 30):
        tables.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=start + 5, deviceId=0, streamId=7,
                   globalPid=first, graphId=3)  # fmt: skip
    for device in (0, 1):
        tables.add(KERNELS, start=5, end=9, deviceId=device, streamId=7, correlationId=device, globalPid=second)
    path = tables.write(tmp_path / "x.sqlite")
    options = IngestOptions(ranks={"x.sqlite:7": 0, "x.sqlite:8": 1})
    of_first, of_second = ingest([path], tmp_path / "x.run", options=options).manifest["sources"]
    assert of_first["unread"] == {"CUDA graphs whose kernels are hidden": 3}
    assert of_second["unread"] == {}
    assert "3 launches" in str(of_first["notes"])
    assert "3 launches" not in str(of_second["notes"])
    assert "2 devices" in str(of_second["notes"])
    assert "2 devices" not in str(of_first["notes"])


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (9, "<q", 2**40), (10, "<Q", 2**40), (11, "<b", 7), (12, "<B", 200), (13, "<h", 300), (14, "<H", 40_000),
        (15, "<i", 70_000), (16, "<I", 70_000), (17, "<q", 2**40), (18, "<Q", 2**40), (22, "<Q", 2**40),
        (3, "<h", 300), (4, "<H", 40_000), (5, "<i", 70_000), (6, "<I", 70_000), (7, "<q", 2**40), (8, "<Q", 2**40),
    ],
)  # fmt: skip
def test_entries_of_payloads_are_as_wide_as_their_types(kind: int, layout: str, value: int, tmp_path: Path) -> None:
    """NVTX_PAYLOAD_ENTRY_TYPE_* of nvToolsExtPayload.h: long long are 9 and 10, those of stated widths 11 to 18."""
    tables = Tables()
    tables.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=9, idx=0, type=kind, name="Message size [bytes]")
    with opened(tables.write(tmp_path / "x.sqlite")) as stored:
        payloads = Payloads(stored)
    body = struct.pack(layout, value) + b"\xff" * 8
    assert payloads.decoded(struct.pack("<4Q", 1, 9, len(body), 0) + body, None).size_bytes == value


def _calls(label: str, calls: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> list[tuple[Any, ...]]:
    """Rows of communication of a process that joined one of two, with calls inside an annotation."""
    tables = Tables()
    _joins(tables, 7, (1, 2, 0))
    common: dict[str, Any] = {"eventType": NESTED, "globalTid": 7 << 24 | 7}
    tables.add(NVTX, start=10, end=90, text=label, domainId=0, **common)
    for number, (name, told) in enumerate(calls):
        tables.add(NVTX, start=20 + number, end=20 + number, textId=tables.text(name), domainId=NCCL_DOMAIN,
                   jsonText=json.dumps({"NCCL communicator ID": 1, **told}), **common)  # fmt: skip
    run = ingest([tables.write(tmp_path / "rank0.sqlite", _WITH_JSON_ID)], tmp_path / "x.run")
    return run.rows("SELECT operation, payload_bytes FROM comms WHERE start_ns IS NULL ORDER BY position")


@pytest.mark.parametrize(
    ("label", "calls", "expected"),
    [
        # In all 24 sent and 40 received: the larger, as torch.profiler counts what an operation takes and gives.
        ("all_to_all", [("Send", 8), ("Recv", 10), ("Send", 16), ("Recv", 30)], [("all_to_all", 40)]),
        ("all_to_all", [("Send", 8), ("Recv", 10), ("Send", None), ("Recv", 30)], [("all_to_all", None)]),
        ("allreduce_coalesced", [("AllReduce", 8), ("AllReduce", 4)], [("allreduce", 12)]),
        # The root's own part is no message.
        ("gather", [("Recv", 8)], [("gather", None)]),
        # Its count is that of one rank, for each of two.
        ("all_to_all", [("AlltoAll", 8)], [("alltoall", 16)]),
        ("coalesced", [("Send", 8), ("Recv", 10)], [("send", 8), ("recv", 10)]),
    ],
)  # fmt: skip
def test_a_collective_made_of_calls_moves_what_all_of_them_do(
    label: str, calls: list[tuple[str, int | None]], expected: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    told = [(f"nccl{name}", {} if size is None else {"Message size [bytes]": size}) for name, size in calls]
    assert _calls(f"nccl:{label}", told, tmp_path) == expected
