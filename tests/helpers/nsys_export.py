"""Exports as Nsight Systems would write them of jobs that torch.profiler recorded: nothing of the product in it.

Kernels, copies, launches and their times are taken over digit by digit; ops and annotations become NVTX ranges as
``emit_nvtx`` names them, host records of communication the ranges that NCCL makes. Tables and columns are those of the
format's reference (2026.2; ``old`` has the names of 2022.2).
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NCCL_DOMAIN = 1
NESTED, CREATED = 59, 75
SECRET = "hunter2-and-nothing-else"  # noqa: S105 - planted, to see whether it gets out
_FIRST_PID, _VM = 1000, 1
_SCHEMA = 16777216
_MOVING = {"send": "ncclSend", "recv": "ncclRecv"}
_COLLECTIVES = {
    "allreduce": "ncclAllReduce", "barrier": "ncclAllReduce", "allreduce_coalesced": "ncclAllReduce",
    "_allgather_base": "ncclAllGather", "allgather": "ncclAllGather", "_reduce_scatter_base": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
}  # fmt: skip
_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1, "Long": 8, "Int": 4}
COLUMNS = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, "
    "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER, returnValue INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, value INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, jsonText TEXT, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, "
    "offset INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, cuDevice INTEGER, totalMemory INTEGER, smCount INTEGER",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "ANALYSIS_FILE": "id INTEGER, filename TEXT, contentId INTEGER, globalPid INTEGER",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER, globalPid INTEGER, deviceId INTEGER, address INTEGER, "
    "bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT",
}


@dataclass(frozen=True)
class How:
    """How a job is recorded and exported.

    Attributes:
        payloads: NCCL's payloads are exported as blobs, the making of its communicators with them.
        as_json: The same as text.
        names_communicators: As NCCL from 2.25 on does.
        nvtx: all, nccl (its ranges alone), or none.
        labels: Pipeline actions are labelled, where they were.
        normalized: Times count from 1970.
        together: All ranks in one file.
        names: ``{rank}`` in it is replaced.
    """

    payloads: bool = True
    as_json: bool = False
    names_communicators: bool = True
    nvtx: str = "all"
    labels: bool = True
    normalized: bool = False
    together: bool = False
    names: str = "profile_rank{rank}"


def export(traces: Path, folder: Path, how: How | None = None) -> list[Path]:
    """Write the exports of a folder of Kineto traces; returns the files in order."""
    how = how or How()
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [Rank(_read(path), how) for path in sorted(traces.glob("*.json*")) if "measured" not in path.name]
    ranks.sort(key=lambda rank: rank.rank)
    epoch = min(rank.first_ns for rank in ranks) - 1_000_000
    if how.together:
        return [_write(folder / "report.sqlite", ranks, epoch, how)]
    return [_write(folder / f"{how.names.format(rank=rank.rank)}.sqlite", [rank], epoch, how) for rank in ranks]


def _read(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    loaded: dict[str, Any] = json.loads(text, parse_float=str)
    return loaded


def _ns(microseconds: str | int) -> int:
    """Digit by digit."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, _, rest = microseconds.partition(".")
    return int(whole) * 1000 + int(f"{rest}000"[:3])


class Tables:
    """Rows to be written, by table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._ids: dict[str, int] = {}

    def text(self, value: str) -> int:
        """The id of a registered string."""
        if value not in self._ids:
            self._ids[value] = len(self._ids) + 1
            self.add("StringIds", id=self._ids[value], value=value)
        return self._ids[value]

    def add(self, table: str, **columns: Any) -> None:
        """Add a row."""
        self.rows[table].append(columns)

    def write(self, path: Path, columns: dict[str, str] | None = None) -> Path:
        """Write them, each table in order of time as nsys does; without rows a table is not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        with connection:
            for table, rows in self.rows.items():
                declared = (columns or {}).get(table) or COLUMNS[table]
                connection.execute(f'CREATE TABLE "{table}" ({declared})')
                names = [part.split()[0] for part in declared.split(", ")]
                marks = ", ".join("?" * len(names))
                ordered = sorted(rows, key=lambda row: row["start"]) if "start" in names else rows
                connection.executemany(
                    f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(n) for n in names] for row in ordered]
                )
        connection.close()
        return path


