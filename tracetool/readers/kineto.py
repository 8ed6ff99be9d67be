"""Kineto Chrome JSON, as torch.profiler exports it: one file per rank, plain or gzip."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracetool.readers import Finding, Group, Identity, Source, SourceReport, rows_table
from tracetool.readers.chrome_json import Event, envelope, event_chunks, open_trace, to_ns
from tracetool.readers.kineto_comms import (
    CommKernel,
    CommRecord,
    attach_kernels,
    is_communication_kernel,
    parse_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

_CATEGORY = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cuda_runtime": "launch", "cuda_driver": "launch", "Runtime": "launch", "xpu_runtime": "launch",
    "privateuse1_runtime": "launch", "privateuse1_driver": "launch",
    "cpu_op": "op", "Operator": "op",
    "user_annotation": "annotation",
}  # fmt: skip
_DEVICE = ("kernel", "memcpy", "memset")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")


class KinetoReader:
    """Reads Kineto traces; see :class:`tracetool.readers.Reader`."""

    name = "kineto"

    def find(self, files: Sequence[Path]) -> Finding:
        """Each file that opens like a trace object is one source."""
        return Finding([Source(self.name, file, (file,)) for file in files if _opens_like_a_trace(file)])

    def identify(self, source: Source) -> Identity:
        """Rank, groups and device from the text around the events."""
        found = envelope(source.path)
        info = found.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = info.get("rank")
        devices = found.get("deviceProperties")
        device = devices[0] if isinstance(devices, list) and devices else {}
        return Identity(
            rank=rank if isinstance(rank, int) else None,
            world_size=int(info.get("world_size") or 1),
            groups=tuple(_groups(info)),
            host=found.get("host_name"),
            device_name=device.get("name"),
            sm_count=device.get("numSms"),
            hbm_bytes=device.get("totalGlobalMem"),
            base_ns=int(found.get("baseTimeNanoseconds") or 0),
        )

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Events as they stream by; steps, communication and memory at the end."""
        rows = _Rows(rank, identity, report)
        for events in event_chunks(source.path, advance):
            report.rows += len(events)
            rows.take(events)
            yield "events", rows_table("events", rows.events)
            rows.events = []
        yield "steps", rows_table("steps", rows.steps)
        yield "memory", rows_table("memory", rows.own_memory())
        yield "comms", rows_table("comms", rows.comms())


READER = KinetoReader()


def _opens_like_a_trace(file: Path) -> bool:
    try:
        with open_trace(file) as stream:
            head = stream.read(1 << 16)
    except (OSError, EOFError):
        return False
    return head.lstrip()[:1] == b"{" and (b'"traceEvents"' in head or b'"schemaVersion"' in head)


def _groups(info: dict[str, Any]) -> Iterator[Group]:
    for entry in info.get("pg_config") or ():
        ranks = entry.get("ranks")
        if isinstance(ranks, str):  # the on-demand form quotes the list
            ranks = [int(r) for r in re.findall(r"\d+", ranks)]
        yield Group(str(entry.get("pg_name")), str(entry.get("pg_desc", "")), tuple(ranks or ()))


