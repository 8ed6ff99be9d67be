"""Small Kineto traces of pipelines, made up for tests: who sends what to whom, and how long it takes, is known.

Every forward is four kernels of 100 us, every backward six; the host launches them in time. A receive is posted ahead
of its action, a send after it, each in a batch of its own; its kernel ends 60 us after both sides have started.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

KERNEL_US, MOVE_US, LAUNCH_US = 100, 60, 20
FORWARD_NS, BACKWARD_NS = 4 * KERNEL_US * 1000, 6 * KERNEL_US * 1000
MIB = 2**20

Order = list[tuple[str, int]]


def one_f_one_b(p: int, m: int, rank: int) -> Order:
    """1F1B: p - 1 - rank forwards, then a forward and a backward in turn, then the rest of the backwards."""
    ahead = min(p - 1 - rank, m)
    order: Order = [("F", n) for n in range(ahead)]
    for n in range(m):
        order += [("F", n + ahead)] if n + ahead < m else []
        order.append(("B", n))
    return order


def gpipe(p: int, m: int, rank: int) -> Order:
    """All forwards, then all backwards."""
    del p, rank
    return [("F", n) for n in range(m)] + [("B", n) for n in range(m)]


def forwards(p: int, m: int, rank: int) -> Order:
    """Forwards alone: inference, or an evaluation."""
    del p, rank
    return [("F", n) for n in range(m)]


@dataclass(frozen=True, slots=True)
class Job:
    """What is traced.

    Attributes:
        p: Pipeline ranks, a stage each.
        steps: Microbatches of each step.
        orders: Order of each step.
        forward_bytes: Sizes of the tensors that a forward hands on.
        backward_bytes: The same of a backward.
        batched: Whether the tensors of a hop are posted as one batch; else each has a kernel of its own.
        cp: Context parallel ranks of each stage: global rank r * cp + c.
        ring_tensors: Tensors that each exchange of a ring hands on.
        names: Descriptions of the pipelines' groups and of the rings'.
        skips: Edges beyond neighbours, as (from, to) of pipeline ranks: one more message of each forward and backward.
        labelled: Whether ``PP:`` annotations stand around actions and messages.
        graphs: Whether forwards build graphs: their ops then carry autograd numbers.
        marked: Whether steps are marked.
        stall: Where a host stands still before it posts an action's receive (rank, kind, microbatch), for how long, and
            by the name of which overhead of the profiler; an empty name records none.
    """

    p: int
    steps: Sequence[int] = (4,)
    orders: Sequence[Callable[[int, int, int], Order]] = (one_f_one_b,)
    forward_bytes: Sequence[int] = (2 * MIB,)
    backward_bytes: Sequence[int] = (2 * MIB,)
    batched: bool = True
    cp: int = 1
    ring_tensors: int = 1
    names: tuple[str, str] = ("pp", "cp")
    skips: Sequence[tuple[int, int]] = ()
    labelled: bool = False
    graphs: bool = True
    marked: bool = True
    stall: tuple[int, str, int, int, str] | None = None


@dataclass(slots=True)
class _Rank:
    """What one rank recorded so far; times in us."""

    job: Job
    position: int
    context: int
    now: float = 1_000_000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    correlation: int = 1000
    sequence: int = 100
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.position * self.job.cp + self.context

    def event(self, category: str, name: str, at: float, took: float, thread: int, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": at, "dur": took, "args": args}
        )

    def launch(self, name: str, at: float, took: float, stream: int, thread: int, external: int | None = None) -> None:
        self.correlation += 1
        self.event("cuda_runtime", "cudaLaunchKernel", at, 8, thread, correlation=self.correlation)
        more = {} if external is None else {"External id": external}
        self.event(
            "kernel", name, at + LAUNCH_US, took, stream, device=0, stream=stream, correlation=self.correlation,
            grid=[132, 1, 1], **more,
        )  # fmt: skip

    def record(self, verb: str, peer: int, size: int, group: tuple[str, str, list[int]], at: float, thread: int) -> int:
        self.number += 1
        name, description, ranks = group
        args: dict[str, Any] = {
            "External id": self.number, "Record function id": 0, "Collective name": verb, "dtype": "BFloat16",
            "In msg nelems": size // 2, "Out msg nelems": size // 2, "Group size": len(ranks),
            "Process Group Name": name, "Process Group Description": description, "Process Group Ranks": str(ranks),
            "Rank": self.rank, "Dst Rank" if verb == "send" else "Src Rank": peer,
        }  # fmt: skip
        self.event("cpu_op", "record_param_comms", at, 1, thread, **args)
        return self.number

    def pipeline(self) -> tuple[str, str, list[int]]:
        cp, p = self.job.cp, self.job.p
        return "1", self.job.names[0], [r * cp + self.context for r in range(p)]

    def ring(self) -> tuple[str, str, list[int]]:
        cp = self.job.cp
        return "2", self.job.names[1], [self.position * cp + c for c in range(cp)]

    def exchange(self, at: float, thread: int) -> None:
        """One step round the ring: to the next rank and from the one before."""
        if self.job.cp == 1:
            return
        _, _, ranks = group = self.ring()
        onward, back = ranks[(self.context + 1) % len(ranks)], ranks[self.context - 1]
        last = 0
        for _ in range(self.job.ring_tensors):
            self.record("send", onward, MIB // 2, group, at, thread)
            last = self.record("recv", back, MIB // 2, group, at + 1, thread)
        self.event("user_annotation", "nccl:coalesced", at + 2, 6, thread, **{"External id": last})
        self.launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at + 3, 40, 24, thread)

    def forward(self, microbatch: int) -> None:
        self.numbers[microbatch] = self.sequence
        begin = self.now
        for n in range(4):
            at = self.now
            self.number += 1
            more = {"Sequence number": self.sequence, "Fwd thread id": 0} if self.job.graphs else {}
            self.sequence += 1
            op, kernel = (
                ("aten::gelu", "vectorized_elementwise_kernel<gelu>") if n % 2 else ("aten::mm", "nvjet_128x256_TNT")
            )
            self.event("cpu_op", op, at, 14, 1, **{"External id": self.number, **more})
            self.launch(kernel, at + 1, KERNEL_US, 7, 1, self.number)
            if n % 2:
                self.exchange(at + 10, 1)
            self.now += KERNEL_US
        self.label(f"{self.position}F{microbatch}", begin, self.now + LAUNCH_US)
        self.now += LAUNCH_US + 1

    def backward(self, microbatch: int) -> None:
        begin = self.now
        for n in range(3, -1, -1):
            kernels = ["vectorized_elementwise_kernel<gelu_backward>"] if n % 2 else ["nvjet_dgrad", "nvjet_wgrad"]
            self.number += 1
            args = {"External id": self.number, "Sequence number": self.numbers[microbatch] + n, "Fwd thread id": 1}
            node = "GeluBackward0" if n % 2 else "MmBackward0"
            name, at = f"autograd::engine::evaluate_function: {node}", self.now
            self.event("cpu_op", name, at, KERNEL_US * len(kernels) - 1, 2, **args)
            for kernel in kernels:
                self.launch(kernel, self.now + 1, KERNEL_US, 7, 2, self.number)
                self.now += KERNEL_US
            if not n % 2:
                self.exchange(at + 10, 2)
        self.label(f"{self.position}B{microbatch}", begin, self.now + LAUNCH_US)
        self.now += LAUNCH_US + 1

    def stall(self, took: int, name: str) -> None:
        if name:
            self.events.append(
                {"ph": "X", "cat": "overhead", "name": name, "pid": -1, "tid": 0, "ts": self.now, "dur": took}
            )
        self.now += took

    def label(self, text: str, begin: float, end: float) -> None:
        if self.job.labelled:
            self.event("user_annotation", f"PP:{text}", begin, end - begin, 1)

    def posted(self, verb: str, peer: int, sizes: Sequence[int], sent: Sequence[float] = ()) -> list[float]:
        """A hop with another pipeline rank; when each of its kernels started.

        Args:
            verb: send or recv.
            peer: The other pipeline rank.
            sizes: Of its tensors.
            sent: When each kernel of its sender started.
        """
        group = self.pipeline()
        parts = [tuple(sizes)] if self.job.batched else [(size,) for size in sizes]
        starts = []
        for n, part in enumerate(parts):
            last = 0
            for size in part:
                last = self.record(verb, group[2][peer], size, group, self.now, 1)
                self.now += 1
            self.event("user_annotation", "nccl:coalesced", self.now, 6, 1, **{"External id": last})
            start = self.now + 1 + LAUNCH_US
            end = max(start, *sent[n : n + 1]) + MOVE_US if sent else start + MOVE_US
            self.launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", self.now + 1, end - start, 20, 1)
            self.now += 10
            starts.append(start)
            if verb == "recv":
                self.now = max(self.now, end - LAUNCH_US + 2)
        return starts


class _Simulated:
    """One pipeline of the job, its ranks in turn as far as their inputs are there."""

    def __init__(self, job: Job, context: int) -> None:
        self.job = job
        self.ranks = [_Rank(job, r, context) for r in range(job.p)]
        self.sent: dict[tuple[int, int, str], list[list[float]]] = defaultdict(list)

    def run(self) -> list[_Rank]:
        for number, m in enumerate(self.job.steps, 1):
            order = self.job.orders[min(number, len(self.job.orders)) - 1]
            begin = max(rank.now for rank in self.ranks) + 200
            for rank in self.ranks:
                rank.now = begin
            trains = self._step([order(self.job.p, m, r) for r in range(self.job.p)])
            end = max(rank.now for rank in self.ranks) + 100
            for rank in self.ranks:
                if trains:
                    rank.event("user_annotation", "Optimizer.step#AdamW.step", end, 20, 1)
                    rank.launch("multi_tensor_apply_kernel<FusedAdam>", end + 1, 50, 7, 1)
                rank.now = end + 100
                if self.job.marked:
                    rank.event("user_annotation", f"ProfilerStep#{number}", begin - 10, rank.now - begin, 1)
        return self.ranks

    def _step(self, orders: Sequence[Order]) -> bool:
        self.sent.clear()
        at = [0] * len(orders)
        while any(n < len(order) for n, order in zip(at, orders, strict=True)):
            before = list(at)
            for r, order in enumerate(orders):
                while at[r] < len(order) and self._act(r, *order[at[r]]):
                    at[r] += 1
            assert at != before, "the order waits in a circle"
        return any(kind == "B" for order in orders for kind, _ in order)

    def _edges(self, kind: str, r: int) -> tuple[list[int], list[int]]:
        """Where an action's messages come from, and go to."""
        edges = [*((n, n + 1) for n in range(self.job.p - 1)), *self.job.skips]
        if kind == "B":
            edges = [(b, a) for a, b in edges]
        return [a for a, b in edges if b == r], [b for a, b in edges if a == r]

    def _act(self, r: int, kind: str, microbatch: int) -> bool:
        rank = self.ranks[r]
        sources, targets = self._edges(kind, r)
        if any(len(self.sent[source, r, kind]) <= microbatch for source in sources):
            return False
        if self.job.stall is not None and self.job.stall[:3] == (r, kind, microbatch):
            rank.stall(*self.job.stall[3:])
        sizes = self.job.forward_bytes if kind == "F" else self.job.backward_bytes
        for source in sources:
            sent = self.sent[source, r, kind][microbatch]
            begin = rank.now
            rank.posted("recv", source, sizes, sent)
            rank.label(f"{r}RECV_{kind}{microbatch}", begin, rank.now)
        (rank.forward if kind == "F" else rank.backward)(microbatch)
        for target in targets:
            begin = rank.now
            starts = rank.posted("send", target, sizes)
            rank.label(f"{r}SEND_{kind}{microbatch}", begin, rank.now)
            self.sent[r, target, kind].append(starts)
        return True