class Rank:
    """One rank's trace, its events in ns since 1970."""

    def __init__(self, trace: dict[str, Any], how: How) -> None:
        info = trace["distributedInfo"]
        self.rank: int = info["rank"]
        self.world: int = info["world_size"]
        self.groups = {g["pg_name"]: g["ranks"] for g in info["pg_config"] if isinstance(g["ranks"], list)}
        self.devices = trace["deviceProperties"]
        self.base: int = trace["baseTimeNanoseconds"]
        self.how = how
        self._spans: dict[str, list[tuple[int, dict[str, Any], int, int]]] = defaultdict(list)
        for number, event in enumerate(trace["traceEvents"]):
            if event.get("ph") == "X" and "dur" in event:
                start = self.base + _ns(event["ts"])
                self._spans[event.get("cat")].append((number, event, start, start + _ns(event["dur"])))
        self.first_ns = min(start for _, start, _ in self.of("kernel", "cuda_runtime", "cpu_op"))
        self.pid: int = _FIRST_PID + self.rank
        self._threads: dict[Any, int] = {}

    def of(self, *categories: str) -> Iterator[tuple[dict[str, Any], int, int]]:
        """Events of categories in order of the file, with when they start and end."""
        for _, event, start, end in merge(*(self._spans[category] for category in categories), key=itemgetter(0)):
            yield event, start, end

    @property
    def process(self) -> int:
        """Its ``globalPid``."""
        return (_VM << 48) + (self.pid << 24)

    def thread(self, tid: Any) -> int:
        """A ``globalTid``."""
        number: int = self._threads.setdefault(tid, self.pid + len(self._threads))
        return self.process | number


def communicator(name: str, ranks: Sequence[int]) -> int:
    """An id that all members share, as NCCL's hash."""
    return (hash((len(name), name, *ranks)) & 0x7FFF_FFFF_FFFF) << 16 | 0x8000_0000_0000_0001


def _write(path: Path, ranks: Sequence[Rank], epoch: int, how: How) -> Path:
    tables = Tables()
    zero = 0 if how.normalized else epoch
    for rank in ranks:
        _device(tables, rank, zero, device=rank.rank if how.together else 0)
        if how.nvtx == "all":
            _ranges(tables, rank, zero)
        if how.nvtx != "none":
            _nccl(tables, rank, zero)
    tables.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=epoch, utcTime="")
    tables.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.25.0")
    tables.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value=str(how.normalized).lower())
    tables.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node0")
    tables.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=f"API_KEY={SECRET};RANK=77")
    for number, device in enumerate(ranks[0].devices):
        tables.add(
            "TARGET_INFO_GPU", id=number, name=device["name"], cuDevice=number, totalMemory=device["totalGlobalMem"],
            smCount=device["numSms"],
        )  # fmt: skip
    command = "torchrun" if how.together else "/usr/bin/python3"
    tables.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value=command)
    tables.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_0", value=f"--token={SECRET}")
    variables = {"API_KEY": SECRET, "PATH": "/usr/bin", "NOT_A_RANK": "5"}
    if not how.together:
        variables |= {"RANK": str(ranks[0].rank), "WORLD_SIZE": str(ranks[0].world)}
    for name, value in variables.items():
        tables.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')
    printed = tables.text(f"loading with API_KEY={SECRET}\n")
    tables.add("ANALYSIS_FILE", id=1, filename="stdout.log", contentId=printed, globalPid=ranks[0].process)
    return tables.write(path)


def _device(tables: Tables, rank: Rank, zero: int, device: int) -> None:
    for event, start, end in rank.of("kernel"):
        args = event["args"]
        x, y, z = args["grid"]
        tables.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start - zero, end=end - zero, deviceId=device, contextId=1,
            streamId=args["stream"], correlationId=args["correlation"], globalPid=rank.process,
            demangledName=tables.text(event["name"]), shortName=tables.text(event["name"].split("<")[0].split("(")[0]),
            gridX=x, gridY=y, gridZ=z, blockX=1, blockY=1, blockZ=1,
        )  # fmt: skip
    for category, table in (("gpu_memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY"), ("gpu_memset", "CUPTI_ACTIVITY_KIND_MEMSET")):
        for event, start, end in rank.of(category):
            args = event["args"]
            tables.add(
                table, start=start - zero, end=end - zero, deviceId=device, streamId=args["stream"],
                correlationId=args["correlation"], globalPid=rank.process, bytes=args["bytes"], copyKind=8,
            )  # fmt: skip
    for event, start, end in rank.of("cuda_runtime", "cuda_driver"):
        tables.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start - zero, end=end - zero,
            eventClass=int(event["cat"] == "cuda_driver"), globalTid=rank.thread(event["tid"]),
            correlationId=event["args"].get("correlation"), nameId=tables.text(f"{event['name']}_v11060"),
            returnValue=0,
        )  # fmt: skip


def _ranges(tables: Tables, rank: Rank, zero: int) -> None:
    for number, (event, start, end) in enumerate(rank.of("cpu_op", "user_annotation")):
        name = event["name"]
        if name.startswith("ProfilerStep#") or (name.startswith("PP:") and not rank.how.labels):
            continue  # torch.profiler's own, which nsys has not
        sequence = event["args"].get("Sequence number") if event["cat"] == "cpu_op" else None
        text = name + (f", seq = {sequence}" if sequence is not None else "") + f", op_id = {number}"
        tables.add(
            "NVTX_EVENTS", start=start - zero, end=end - zero, eventType=NESTED, text=text,
            globalTid=rank.thread(event["tid"]), domainId=0,
        )  # fmt: skip


