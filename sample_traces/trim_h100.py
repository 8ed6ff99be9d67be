"""Trims a recorded trace to one step and to the events that tracetool reads.

    python sample_traces/trim_h100.py RECORDED_FOLDER STEP OUTPUT_FOLDER [--shapes]

Kept: kernels, memory copies and their launches, waits of the host, the ops that launched them, autograd nodes and
the ops they undo, cuts of the graph, communication records, annotations and allocator records of that step;
with --shapes also what operators that launched something were given, and calls of collectives. Times keep their text,
ids their values.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

DEVICE = ("kernel", "gpu_memset", "gpu_memcpy")
LAUNCH = ("cuda_runtime", "cuda_driver")
ARGS = {
    "kernel": ("External id", "device", "stream", "correlation", "grid"),
    "gpu_memset": ("External id", "device", "stream", "correlation", "bytes"),
    "gpu_memcpy": ("External id", "device", "stream", "correlation", "bytes"),
    "cuda_runtime": ("correlation",),
    "cuda_driver": ("correlation",),
    "cpu_op": ("External id", "Sequence number"),
    "user_annotation": ("External id",),
    "cpu_instant_event": ("Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id", "Addr"),
}
COMM_ARGS = (
    "External id", "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Rank",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Src Rank", "Dst Rank",
    "Global rank start", "Global rank stride",
)  # fmt: skip

SYNCHRONISATIONS = ("cudaDeviceSynchronize", "cudaStreamSynchronize")
BACKWARD_OP = re.compile(r"Backward\d*$")


def trim(trace: dict[str, Any], step: int, *, shapes: bool = False) -> dict[str, Any]:
    """One step of a trace, with what tracetool reads."""
    events = trace["traceEvents"]
    mark = next(e for e in events if e.get("cat") == "user_annotation" and e["name"] == f"ProfilerStep#{step}")
    first, last = mark["ts"], mark["ts"] + mark["dur"]
    host = [e for e in events if first <= e.get("ts", -1) < last]
    launches = {e["args"]["correlation"] for e in host if e.get("cat") in LAUNCH and "correlation" in e.get("args", {})}
    kernels = [e for e in events if e.get("cat") in DEVICE and e["args"]["correlation"] in launches]
    launched = {e["args"]["correlation"] for e in kernels}
    causes = {e["args"].get("External id") for e in kernels}
    undone = {
        e["args"].get("Sequence number")
        for e in host
        if e.get("cat") == "cpu_op" and e["name"].startswith("autograd::engine::evaluate_function")
    } - {None}
    kept = [e for e in host if _needed(e, launched, causes, undone) or (shapes and _is_call(e))] + kernels
    kept.sort(key=lambda e: e["ts"])
    return {**trace, "traceEvents": [_slim(e, shapes=shapes) for e in kept]}


def _needed(event: dict[str, Any], launched: set[int], causes: set[int | None], undone: set[int | None]) -> bool:
    category, args = event.get("cat"), event.get("args", {})
    if category in LAUNCH:
        return args.get("correlation") in launched or event["name"] in SYNCHRONISATIONS
    if category == "cpu_op":
        return (
            event["name"].startswith("autograd::engine::evaluate_function")
            or event["name"] == "record_param_comms"
            or args.get("External id") in causes
            or (args.get("Sequence number") in undone and not BACKWARD_OP.search(event["name"]))
            or ("Sequence number" in args and event["name"] == "aten::detach")
        )
    return category == "user_annotation" or (event["name"] == "[memory]" and args.get("Device Type") == 1)


def _is_call(event: dict[str, Any]) -> bool:
    """Whether it is a call of a collective: it tells what those take the host."""
    return event.get("cat") == "cpu_op" and bool(event["name"].startswith("c10d::"))


def _slim(event: dict[str, Any], *, shapes: bool) -> dict[str, Any]:
    category = event.get("cat", "")
    keep = COMM_ARGS if event["name"] == "record_param_comms" else ARGS.get(category)
    if keep is None:
        return event
    if shapes and category == "cpu_op":
        keep = (*keep, "Input Dims")
    args = {key: event["args"][key] for key in keep if key in event.get("args", {})}
    fields = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "s")
    return {key: event[key] for key in fields if key in event} | {"args": args}


def _line(event: dict[str, Any]) -> str:
    """One event as JSON; times are spliced in as the text they were read from."""
    times = "".join(f',"{key}":{event[key]}' for key in ("ts", "dur") if key in event)
    rest = {key: value for key, value in event.items() if key not in ("ts", "dur")}
    return json.dumps(rest, separators=(",", ":"), default=float)[:-1] + times + "}"


def main(source: Path, step: int, target: Path, *, shapes: bool) -> None:
    """Trim every rank of a folder."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("rank*.json.gz")):
        # Decimal keeps the digits of a time, trailing zeros included.
        trace = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
        slim = trim(trace, step, shapes=shapes)
        lines = ",\n".join(_line(event) for event in slim.pop("traceEvents"))
        head = json.dumps(slim, separators=(",", ":"), default=float)[:-1]
        text = f'{head},"traceEvents":[\n{lines}\n]}}\n'
        (target / path.name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), shapes="--shapes" in sys.argv[4:])
