"""Writes CUDA memory snapshots as torch documents them (docs.pytorch.org, torch_cuda_memory), without torch."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Allocator:
    """A caching allocator that keeps the history torch's would.

    Attributes:
        device: Index of the device.
        live: Size of each allocated block by address.
        reserved: Bytes of its segments.
        history: Entries so far.
    """

    device: int = 0
    live: dict[int, int] = field(default_factory=dict)
    reserved: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, action: str, time_us: int, addr: int, size: int, **more: Any) -> None:
        self.history.append(
            {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": [], **more}
        )

    def segment(self, time_us: int, addr: int, size: int) -> None:
        self.reserved += size
        self.note("segment_alloc", time_us, addr, size)

    def release_segment(self, time_us: int, addr: int, size: int) -> None:
        self.reserved -= size
        self.note("segment_free", time_us, addr, size)

    def alloc(self, time_us: int, addr: int, size: int, block: int | None = None) -> None:
        """Asked for are ``size`` bytes; the block that is found has ``block``."""
        self.live[addr] = block or size
        self.note("alloc", time_us, addr, size)

    def free(self, time_us: int, addr: int, size: int, completed_us: int | None = None) -> None:
        self.live.pop(addr, None)
        self.note("free_requested", time_us, addr, size)
        self.note("free_completed", completed_us or time_us, addr, size)

    def snapshot(self, **more: Any) -> dict[str, Any]:
        """The dict that torch would pickle, one segment around everything."""
        blocks = [
            {"address": addr, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
            for addr, size in sorted(self.live.items())
        ]
        allocated = sum(self.live.values())
        segment = {
            "device": self.device, "address": 1, "total_size": self.reserved, "allocated_size": allocated,
            "active_size": allocated, "requested_size": allocated, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks, "frames": [],
        }  # fmt: skip
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)]
        return {
            "segments": [segment],
            "device_traces": [*traces, self.history],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "roundup_power2_divisions": {"1": 0}},
            "external_annotations": [],
            **more,
        }


def dump(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def split_off_memory(trace: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a trimmed Kineto trace (an event a line) without its allocator records, and a snapshot of the same."""
    text = gzip.decompress(trace.read_bytes()).decode()
    content = json.loads(text, parse_float=Decimal)
    kept = [line.removesuffix(",") for line in text.splitlines()[1:-1] if '"[memory]"' not in line]
    lines = [text.splitlines()[0], ",\n".join(kept), text.splitlines()[-1]]
    copy = folder / trace.name
    copy.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    records = [e for e in content["traceEvents"] if e["name"] == "[memory]" and e["args"]["Device Type"] == 1]
    records.sort(key=lambda e: e["ts"])
    first = records[0]["args"]
    allocator = Allocator(device=first["Device Id"], reserved=first["Total Reserved"])
    # What was there before the history began, as one block.
    allocator.live[8] = first["Total Allocated"] - first["Bytes"]
    for record in records:
        size, addr = record["args"]["Bytes"], record["args"]["Addr"]
        time_us = int(record["ts"] * 1000 + content["baseTimeNanoseconds"]) // 1000
        if size > 0:
            allocator.alloc(time_us, addr, size)
        else:
            if addr not in allocator.live:
                allocator.live[8] += size
            allocator.free(time_us, addr, -size)
    assert sum(allocator.live.values()) == records[-1]["args"]["Total Allocated"]
    return copy, allocator.snapshot()