def traces(job: Job) -> dict[int, dict[str, Any]]:
    """The trace of each global rank."""
    found = {}
    for context in range(job.cp):
        for rank in _Simulated(job, context).run():
            groups = [("0", "default_pg", list(range(job.p * job.cp))), rank.pipeline()]
            groups += [rank.ring()] if job.cp > 1 else []
            found[rank.rank] = {
                "schemaVersion": 1,
                "baseTimeNanoseconds": 1_790_857_026_000_000_000,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504}],
                "distributedInfo": {
                    "backend": "nccl", "rank": rank.rank, "world_size": job.p * job.cp,
                    "pg_config": [
                        {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": ranks}
                        for name, description, ranks in groups
                    ],
                },
                "traceEvents": rank.events,
            }  # fmt: skip
    return found


def write(folder: Path, job: Job, change: Callable[[int, dict[str, Any]], None] | None = None) -> Path:
    """A file per rank.

    Args:
        folder: Where to write.
        job: What is traced.
        change: Changes the trace of a rank before it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank, trace in traces(job).items():
        if change is not None:
            change(rank, trace)
        (folder / f"rank{rank}.json").write_bytes(encode(trace))
    return folder


def described(job: Job, pipeline: str, ring: str) -> Job:
    """The same with other descriptions of its groups."""
    return replace(job, names=(pipeline, ring))
