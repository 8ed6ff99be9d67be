"""Jobs made from numbers, and when all of it runs: data, tensor, pipeline and context parallel groups of any size.

The simulator is its own, with nothing of the product in it, so the step is known; ``made_traces`` writes it down.
Global rank t + tp * (c + cp * (d + dp * s)) is at place t, c, d, s of its groups, as Megatron numbers them; pipeline n
holds rank n. Compute waits for the message that it needs; sends are buffered. Inside each action, ranks meet their
tensor and context groups; after their last backward, all copies of a stage reduce.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from helpers.small_pipeline import one_f_one_b

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POST_NS = 8000
_GAP_NS = 14_000
_BEGIN_NS = 1_000_000
KERNELS = {"F": ("mm", "gelu"), "B": ("gelu", "mm")}
"""What a layer of a forward and of a backward runs, in order."""

Order = list[tuple[int, str, int]]
"""Stage, kind and microbatch of what a pipeline rank runs."""


class Place(NamedTuple):
    """Where a rank sits."""

    t: int
    c: int
    d: int
    s: int


@dataclass(frozen=True)
class MadeJob:
    """What is trained, and how fast; times in ns.

    Attributes:
        pp: Pipeline ranks; so many stages for each of ``chunks``.
        dp: Data-parallel ranks.
        tp: Tensor-parallel ranks.
        cp: Context-parallel ranks.
        chunks: Stages per rank, stage n on rank n % pp.
        microbatches: Of each step.
        steps: How many.
        order: Gives the order of a pipeline rank; 1F1B of one stage per rank by default.
        layers: Of each stage: two kernels of a forward and two of a backward each.
        kernel_ns: A kernel of a forward; of a backward it is twice as long.
        tensor_ns: A reduction within an action over the tensor group.
        context_ns: A gather within an action over the context group.
        move_ns: A message, once both sides are ready.
        reduce_ns: The reduction of gradients, once all ranks of its group are there.
        optimizer_ns: The optimizer.
        slow: By global rank, how many times as long its kernels take.
        jitter_ratio: Standard deviation of each kernel's time, as a share of it.
        seed: Of the jitter.
        clocks_ns: How far the clock of a rank is ahead.
    """

    pp: int = 2
    dp: int = 1
    tp: int = 1
    cp: int = 1
    chunks: int = 1
    microbatches: int = 4
    steps: int = 1
    order: Callable[[int], Order] | None = None
    layers: int = 2
    kernel_ns: int = 1_000_000
    tensor_ns: int = 100_000
    context_ns: int = 150_000
    move_ns: int = 200_000
    reduce_ns: int = 3_000_000
    optimizer_ns: int = 500_000
    slow: Mapping[int, float] = field(default_factory=dict)
    jitter_ratio: float = 0.0
    seed: int = 0
    clocks_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def world(self) -> int:
        """Ranks."""
        return self.pp * self.dp * self.tp * self.cp

    @property
    def pipelines(self) -> int:
        """Pipelines side by side."""
        return self.dp * self.tp * self.cp

    def rank(self, t: int, c: int, d: int, s: int) -> int:
        """Global rank of a place."""
        return t + self.tp * (c + self.cp * (d + self.dp * s))

    def place(self, rank: int) -> Place:
        """Place of a global rank."""
        rest, t = divmod(rank, self.tp)
        rest, c = divmod(rest, self.cp)
        s, d = divmod(rest, self.dp)
        return Place(t, c, d, s)

    def orders(self) -> list[Order]:
        """What each pipeline rank runs."""
        if self.order is not None:
            return [self.order(s) for s in range(self.pp)]
        return [[(s, kind, n) for kind, n in one_f_one_b(self.pp, self.microbatches, s)] for s in range(self.pp)]

    @cached_property
    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """Process groups of each kind, each its ranks."""
        t, c, d, s = (range(size) for size in (self.tp, self.cp, self.dp, self.pp))
        rank = self.rank
        return {
            "tp": [tuple(rank(a, b, e, f) for a in t) for f, e, b in product(s, d, c)],
            "cp": [tuple(rank(a, b, e, f) for b in c) for f, e, a in product(s, d, t)],
            "pp": [tuple(rank(a, b, e, f) for f in s) for e, b, a in product(d, c, t)],
            "dp": [tuple(rank(a, b, e, f) for e in d for b in c) for f, a in product(s, t)],
            "replicas": [tuple(rank(a, b, e, f) for e in d) for f, b, a in product(s, c, t)],
        }

    @cached_property
    def group_of(self) -> dict[tuple[str, int], tuple[str, tuple[int, ...]]]:
        """Name and ranks of each rank's group of a kind."""
        found: dict[tuple[str, int], tuple[str, tuple[int, ...]]] = {}
        number = 0
        for kind, groups in self.groups.items():
            for ranks in groups:
                number += 1
                found |= {(kind, rank): (str(number), ranks) for rank in ranks}
        return found


class Span(NamedTuple):
    """A kernel: of an action (one of ``KERNELS``), a collective (its kind of group), a message, or the optimizer."""

    start_ns: int
    end_ns: int
    what: str
    layer: int = 0
    peer: int = -1


class Act(NamedTuple):
    """An action with its messages, as one rank ran it; the end of a step has kind ``-``."""

    stage: int
    kind: str
    microbatch: int
    spans: list[Span]


@dataclass(frozen=True, slots=True)
class Simulated:
    """When everything ran.

    Attributes:
        acts: Per global rank and step, in order.
        step_ns: Per step, from the first kernel to the end of the last optimizer.
        ready_ns: Per step and global rank, when it was through with its last backward, from that first kernel on.
    """

    acts: list[list[list[Act]]]
    step_ns: list[int]
    ready_ns: list[list[int]]


