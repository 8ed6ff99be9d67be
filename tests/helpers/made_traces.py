"""Jobs of ``made_job`` as Kineto traces: what torch's profiler would have recorded of each rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helpers.made_job import Act, MadeJob, Simulated, Span, simulate
from msgspec.json import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAUNCH_NS = 4000
"""From a launch to its kernel, whose host is never late."""
_CALL_NS = 8000
_BASE_NS = 1_790_857_026_000_000_000
_LISTED = 30
_KERNELS = {
    "F": (("mm", "AddmmBackward0", "nvjet_128x256_TNT"), ("gelu", "GeluBackward0", "elementwise_kernel<gelu>")),
    "B": (("gelu", "GeluBackward0", "elementwise_kernel<gelu_backward>"), ("mm", "AddmmBackward0", "nvjet_grads")),
}
_DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "replicas": "DATA_PARALLEL_GROUP",
}


@dataclass(slots=True)
class _Writer:
    """The trace of one rank; ``host_ns`` is when its host is ready for the next call."""

    job: MadeJob
    rank: int
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    host_ns: int = 0
    sequences: dict[tuple[int, int, str, int], int] = field(default_factory=dict)

    def event(self, category: str, name: str, at_ns: int, took_ns: int, thread: int, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": at_ns / 1000,
                "dur": took_ns / 1000, "args": args,
            }
        )  # fmt: skip

    def act(self, act: Act) -> None:
        """An action: what its host calls in it, it calls ahead of its device."""
        self.host_ns = 0
        for span in act.spans:
            is_message = span.peer >= 0
            if is_message or not self.host_ns:
                self.host_ns = span.start_ns - LAUNCH_NS - 3000
            self.span(act, span)
            self.host_ns = 0 if is_message else self.host_ns + _CALL_NS

    def span(self, act: Act, span: Span) -> None:
        thread = 2 if act.kind == "B" else 1
        if span.peer >= 0:
            self.record(span.what, "pp", 1 << 20, span, 1)
            self.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", span, 20, 1)
        elif span.what in ("tp", "cp", "dp"):
            gathers = span.what == "cp"
            if act.kind != "-":
                self.graph(act, span, "_Region", "_RegionBackward")
            verb, name = ("allgather", "AllGather_RING_LL") if gathers else ("allreduce", "AllReduce_Sum_bf16_RING_LL")
            self.record(verb, span.what, 1 << 19, span, thread)
            self.kernel(f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", span, 24, thread)
        elif span.what == "optimizer":
            self.event("user_annotation", "Optimizer.step#AdamW.step", self.host_ns, 6000, 1)
            self.number += 1
            self.kernel("multi_tensor_apply_kernel<FusedAdam>", span, 7, 1)
        else:
            node, kernel = next((node, kernel) for what, node, kernel in _KERNELS[act.kind] if what == span.what)
            self.graph(act, span, f"aten::{span.what}", node)
            self.kernel(kernel, span, 7, thread)

    def graph(self, act: Act, span: Span, op: str, node: str) -> None:
        """An op that autograd numbers, or its node."""
        self.number += 1
        key = act.stage, act.microbatch, span.what, span.layer
        is_node = act.kind == "B"
        if not is_node:
            self.sequences[key] = len(self.sequences) + 1
        said = {"External id": self.number, "Sequence number": self.sequences[key], "Fwd thread id": int(is_node)}
        name = f"autograd::engine::evaluate_function: {node}" if is_node else op
        self.event("cpu_op", name, self.host_ns, 6000, 2 if is_node else 1, **said)

    def record(self, verb: str, kind: str, elements: int, span: Span, thread: int) -> None:
        """What c10d says of an operation; it cuts long lists of ranks."""
        self.number += 1
        name, ranks = self.job.group_of[kind, self.rank]
        shown = ", ".join(map(str, ranks[:_LISTED])) + (", ..." if len(ranks) > _LISTED else "")
        args: dict[str, Any] = {
            "External id": self.number, "Record function id": 0, "Collective name": verb, "dtype": "BFloat16",
            "In msg nelems": elements, "Out msg nelems": elements, "Group size": len(ranks),
            "Process Group Name": name, "Process Group Description": _DESCRIPTIONS[kind],
            "Process Group Ranks": f"[{shown}]", "Rank": ranks.index(span.peer if span.peer >= 0 else self.rank),
        }  # fmt: skip
        if span.peer >= 0:
            args["Dst Rank" if verb == "send" else "Src Rank"] = span.peer
        self.event("cpu_op", "record_param_comms", self.host_ns + 1000, 1000, thread, **args)
        if span.peer >= 0:
            said = {"External id": self.number}
            self.event("user_annotation", "nccl:coalesced", self.host_ns + 2000, 3500, thread, **said)

    def kernel(self, name: str, span: Span, stream: int, thread: int) -> None:
        """A kernel and its launch, of the op or record that has the last id."""
        launched = self.number + 1_000_000
        self.event("cuda_runtime", "cudaLaunchKernel", self.host_ns + 3000, 2000, thread, correlation=launched)
        args = {"device": 0, "stream": stream, "correlation": launched, "grid": [132, 1, 1], "External id": self.number}
        self.event("kernel", name, span.start_ns, span.end_ns - span.start_ns, stream, **args)


def trace(job: MadeJob, simulated: Simulated, rank: int) -> dict[str, Any]:
    """The trace of a rank."""
    writer = _Writer(job, rank)
    for number, acts in enumerate(simulated.acts[rank]):
        writer.sequences.clear()
        for act in acts:
            writer.act(act)
        ends = [simulated.acts[other][number] for other in range(job.world)]
        begin = min(of_rank[0].spans[0].start_ns for of_rank in ends) - 100_000
        end = max(of_rank[-1].spans[-1].end_ns for of_rank in ends) + 50_000
        writer.event("user_annotation", f"ProfilerStep#{number}", begin, end - begin, 1)
    mine = [(*job.group_of[kind, rank], description) for kind, description in _DESCRIPTIONS.items()]
    groups = [("0", tuple(range(job.world)), "default_pg"), *mine]
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": _BASE_NS + job.clocks_ns.get(rank, 0),
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85017493504}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": job.world,
            "pg_config": [
                {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}
                for name, ranks, description in groups
            ],
        },
        "traceEvents": writer.events,
    }  # fmt: skip


def write_job(
    folder: Path, job: MadeJob, simulated: Simulated | None = None, *, ranks: Sequence[int] | None = None
) -> Simulated:
    """Write a job's traces, a file per rank that was recorded (by default all), and give what they are of."""
    folder.mkdir(parents=True, exist_ok=True)
    simulated = simulated or simulate(job)
    for rank in range(job.world) if ranks is None else ranks:
        (folder / f"rank{rank}.json").write_bytes(encode(trace(job, simulated, rank)))
    return simulated
