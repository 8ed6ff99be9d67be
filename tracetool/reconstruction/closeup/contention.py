"""How long a kernel takes when no communication kernel holds SMs beside it.

A communication kernel that waits keeps its SMs, and kernels beside it take up to twice as long. Those that ran
alone tell what a kernel costs by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from tracetool.reconstruction.actions import Kernel, RankWork, Segment
    from tracetool.store.run import Run

_ENOUGH = 3
_ALIKE = 0.05
"""Runs whose shares beside a communication kernel differ by less count as beside it for equally long."""

_SQL = """
SELECT DISTINCT rank, start_ns, end_ns
FROM comms
WHERE list_contains($ranks, rank) AND start_ns < $last AND end_ns > $first
  AND (NOT $messages OR operation IN ('send', 'recv'))
  AND (stream IS NOT NULL OR thread IS NULL)  -- on a device: the host's own work (gloo) holds none of it
ORDER BY rank, start_ns, end_ns
"""


@dataclass(frozen=True, slots=True)
class Resident:
    """When communication kernels were on a device: disjoint spans in order.

    Attributes:
        starts: Starts in ns.
        ends: Ends in ns.
        before: Total length of the spans ahead of each, and of all at the end.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    def beside_ns(self, kernels: Sequence[Kernel]) -> list[int]:
        """Per kernel, for how much of its time a communication kernel was on the device."""
        import numpy as np

        if not len(self.starts):
            return [0] * len(kernels)
        low, high = (np.array([k[i] for k in kernels], np.int64) for i in (0, 1))
        lengths: list[int] = (self._until(high) - self._until(low)).tolist()
        return lengths

    def _until(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Length of the spans up to each time."""
        import numpy as np

        at = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(at - 1, 0)
        return self.before[at] - np.where(at > 0, np.maximum(self.ends[last] - times, 0), 0)


def resident(spans: Iterable[tuple[int, int]]) -> Resident:
    """Unite spans (start, end) in ns, sorted by start."""
    import numpy as np

    merged: list[list[int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    starts, ends = (np.array([span[i] for span in merged], np.int64) for i in (0, 1))
    return Resident(starts, ends, np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64))


def read_resident(
    run: Run, ranks: Sequence[int], first_ns: int, last_ns: int, *, messages: bool = False
) -> dict[int, Resident]:
    """When communication kernels were on each rank's device between two times; of sends and receives alone if asked."""
    spans: dict[int, list[tuple[int, int]]] = {rank: [] for rank in ranks}
    parameters = {"ranks": list(ranks), "first": first_ns, "last": last_ns, "messages": messages}
    for rank, start, end in run.rows(_SQL, parameters):
        spans[rank].append((start, end))
    return {rank: resident(of_rank) for rank, of_rank in spans.items()}


class KernelShare(NamedTuple):
    """What one kernel adds to its action: the launch gap ahead of it, then its own time beyond earlier kernels.

    Both are 0 for what is beside the compute stream. Over an action they sum to its duration.
    """

    gap_ns: int
    run_ns: int


def pieces(kernels: Sequence[Kernel]) -> list[KernelShare]:
    """Cut an action's time into what each of its kernels adds to it, in the kernels' own order."""
    timed = [i for i, k in enumerate(kernels) if k.is_compute] or list(range(len(kernels)))
    timed.sort(key=lambda i: (kernels[i].start_ns, kernels[i].end_ns))
    shares = [KernelShare(0, 0)] * len(kernels)
    at = kernels[timed[0]].start_ns
    for i in timed:
        start, end = max(kernels[i].start_ns, at), max(kernels[i].end_ns, at)
        shares[i] = KernelShare(start - at, end - start)
        at = end
    return shares


class Sample(NamedTuple):
    """One run of a kernel.

    Attributes:
        keys: What runs of the same kernel share, from the narrowest group of them to the widest.
        run_ns: What it took.
        beside_ns: For how much of that a communication kernel was on the device.
    """

    keys: tuple[Hashable, ...]
    run_ns: int
    beside_ns: int


@dataclass(slots=True)
class Alone:
    """What kernels take by themselves.

    Attributes:
        clean: Per key, median of the runs with nothing beside them, and how many those were.
        slowed: Per narrowest key of kernels that never ran alone, time and time beside of every run.
        never_alone: How many runs had no other one to go by.
    """

    clean: Mapping[Hashable, tuple[float, int]]
    slowed: Mapping[Hashable, Sequence[tuple[int, int]]]
    never_alone: int = field(default=0)
    _own_factors: dict[Hashable, float] = field(default_factory=dict)

    def run_ns(self, sample: Sample, factor: float) -> int:
        """A run without what slowed it down: its own time if nothing was beside it, else that of others.

        Args:
            sample: The run.
            factor: How much longer it takes beside a communication kernel: tells what kernels take that never ran
                alone.
        """
        if not sample.beside_ns:
            return sample.run_ns
        return min(sample.run_ns, round(self._others(sample.keys, factor)))

    def _others(self, keys: tuple[Hashable, ...], factor: float) -> float:
        known = [self.clean[key] for key in keys if key in self.clean]
        for value, count in known:
            if count >= _ENOUGH:
                return value
        if known:
            return max(known, key=lambda entry: entry[1])[0]
        self.never_alone += 1
        if keys[0] not in self._own_factors:
            self._own_factors[keys[0]] = _by_factor(self.slowed[keys[0]], factor)
        return self._own_factors[keys[0]]


def learn_alone(samples: Iterable[Sample]) -> Alone:
    """Learn from runs with nothing beside them what kernels take by themselves."""
    clean: dict[Hashable, list[int]] = defaultdict(list)
    every: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for sample in samples:
        if sample.beside_ns:
            every[sample.keys[0]].append((sample.run_ns, sample.beside_ns))
        else:
            for key in sample.keys:
                clean[key].append(sample.run_ns)
    return Alone(
        {key: (median(times), len(times)) for key, times in clean.items()},
        {key: runs for key, runs in every.items() if key not in clean},
    )


def _by_factor(runs: Sequence[tuple[int, int]], factor: float) -> float:
    """What a kernel takes alone, by the runs that were beside a communication kernel for the least share."""
    least = min(beside / run for run, beside in runs)
    return median(run - beside * (1 - 1 / factor) for run, beside in runs if beside / run <= least + _ALIKE)


class CostRow(NamedTuple):
    """A row of the table ``costs``; see there."""

    step: int
    rank: int
    stage: int
    kind: str
    microbatch: int
    duration_ns: int
    kernel_ns: int
    beside_ns: int


def cost_rows(step: int, work: Mapping[int, RankWork], beside: Mapping[int, Sequence[Sequence[int]]]) -> list[CostRow]:
    """Rows of the table ``costs`` for the actions of one step; collectives are no kernels of theirs.

    Args:
        step: Its number.
        work: What each rank computed.
        beside: Per rank and action, of each kernel how long a communication kernel was beside it.
    """
    rows = []
    for rank, of_rank in work.items():
        for s, beside_ns in zip(of_rank.segments, beside[rank], strict=True):
            runs = zip(s.kernels, pieces(s.kernels), strict=True)
            kernel_ns = sum(piece.run_ns for kernel, piece in runs if not kernel.is_collective)
            rows.append(
                CostRow(
                    step=step, rank=rank, stage=s.stage, kind=s.kind.value, microbatch=s.microbatch,
                    duration_ns=s.end_ns - s.start_ns, kernel_ns=kernel_ns, beside_ns=sum(beside_ns),
                )
            )  # fmt: skip
    return rows


def kernels_beside_ns(segments: Sequence[Segment], resident: Resident) -> list[list[int]]:
    """Per action and kernel of the compute stream, how long a communication kernel other than itself was there."""
    lengths = iter(resident.beside_ns([kernel for segment in segments for kernel in segment.kernels]))
    return [
        [next(lengths) * (kernel.is_compute and not kernel.is_collective) for kernel in segment.kernels]
        for segment in segments
    ]