def simulate(job: MadeJob) -> Simulated:
    """Run a job."""
    now = [_BEGIN_NS] * job.world
    acts: list[list[list[Act]]] = [[] for _ in range(job.world)]
    steps, ready = [], []
    noise = random.Random(job.seed)  # noqa: S311 - no secret
    for _ in range(job.steps):
        begin = max(now) + 200_000
        now = [begin] * job.world
        done: list[list[Act]] = [[] for _ in range(job.world)]
        for d in range(job.dp):
            _run_pipelines(job, d, now, done, noise)
        through = list(now)
        _finish(job, now, done)
        first = min(act.spans[0].start_ns for of_rank in done for act in of_rank[:1])
        steps.append(max(now) - first)
        ready.append([at - first for at in through])
        for rank, of_rank in enumerate(done):
            acts[rank].append(of_rank)
    return Simulated(acts, steps, ready)


def _run_pipelines(job: MadeJob, d: int, now: list[int], done: list[list[Act]], noise: random.Random) -> None:
    """The pipelines of one data-parallel place: ranks that meet inside actions go through them together."""
    orders = job.orders()
    cells = [[job.rank(t, c, d, s) for c in range(job.cp) for t in range(job.tp)] for s in range(job.pp)]
    sent: dict[tuple[int, str, int], list[int]] = {}
    at = [0] * job.pp
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        before = list(at)
        for s, order in enumerate(orders):
            while at[s] < len(order):
                stage, kind, microbatch = order[at[s]]
                source = stage - 1 if kind == "F" else stage + 1
                comes = 0 <= source < job.pp * job.chunks and source % job.pp != s
                key = source, kind, microbatch
                if comes and key not in sent:
                    break
                made = [
                    Act(stage, kind, microbatch, _receive(job, rank, now, sent[key][n], source) if comes else [])
                    for n, rank in enumerate(cells[s])
                ]
                _compute(job, kind, cells[s], now, made, noise)
                target = stage + 1 if kind == "F" else stage - 1
                if 0 <= target < job.pp * job.chunks:
                    goes = target % job.pp != s
                    both = zip(cells[s], made, strict=True) if goes else ()
                    sent[stage, kind, microbatch] = [_send(job, rank, now, act, target) for rank, act in both]
                for rank, act in zip(cells[s], made, strict=True):
                    done[rank].append(act)
                at[s] += 1
        assert at != before, "the order waits in a circle"


def _peer(job: MadeJob, rank: int, stage: int) -> int:
    return job.rank(*job.place(rank)[:3], stage % job.pp)


def _receive(job: MadeJob, rank: int, now: list[int], sent_ns: int, source: int) -> list[Span]:
    start = now[rank] + _POST_NS
    now[rank] = max(start, sent_ns) + job.move_ns
    return [Span(start, now[rank], "recv", peer=_peer(job, rank, source))]


def _send(job: MadeJob, rank: int, now: list[int], act: Act, target: int) -> int:
    start = now[rank] + _POST_NS
    act.spans.append(Span(start, start + job.move_ns, "send", peer=_peer(job, rank, target)))
    now[rank] += _GAP_NS
    return start


def _compute(
    job: MadeJob, kind: str, cell: Sequence[int], now: list[int], made: Sequence[Act], noise: random.Random
) -> None:
    """Kernels of an action on ranks that meet inside it."""
    usual = job.kernel_ns * (1 if kind == "F" else 2)
    for layer in range(job.layers) if kind == "F" else range(job.layers - 1, -1, -1):
        for number, name in enumerate(KERNELS[kind]):
            for rank, act in zip(cell, made, strict=True):
                drawn = 1 + noise.gauss(0, job.jitter_ratio) if job.jitter_ratio else 1.0
                took = round(usual * job.slow.get(rank, 1.0) * max(0.1, drawn))
                act.spans.append(Span(now[rank], now[rank] + took, name, layer))
                now[rank] += took
            if not number:
                _meet(job, "tp", job.tensor_ns, cell, now, made, layer)
                if not layer:
                    _meet(job, "cp", job.context_ns, cell, now, made, layer)
    for rank in cell:
        now[rank] += 1000


def _meet(
    job: MadeJob, kind: str, own_ns: int, ranks: Sequence[int], now: list[int], made: Sequence[Act], layer: int
) -> None:
    """A collective of each group among some ranks: it begins on each when it comes, and ends on all together."""
    last: dict[tuple[int, ...], int] = defaultdict(int)
    groups = [job.group_of[kind, rank][1] for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        last[group] = max(last[group], now[rank])
    for rank, group, act in zip(ranks, groups, made, strict=True):
        if len(group) > 1:
            act.spans.append(Span(now[rank], last[group] + own_ns, kind, layer))
            now[rank] = last[group] + own_ns


def _finish(job: MadeJob, now: list[int], done: list[list[Act]]) -> None:
    """Reduction of gradients over all copies of a stage, then the optimizer."""
    ends = [Act(-1, "-", -1, []) for _ in now]
    for rank in range(job.world):
        now[rank] += _GAP_NS
    _meet(job, "dp", job.reduce_ns, range(job.world), now, ends, 0)
    for rank, act in enumerate(ends):
        start = now[rank] + _GAP_NS
        now[rank] = start + job.optimizer_ns
        act.spans.append(Span(start, now[rank], "optimizer"))
        done[rank].append(act)
