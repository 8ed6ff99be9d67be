"""A second way to read a Kineto trace: the standard library and Decimal, nothing of the product.

``python tests/independent.py FILE...`` prints one line per file for the table ``golden.tsv``.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import tarfile
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

CATEGORIES = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cuda_runtime": "launch", "cuda_driver": "launch", "Runtime": "launch",
    "cpu_op": "op", "Operator": "op",
    "user_annotation": "annotation",
    "overhead": "overhead",
}  # fmt: skip
COMMUNICATION = re.compile(r"^(nccl|rccl|mscclpp)", re.IGNORECASE)
STEP = re.compile(r"^ProfilerStep#(\d+)$")


class Facts(NamedTuple):
    """What a trace holds: counts, steps, and sums of start and duration in ns."""

    events: int
    kernels: int
    communication_kernels: int
    records: int
    steps: tuple[int, ...]
    first_ns: int
    span_ns: int
    start_sum_ns: int
    duration_sum_ns: int
    memory: int


def texts(path: Path) -> list[bytes]:
    """The traces in a file: one, or one per member of an archive."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    if raw[257:262] != b"ustar":
        return [raw]
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        found = [archive.extractfile(member) for member in archive.getmembers() if member.isfile()]
        return [content.read() for content in found if content is not None]


def facts(text: bytes) -> Facts:
    """Read one trace."""
    trace = json.loads(text.decode(errors="replace"), parse_float=Decimal, strict=False)
    around: dict[str, Any] = {} if isinstance(trace, list) else trace
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    base = int(around.get("baseTimeNanoseconds", 0))
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") in CATEGORIES and Decimal(e["ts"]) != 0]
    starts = [base + _ns(e["ts"]) for e in spans]
    durations = [max(0, _ns(e.get("dur", 0))) for e in spans]
    kinds = Counter(CATEGORIES[e["cat"]] for e in spans)
    kernels = [e for e in spans if CATEGORIES[e["cat"]] == "kernel"]
    records = [
        e for e in spans
        if e["name"] == "record_param_comms"
        and e.get("args", {}).get("Collective name") not in (None, "", "wait", "init")
    ]  # fmt: skip
    if not any(e["name"] == "record_param_comms" for e in spans):  # gloo: the ops that post a message stand for it
        records = [e for e in spans if e["name"] in ("c10d::send", "c10d::recv_")]
    marks = [m for e in spans if CATEGORIES[e["cat"]] in ("annotation", "op") and (m := STEP.match(str(e["name"])))]
    return Facts(
        events=len(spans),
        kernels=kinds["kernel"],
        communication_kernels=sum(COMMUNICATION.match(str(e["name"])) is not None for e in kernels),
        records=len(records),
        steps=tuple(sorted({int(m[1]) for m in marks})),
        first_ns=min(starts, default=0),
        span_ns=max((s + d for s, d in zip(starts, durations, strict=True)), default=0) - min(starts, default=0),
        start_sum_ns=sum(starts),
        duration_sum_ns=sum(durations),
        memory=sum(e.get("name") == "[memory]" and e["args"].get("Device Type") == 1 for e in events),
    )


def _ns(value: Any) -> int:
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for member in texts(Path(name)):
            print(name, *facts(member), sep="\t")  # noqa: T201 - a tool of its own
