"""A second way to read an Ascend timeline: the standard library and Decimal, nothing of the product.

``python tests/independent_ascend.py FOLDER FILE...`` prints one line per file for the table ``golden_ascend.tsv``.
"""

from __future__ import annotations

import json
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

DEVICE = ("Ascend Hardware", "Task Scheduler")
# Types of the tasks that compute, as far as the public files have them.
COMPUTING = ("AI_CORE", "AI_CPU", "MIX_AIV", "MIX_AIC", "DSA_SQE")


class TimelineFacts(NamedTuple):
    """What a timeline holds: counts, steps, and sums of start and duration in ns."""

    kernels: int
    launches: int
    ops: int
    marks: int
    start_sum_ns: int
    duration_sum_ns: int
    operations: int
    operation_start_sum_ns: int
    operation_duration_sum_ns: int
    linked_bytes: int
    steps: tuple[int, ...]


def ns(microseconds: object) -> int:
    """Decimal microseconds as whole nanoseconds."""
    return int((Decimal(str(microseconds)) * 1000).to_integral_value(ROUND_HALF_EVEN))


def timeline_facts(text: bytes) -> TimelineFacts:
    """Read one timeline."""
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [
        (e, processes.get(e["pid"], ""), threads.get((e["pid"], e["tid"]), ""), e.get("args") or {})
        for e in events
        if e["ph"] == "X"
    ]
    on_device = [s for s in spans if s[1] in DEVICE and not s[2].startswith("Step Trace")]
    kernels = [e for e, _, _, args in on_device if args.get("Task Type") in COMPUTING and e["name"] != "N/A"]
    launches = [e for e, process, _, _ in spans if process == "CANN"]
    host = [e for e, process, _, _ in spans if process == "Python" and e.get("cat") == "cpu_op"]
    marks = [e for e in host if e["name"].startswith("ProfilerStep#")]
    iterations = [a for e, _, _, a in spans if e.get("cat") == "Iteration Time"]
    big = [e for e, process, thread, _ in spans if process == "HCCL" and not thread.startswith("Plane")]
    moved = [a for _, process, thread, a in spans if process == "HCCL" and thread.startswith("Plane")]
    shown = [*kernels, *launches, *host]
    return TimelineFacts(
        kernels=len(kernels),
        launches=len(launches),
        ops=len(host) - len(marks),
        marks=len(marks),
        start_sum_ns=sum(ns(e["ts"]) for e in shown),
        duration_sum_ns=sum(ns(e["dur"]) for e in shown),
        operations=len(big),
        operation_start_sum_ns=sum(ns(e["ts"]) for e in big),
        operation_duration_sum_ns=sum(ns(e["dur"]) for e in big),
        linked_bytes=sum(int(a["size(Byte)"]) for a in moved if a["link type"] != "ON_CHIP" and a["size(Byte)"]),
        steps=tuple(
            sorted({int(e["name"].partition("#")[2]) for e in marks} | {int(a["Iteration ID"]) for a in iterations})
        ),
    )


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        print(Path(name).relative_to(root), *timeline_facts(Path(name).read_bytes()), sep="\t")  # noqa: T201 - a tool