def _nccl(tables: Tables, rank: Rank, zero: int) -> None:
    """NCCL's ranges: one per operation, and the end of the group that launches the kernel of those before it."""
    main = rank.thread("main")
    tables.add("NVTX_EVENTS", start=rank.first_ns - zero - 900_000, eventType=CREATED, text="NCCL", globalTid=main,
               domainId=NCCL_DOMAIN)  # fmt: skip
    if rank.how.payloads:
        _schemas(tables, rank.how)
        for number, (name, ranks) in enumerate(rank.groups.items()):
            joined = _packed(11, "<Qiii4x", communicator(name, ranks), len(ranks), ranks.index(rank.rank), 0)
            if not rank.how.names_communicators:
                joined = _packed(0, "<iii4x", ranks.index(rank.rank), len(ranks), 0)
            at = rank.first_ns - zero - 800_000 + 1000 * number
            _call(tables, rank, "ncclCommInitRankConfig", (at, at + 500), main, joined)
    launches = {
        event["args"]["correlation"]: (start, end, event["tid"])
        for event, start, end in rank.of("cuda_runtime", "cuda_driver")
        if "correlation" in event["args"]
    }
    launched = sorted(
        launches[event["args"]["correlation"]] for event, _, _ in rank.of("kernel") if event["name"].startswith("nccl")
    )
    for start, end, tid in launched:
        _call(tables, rank, "ncclGroupEnd", (start - zero - 200, end - zero + 200), rank.thread(tid), None)
    for event, start, end in rank.of("cpu_op"):
        args = event["args"]
        name = args.get("Collective name") if event["name"] == "record_param_comms" else None
        function = _MOVING.get(name or "") or _COLLECTIVES.get(name or "")
        if function is None:
            continue
        thread = rank.thread(event["tid"])
        # An operation that is launched at once is called right before, inside c10d's annotation; one of a batch as soon
        # as c10d hands it over.
        inside = launched[bisect_left(launched, (start,)) : bisect_left(launched, (end,))]
        own = next((at for at, _, tid in inside if tid == event["tid"]), None)
        at = start + min(3000, (end - start) // 4) if own is None else own - 1000
        moment = (at - zero, at - zero + 500)
        payload = _payload(rank, function, args) if rank.how.payloads else None
        _call(tables, rank, function, moment, thread, payload)


def _payload(rank: Rank, function: str, args: dict[str, Any]) -> tuple[int, bytes]:
    name = args["Process Group Name"]
    identifier = communicator(name, rank.groups[name])
    size = max(args["In msg nelems"], args["Out msg nelems"]) * _BYTES[args["dtype"]]
    schema, last = 5, 0
    if function in _MOVING.values():
        schema = 9 if function == "ncclSend" else 10
        last = rank.groups[name].index(args["Dst Rank" if function == "ncclSend" else "Src Rank"])
    if not rank.how.names_communicators:
        return _packed(schema, "<Qi4x", size, last)
    return _packed(schema, "<QQi4x", identifier, size, last)


def _packed(schema: int, layout: str, *values: int) -> tuple[int, bytes]:
    body = struct.pack(layout, *values)
    return schema, struct.pack("<4Q", NCCL_DOMAIN, _SCHEMA + schema, len(body), 0) + body


_ENTRIES = {
    5: (("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Reduction operation", 5, 16)),
    9: (("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)),
    10: (("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)),
    11: (
        ("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16),
    ),
}  # fmt: skip


_OLD_ENTRIES = {
    0: (("Rank", 5, None), ("No. of ranks", 5, 4), ("CUDA device", 5, 8)),
    5: (("Message size [bytes]", 18, None), ("Reduction operation", 5, 8)),
    9: (("Bytes", 18, None), ("Peer rank", 5, 8)),
    10: (("Bytes", 18, None), ("Peer rank", 5, 8)),
}
"""As of NCCL 2.16."""


def _schemas(tables: Tables, how: How) -> None:
    for schema, entries in (_ENTRIES if how.names_communicators else _OLD_ENTRIES).items():
        for number, (name, kind, offset) in enumerate(entries):
            tables.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=NCCL_DOMAIN, schemaId=_SCHEMA + schema, idx=number, type=kind,
                name=name, offset=offset,
            )  # fmt: skip


def _call(
    tables: Tables, rank: Rank, name: str, span: tuple[int, int], thread: int, payload: tuple[int, bytes] | None
) -> None:
    attached: dict[str, Any] = {}
    if payload is not None and rank.how.as_json:
        layout = {kind: "<q" if kind in (18, 22) else "<i" for kind in (5, 18, 22)}
        body = payload[1][32:]
        values = {n: struct.unpack_from(layout[k], body, o or 0)[0] for n, k, o in _ENTRIES[payload[0]]}
        attached["jsonText"] = json.dumps(values)
    elif payload is not None:
        attached["binaryData"] = payload[1]
    tables.add(
        "NVTX_EVENTS", start=span[0], end=span[1], eventType=NESTED, textId=tables.text(name), globalTid=thread,
        domainId=NCCL_DOMAIN, **attached,
    )  # fmt: skip
