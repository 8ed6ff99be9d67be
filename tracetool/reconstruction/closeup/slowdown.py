"""How much longer a kernel takes while a communication kernel holds SMs beside it.

The factor belongs to the kernel: matrix products whose grid fills the device once wait for the SMs that are held,
memory-bound kernels hardly notice. It is the same wherever the kernel runs, so runs of all ranks are pooled.

How a rank's device slows down under the load that its own kernels bring.

How much of each action's time is gaps between its kernels, in which the device waits for the host.

Such gaps are part of the action's compute time (the device could do nothing else with them). A profiler slows the
host down, so where they are long a step without a profiler is shorter than the recorded one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.load import known_load
from tracetool.model.notice import NoticeCode, Notices
from tracetool.reconstruction.capture.waits import total_ns

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from tracetool.model.load import SustainedLoad
    from tracetool.reconstruction.actions import Segment

Source = Literal["own", "class", "default"]
SOURCES: tuple[Source, ...] = ("own", "class", "default")

_ENOUGH = 3
_WHOLLY = 0.95
"""A run counts as slowed down all along when a communication kernel was there for so much of it."""

_GEMM = re.compile(r"nvjet|gemm|cutlass|xmma|cublas|cijk|matmul", re.IGNORECASE)
_ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)

SEPARATE = "on separate engines"
"""Class of kernels that share no core with communication: Ascend's, and all where the host does the communication."""

FULL_GRID, _PRODUCT, _ATTENDING, _OTHER = "full-grid matrix product", "matrix product", "attention", "other"
DEFAULT_FACTORS: Mapping[str, float] = {FULL_GRID: 1.47, _PRODUCT: 1.06, _ATTENDING: 1.07, _OTHER: 1.04}
"""Factors of kernel classes where the trace shows none, for grids of 132 SMs beside a SendRecv of 8 blocks.

Time beside communication over time alone of all runs of a class in rt1f1b_m8, zbh1_m8 and interleaved_m8 (H100,
NCCL). Kernels of a class differ: full-grid products take 1.13 to 1.92 times as long. Products of other grids ran
nowhere beside one: theirs is what is left of the SMs, 132 / 124.
"""


@lru_cache(maxsize=4096)  # a trace has few kernels and many runs of them
def kernel_class(name: str, blocks: int | None, sm_count: int | None) -> str:
    """Class of a kernel as far as SMs held beside it matter.

    Args:
        name: Of the kernel.
        blocks: Of its grid; None on Ascend, where communication holds no core that computes.
        sm_count: Of the device; None if the trace does not tell: then no grid is known to fill it.
    """
    if blocks is None:
        return SEPARATE
    if _ATTENTION.search(name):
        return _ATTENDING
    if not _GEMM.search(name):
        return _OTHER
    # A grid of one block per SM leaves none idle that could take the blocks of those that are held.
    full = sm_count is not None and sm_count * 0.9 <= blocks <= sm_count
    return FULL_GRID if full else _PRODUCT


@lru_cache(maxsize=4096)
def is_tensor_kernel(name: str) -> bool:
    """Whether a kernel is a matrix product or attention, by its name."""
    return _GEMM.search(name) is not None or _ATTENTION.search(name) is not None


class Slowed(NamedTuple):
    """One run of a kernel with a communication kernel beside it all along.

    Attributes:
        keys: What runs of the same kernel share, from the narrowest group of them to the widest (its class).
        run_ns: What it took.
        alone_ns: What it takes by itself.
    """

    keys: tuple[Hashable, ...]
    run_ns: int
    alone_ns: float


@dataclass(slots=True)
class Factors:
    """Factors per group of kernels.

    Attributes:
        known: Per group, the median ratio and how many runs it rests on; of a class, the ratio of its time.
        applied_ns: How much time of kernels (alone) took a factor of their own, that of their class in this trace, or
            a default of the class.
    """

    known: Mapping[Hashable, tuple[float, int]]
    applied_ns: Counter[Source] = field(default_factory=Counter)

    def of(self, keys: tuple[Hashable, ...]) -> tuple[float, Source]:
        """The factor of a kernel, at least 1, and where it comes from."""
        for key in keys:
            value, count = self.known.get(key, (1.0, 0))
            if count >= _ENOUGH:
                return max(1.0, value), "class" if key == keys[-1] else "own"
        return DEFAULT_FACTORS.get(str(keys[-1]), 1.0), "default"


