"""Databases as Ascend profilers write them, made by the standard library alone for tests to read."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections import defaultdict
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "ASCEND_PROFILER_OUTPUT"
MESSAGE = 8_388_608
ALONE = 2**32 - 1
PID = 4242
COMMUNICATION_STREAM = 17

# 1F1B of the committed sample by hand, as in the tests of its text files.
ORDERS = {
    0: "s1|s1|s1|s1 r1|r1|r1|r1",
    1: "r0|s2|r0|s2|r0|s2 r2|s0 r0|s2 r2|s0|r2|s0|r2|s0",
    2: "r1|s3|r1|s3 r3|s1 r1|s3 r3|s1 r1|s3 r3|s1|r3|s1",
    3: "r2|s2 r2|s2 r2|s2 r2|s2",
}

# Column types as in real captures of January 2025.
SCHEMA = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "META_DATA": "name TEXT, value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "NPU_INFO": "id INTEGER, name TEXT",
    "SESSION_TIME_INFO": "startTimeNs INTEGER, endTimeNs INTEGER",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
    "globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, taskType INTEGER, opType INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER, "
    "opId INTEGER PRIMARY KEY, opType INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER, "
    "groupName INTEGER, rdmaType INTEGER, srcRank INTEGER, dstRank INTEGER, transportType INTEGER, size INTEGER, "
    "linkType INTEGER, opId INTEGER",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, "
    "connectionId INTEGER PRIMARY KEY, name INTEGER",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, "
    "sequenceNumber INTEGER, type INTEGER",
    "MSTX_EVENTS": "startNs INTEGER, endNs INTEGER, eventType INTEGER, message INTEGER, globalTid INTEGER",
    "MEMCPY_INFO": "globalTaskId INTEGER, size NUMERIC, memcpyOperation INTEGER",
    "ENUM_MEMCPY_OPERATION": "id INTEGER PRIMARY KEY, name TEXT",
    "ENUM_HCCL_TRANSPORT_TYPE": "id INTEGER PRIMARY KEY, name TEXT",
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "OP_MEMORY": "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, activeReleaseTime INTEGER, "
    "allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, releaseTotalAllocated INTEGER, "
    "releaseTotalReserved INTEGER, deviceId INTEGER",
    "NPU_MEM": "type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER, deviceId INTEGER",
    "StepTraceTime": "deviceId INTEGER, step TEXT, computing NUMERIC, bubble NUMERIC",
}


class Capture:
    """Rows to be written as a database."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._ids: dict[str, int] = {}

    def text(self, value: str) -> int:
        """The id of a string."""
        if value not in self._ids:
            self._ids[value] = 2**28 + len(self._ids)
            self.add("STRING_IDS", id=self._ids[value], value=value)
        return self._ids[value]

    def add(self, table: str, **columns: Any) -> None:
        """Add a row."""
        self.rows[table].append(columns)

    def kernel(
        self, name: str, kind: str, start: int, end: int, *, device: int = 0, stream: int = 2, connection: int = ALONE
    ) -> None:
        """Add a compute task."""
        task = len(self.rows["TASK"])
        core = self.text("KERNEL_AICORE")
        self.add(
            "TASK", startNs=start, endNs=end, deviceId=device, connectionId=connection, globalTaskId=task,
            taskType=core, streamId=stream,
        )  # fmt: skip
        self.add("COMPUTE_TASK_INFO", name=self.text(name), globalTaskId=task, taskType=core, opType=self.text(kind))

    def launch(self, start: int, connection: int, name: str = "launch", thread: int = 7) -> None:
        """Add what launches the tasks of a connection."""
        self.add(
            "CANN_API", startNs=start, endNs=start + 5, type=10000, globalTid=PID << 32 | thread,
            connectionId=connection, name=self.text(name),
        )  # fmt: skip

    def write(self, path: Path, schema: dict[str, str] | None = None) -> Path:
        """Write the tables that have rows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        with connection:
            for table, rows in self.rows.items():
                connection.execute(f'CREATE TABLE "{table}" ({(schema or {}).get(table, SCHEMA[table])})')
                for row in rows:
                    names, marks = ", ".join(f'"{n}"' for n in row), ", ".join("?" * len(row))
                    connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', list(row.values()))
        connection.close()
        return path


def ns(microseconds: str) -> int:
    """Microseconds of a CSV file in ns."""
    return int(Decimal(microseconds.strip()) * 1000)


def hash_of(communicator: str) -> str:
    """msprof-analyze's ``double_hash``: two polynomials over the bytes, of 29 and of 131, written out as sums."""
    text = communicator.encode()
    high, low = (sum(b * base ** (len(text) - 1 - i) for i, b in enumerate(text)) % 2**32 for base in (29, 131))
    return str(high * 2**32 + low)


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The records of a CSV file."""
    with (folder / OUTPUT / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def of_text(folder: Path, rank: int, order: str) -> Capture:
    """The database of a rank of the committed sample, from its text files.

    Args:
        folder: The rank's folder.
        rank: The rank.
        order: Its point-to-point operations as the tests write them: ``s1 r1|s1`` is a batch of a send and a
            receive, then one of a send.
    """
    capture = Capture()
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    for name, value in metadata.items():
        capture.add("META_DATA", name=name, value=json.dumps(value))
    records = table(folder, "kernel_details.csv")
    device = int(records[0]["Device_id"])
    capture.add("RANK_DEVICE_MAP", rankId=rank, deviceId=device)
    capture.add("HOST_INFO", hostUid="1", hostName="node7")
    capture.add("NPU_INFO", id=device, name="Ascend910B")
    first = min(ns(r["Start Time(us)"]) for r in records)
    last = max(ns(r["Start Time(us)"]) + ns(r["Duration(us)"]) for r in records)
    capture.add("SESSION_TIME_INFO", startTimeNs=first - 10**6, endTimeNs=last + 10**6)
    # The host runs ahead of the device: its mark ends long before the device does.
    capture.add("STEP_TIME", id=7, startNs=first - 5000, endNs=first + 10 * len(records))
    _add_operations(capture, records, device, order, metadata["parallel_group_info"], folder)
    for r in table(folder, "memory_record.csv"):
        sizes = [_bytes(r[f"Total {what}(MB)"]) for what in ("Allocated", "Reserved")]
        if r["Component"] == "APP":
            app = capture.text("app")
            capture.add("NPU_MEM", type=app, ddr=0, hbm=sizes[1], timestampNs=ns(r["Timestamp(us)"]), deviceId=device)
        else:
            capture.add(
                "MEMORY_RECORD", component=capture.text(r["Component"]), timestamp=ns(r["Timestamp(us)"]),
                totalAllocated=sizes[0], totalReserved=sizes[1], deviceId=device,
            )  # fmt: skip
    return capture


def add_host_side(capture: Capture) -> None:
    """Launch every operation just before it runs, gradient kernels inside nodes of autograd on the same thread.

    So it is where torch_npu's task queue is off.
    """
    kinds = {c["globalTaskId"]: c["opType"] for c in capture.rows["COMPUTE_TASK_INFO"]}
    texts = {row["id"]: row["value"] for row in capture.rows["STRING_IDS"]}
    capture.rows["CANN_API"].clear()
    node, batch = capture.text("autograd::engine::evaluate_function: X"), 0
    launched: set[int] = set()
    for task in capture.rows["TASK"]:
        if task["connectionId"] in launched:
            continue
        launched.add(task["connectionId"])
        start = task["startNs"] - 10
        capture.launch(start, task["connectionId"])
        kind = texts.get(kinds.get(task["globalTaskId"], -1), "")
        batch += not kind
        if "Grad" in kind:
            capture.add(
                "PYTORCH_API", startNs=str(start - 5), endNs=str(start + 8), globalTid=PID << 32 | 7, name=node,
                sequenceNumber=batch, type=50001,
            )  # fmt: skip


def _add_operations(
    capture: Capture, records: list[dict[str, str]], device: int, order: str, groups: dict[str, Any], folder: Path
) -> None:
    listed = json.loads((folder / OUTPUT / "communication.json").read_text())["step7"]
    hashes = dict(key.split("@") for kind in listed.values() for key in kind if not key.startswith("Total"))
    names = {hash_of(name): name for name in groups}
    batches = iter(order.split("|"))
    host = min(ns(r["Start Time(us)"]) for r in records) - 5000
    for number, r in enumerate(records):
        start, end = ns(r["Start Time(us)"]), ns(r["Start Time(us)"]) + ns(r["Duration(us)"])
        capture.launch(host + 10 * number, number)
        if not r["Name"].startswith("hcom_"):
            stream = int(r["Stream ID"])
            capture.kernel(r["Name"], r["Type"], start, end, device=device, stream=stream, connection=number)
            continue
        group = names[hashes[r["Name"]]]
        capture.add(
            "COMMUNICATION_OP", opName=capture.text(r["Name"]), startNs=start, endNs=end, connectionId=number,
            groupName=capture.text(group), opId=number, opType=capture.text(r["Type"]),
        )  # fmt: skip
        own = groups[group]["group_rank"]
        moves = []
        if "batchSendRecv" in r["Name"]:
            batch = [(move[0], int(move[1:])) for move in next(batches).split()]
            peers = {groups[group]["global_ranks"].index(peer) for _, peer in batch}
            moves = [("Notify_Record", peer, 2, 65535, 0) for peer in sorted(peers)]
            for way, peer in batch:
                local = groups[group]["global_ranks"].index(peer)
                moves += [("Memcpy", local, 0, 1, MESSAGE)] if way == "r" else []
                moves.append(("Memcpy", own, 0, 0, MESSAGE))
        else:
            # As communication.json has it: all of its bytes over HCCS.
            info = listed["collective"][f"{r['Name']}@{hashes[r['Name']]}"]["Communication Bandwidth Info"]
            size = int(Decimal(str(info["HCCS"]["Transit Size(MB)"])) * 10**6)
            moves = [("Reduce_Inline", 0 if own else 1, 0, 1, size)]
        moves += [("Reduce_Inline", ALONE, 0, 0, 4)] * 2
        for kind, peer, transport, link, size in moves:
            task = len(capture.rows["TASK"])
            capture.add(
                "TASK", startNs=start, endNs=end, deviceId=device, connectionId=number, globalTaskId=task,
                taskType=capture.text("SDMA"), streamId=COMMUNICATION_STREAM,
            )  # fmt: skip
            capture.add(
                "COMMUNICATION_TASK_INFO", name=capture.text(r["Name"]), globalTaskId=task,
                taskType=capture.text(kind), planeId=0, groupName=capture.text(group), rdmaType=65535, srcRank=own,
                dstRank=peer, transportType=transport, size=size, linkType=link, opId=number,
            )  # fmt: skip


def _bytes(megabytes: str) -> int | None:
    return int(Decimal(megabytes) * 2**20) if megabytes else None


def simple(kernels: int = 3, *, rank: int = 0, start: int = 1_700_000_000_000_000_000) -> Capture:
    """A small capture: so many kernels of 500 ns, 1000 ns apart, each launched 300 ns before it starts."""
    capture = Capture()
    capture.add("RANK_DEVICE_MAP", rankId=rank, deviceId=0)
    for number, at in zip(range(kernels), count(start, 1000), strict=False):
        capture.kernel(f"kernel{number}", "MatMulV3", at, at + 500, connection=number)
        capture.launch(at - 300, number)
    return capture