class _Rows:
    """Turns events into rows of a Run's tables."""

    def __init__(self, rank: int, identity: Identity, report: SourceReport) -> None:
        self.rank = rank
        self.events: list[tuple[object, ...]] = []
        self.steps: list[tuple[object, ...]] = []
        self.memory: list[tuple[Any, ...]] = []
        self._identity = identity
        self._report = report
        self._count = 0
        self._memory_devices: list[int | None] = []
        self._devices: Counter[int] = Counter()
        self._records: list[CommRecord] = []
        self._launches: dict[int, tuple[int, int]] = {}
        self._kernels: list[tuple[int, int, int | None, int | None, int | None]] = []

    def take(self, events: list[Event]) -> None:
        for event in events:
            if event.ph == "X":
                category = _CATEGORY.get(event.cat or "")
                if category is None:
                    self._report.skipped[event.cat or "no category"] += 1
                else:
                    self._span(event, category)
            elif event.ph == "i" and event.name == "[memory]":
                self._memory(event)
            else:
                self._report.skipped[f"ph {event.ph}"] += 1

    def _time(self, event: Event) -> tuple[int, int] | None:
        try:
            relative = to_ns(bytes(event.ts))
            duration = to_ns(bytes(event.dur)) if bytes(event.dur) else 0
        except ValueError:
            self._report.dropped["time is no number"] += 1
            return None
        if relative == 0 and self._identity.base_ns == 0:
            self._report.dropped["time is zero"] += 1
            return None
        if duration < 0:
            self._report.repaired["negative duration set to 0"] += 1
            duration = 0
        return self._identity.base_ns + relative, duration

    def _span(self, event: Event, category: str) -> None:
        time = self._time(event)
        if time is None:
            return
        start, duration = time
        args = event.args or {}
        name = str(event.name)
        correlation = _integer(args.get("correlation"))
        external = _integer(args.get("External id"))
        thread = stream = None
        if category in _DEVICE:
            stream = _integer(args.get("stream"))
            stream = _integer(event.tid) if stream is None else stream
            device = _integer(args.get("device"))
            if device is not None:
                self._devices[device] += 1
            if is_communication_kernel(name):
                self._kernels.append((start, start + duration, stream, external, correlation))
        else:
            thread = _integer(event.tid)
            if category == "launch" and correlation is not None and thread is not None:
                self._launches[correlation] = (start, thread)
            elif category == "op" and name == "record_param_comms":
                record = parse_record(args, start, thread or 0, self._identity.groups)
                if record is not None:
                    self._records.append(record)
            elif category == "annotation" and (match := _STEP.match(name)):
                self.steps.append((self.rank, int(match[1]), start, start + duration, None, None))
        self.events.append(
            (
                self._count, self.rank, category, name, start, duration, thread, stream, correlation,
                external, _integer(args.get("Sequence number")), None, None, None, None,
            )
        )  # fmt: skip
        self._count += 1

    def _memory(self, event: Event) -> None:
        args = event.args or {}
        if args.get("Device Type") != 1:
            self._report.skipped["host memory"] += 1
            return
        time = self._time(event)
        if time is not None:
            total, reserved = (_integer(args.get(k)) for k in ("Total Allocated", "Total Reserved"))
            self._memory_devices.append(_integer(args.get("Device Id")))
            self.memory.append((self.rank, "torch", time[0], _integer(args.get("Bytes")), total, reserved))

    def own_memory(self) -> list[tuple[Any, ...]]:
        """Allocator records in order of time, of the device that most kernels ran on (if the trace says)."""
        device = self._devices.most_common(1)[0][0] if self._devices else None
        named = list(zip(self._memory_devices, self.memory, strict=True))
        own = [row for where, row in named if device is None or where is None or where == device]
        self._report.skipped["memory of another device"] += len(named) - len(own)
        return sorted(own, key=lambda row: row[2])

    def comms(self) -> list[tuple[object, ...]]:
        """One row per communication operation, in order of posting."""
        kernels = []
        for start, end, stream, external, correlation in self._kernels:
            launch = self._launches.get(correlation) if correlation is not None else None
            if launch is None:
                self._report.dropped["communication kernel without launch"] += 1
                continue
            kernels.append(CommKernel(start, end, stream, external, *launch))
        attach_kernels(self._records, kernels, self._report)
        return [
            (
                self.rank, position, r.operation, r.group, list(r.group_ranks), r.peer, r.payload_bytes,
                r.posted_ns, r.thread, r.batch, r.stream, r.start_ns, r.end_ns,
                "unknown" if r.peer is None and r.operation in ("send", "recv") else "metadata", None,
            )
            for position, r in enumerate(self._records)
        ]  # fmt: skip


def _integer(value: object) -> int | None:
    """An integer as various versions write it: 7, "7", "0x7", "stream 7"."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    if isinstance(value, str):
        text = value.removeprefix("stream ")
        try:
            return int(text, 0)
        except ValueError:
            return None
    return None