def learn_factors(runs: Iterable[Slowed]) -> Factors:
    """Learn factors from runs that were slowed down all along."""
    ratios: dict[Hashable, list[float]] = defaultdict(list)
    classes: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for keys, run_ns, alone_ns in runs:
        if alone_ns <= 0:
            continue
        for key in keys[:-1]:
            ratios[key].append(run_ns / alone_ns)
        # Kernels of a class differ: what matters for one that was never seen is where the class's time goes.
        classes[keys[-1]].append((run_ns, alone_ns))
    known = {key: (median(of_key), len(of_key)) for key, of_key in ratios.items()}
    for key, of_class in classes.items():
        run_ns, alone_ns = map(sum, zip(*of_class, strict=True))
        known[key] = (run_ns / alone_ns, len(of_class))
    return Factors(known)


def is_wholly_beside(run_ns: int, beside_ns: int) -> bool:
    """Whether a communication kernel was beside a run all along."""
    return run_ns > 0 and beside_ns >= _WHOLLY * run_ns


_TENSOR_SHARES = {True: 0.83, False: 0.72}
"""Least share of matrix products and attention in the kernels of a stage's forwards (True) and backwards, in the
recordings that the behaviour of devices was learned from (rt1f1b_m8, gpipe_m8, 1f1b_m8). Kernels that wait for memory
draw less power: two H200 whose kernels were 40 to 49 % such products (megatron-core, unfused attention) did not slow
down at all at loads that would have cost 8 %."""


def rank_load(device_name: str | None, segments: Iterable[Segment]) -> SustainedLoad | None:
    """How a device slows down with a rank's actions on it; None if nothing is known of it.

    Args:
        device_name: Model of the device.
        segments: The rank's actions.
    """
    load = known_load(device_name)
    if load is None:
        return None
    total, products = {True: 0, False: 0}, {True: 0, False: 0}
    for segment in segments:
        is_forward = segment.kind is ActionKind.FORWARD
        for kernel in segment.kernels:
            if kernel.is_compute and not kernel.is_collective and kernel.name:
                total[is_forward] += kernel.end_ns - kernel.start_ns
                products[is_forward] += (kernel.end_ns - kernel.start_ns) * is_tensor_kernel(kernel.name)
    of_forward, of_backward = (
        min(1.0, products[kind] / total[kind] / least) if total[kind] else 1.0 for kind, least in _TENSOR_SHARES.items()
    )
    return load if of_forward == of_backward == 1 else load.scaled(of_forward, of_backward)


WORTH_TELLING = 0.10
HOST_BOUND = 0.20
"""Share of gaps from which on the host holds the device back. On the H100 recordings profiled steps were 7 to 42 %
longer than steps without a profiler where the gaps of an action kind were 20 to 57 % of it, and at most 1.2 % longer
where they were 7 % or less (measured.json: profiled_step_ms against step_ms)."""


def gap_shares(costs: Iterable[tuple[int, str, int, int]]) -> dict[tuple[int, str], float]:
    """Per stage and kind of action, the share of gaps in its time; the actions of each are summed.

    Args:
        costs: Stage, kind, duration and time of kernels of each action, ns.
    """
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for stage, kind, duration, kernels in costs:
        sums[stage, kind][0] += duration
        sums[stage, kind][1] += min(kernels, duration)
    return {key: 1 - kernels / duration for key, (duration, kernels) in sorted(sums.items()) if duration}


def busy_ns(segment: Segment) -> int:
    """For how long an action's kernels ran, or its collectives: what waits for another rank waits for no host."""
    first, last = segment.start_ns, segment.end_ns
    kernels = [(k.start_ns, k.end_ns) for k in segment.kernels if k.is_compute or k.is_collective]
    # Collectives may begin before an action's own kernels, or end after them.
    return total_ns([(start if start > first else first, end if end < last else last) for start, end in kernels])


def gaps_of(segments: Iterable[Segment]) -> dict[tuple[int, str], float]:
    """The same of actions as they were recorded."""
    return gap_shares((s.stage, s.kind.value, s.end_ns - s.start_ns, busy_ns(s)) for s in segments)


def notes_on_gaps(shares: Mapping[tuple[int, str], float]) -> Notices:
    """Which actions are full of gaps, and what that means; empty if none is."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for (stage, kind), share in sorted(shares.items()):
        if share >= WORTH_TELLING:
            by_kind[kind].append(f"{share:.0%} on stage {stage}")
    if not by_kind:
        return Notices()
    listed = "; ".join(f"{kind} {', '.join(listed_stages)}" for kind, listed_stages in by_kind.items())
    notes = Notices()
    notes.add(NoticeCode.HOST_GAPS, f"gaps between kernels count as compute, and are much of it: {listed}")
    if max(shares.values()) >= HOST_BOUND:
        notes.add(
            NoticeCode.HOST_BOUND,
            "the host holds the device back there, and a profiler slows the host: real steps can be much shorter "
            "(with such gaps, profiled steps took 7 to 42 % longer on H100 recordings)",
        )
    return notes
