"""Very many jobs at once, for a search: those of one shape are replayed together, by the same engine.

What depends on the shape alone (order, task graph, how many microbatches a rank holds) is worked out once per shape.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tracetool.estimate.estimating import Estimate, told_of
from tracetool.estimate.memory import transient_bytes
from tracetool.estimate.stages import JobCosts, schedule_of, transport_of
from tracetool.model.action import ActionKind
from tracetool.model.notice import unasked
from tracetool.model.topology import Topology
from tracetool.replays.compiled import Compiled
from tracetool.replays.sweeping import Durations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimate.estimating import Job
    from tracetool.model.notice import Progress
    from tracetool.network.file import NetworkChoice
    from tracetool.replays.flow import Int32s, Int64s

_TOGETHER = 256
"""Jobs of one sweep of the engine."""


@dataclass(frozen=True)
class _Shape:
    """What jobs of one shape have in common.

    Attributes:
        compiled: Their task graph.
        rows: Per cost class, the row of the table of times; the first one holds no time.
        last: Per pipeline rank, the task of its last action.
        most: Per pipeline rank, how many microbatches its stages hold at most.
        most_last: The same while the last stage's forward runs.
    """

    compiled: Compiled
    rows: Int32s
    last: Int32s
    most: tuple[int, ...]
    most_last: int


def estimate_many(jobs: Sequence[Job], choice: NetworkChoice, progress: Progress | None = None) -> list[Estimate]:
    """What ``estimate`` gives of each job.

    Args:
        jobs: What to estimate.
        choice: The network of all.
        progress: Told how many jobs there are, and how many are estimated.

    Raises:
        ScenarioError: If something does not divide, or a figure is not positive.
        BadTopology: If a job does not fit on the network.
    """
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        job.training.check(job.model, job.device)
        alike[job.training.stages, job.training.chunks, job.training.microbatches].append(number)
    done: dict[int, Estimate] = {}
    progress = progress or unasked()
    progress.start(len(jobs))
    for key, numbers in alike.items():
        shape = _shape(*key)
        for first in range(0, len(numbers), _TOGETHER):
            some = numbers[first : first + _TOGETHER]
            done.update(zip(some, _estimates(shape, [jobs[number] for number in some], choice), strict=True))
            progress.advance(len(some))
    return [done[number] for number in range(len(jobs))]


@lru_cache(maxsize=64)
def _shape(ranks: int, chunks: int, microbatches: int) -> _Shape:
    import numpy as np

    order = schedule_of(ranks, chunks, microbatches)
    compiled = Compiled(order, "grouped" if chunks == 1 else "per-edge", Topology())
    rows = np.zeros(compiled.classes, np.int32)
    for number, action in enumerate(compiled.graph.flow.actions, 1):
        rows[number] = 1 + 4 * action.stage + (action.kind is ActionKind.BACKWARD)
    for way in compiled.ways:
        rows[[way.move, way.copy]] = 3 + 4 * way.message.src_stage + (way.message.kind is ActionKind.BACKWARD)
    last = compiled.graph.compute[compiled.graph.flow.first[1:] - 1]
    most = []
    most_last = 0
    for actions in order.orders:
        level = highest = 0
        for action in actions:
            forward = action.kind is ActionKind.FORWARD
            level += 1 if forward else -1
            highest = max(highest, level)
            if forward and action.stage == order.shape.stages - 1:
                most_last = max(most_last, level)
        most.append(highest)
    return _Shape(compiled, rows, last.astype(np.int32), tuple(most), most_last)


def _costs(job: Job, choice: NetworkChoice) -> JobCosts:
    with told_of(job):
        return JobCosts(job.model, job.device, job.training, transport_of(job.device, job.training, choice))


def _estimates(shape: _Shape, jobs: Sequence[Job], choice: NetworkChoice) -> Iterator[Estimate]:
    import numpy as np

    made = [_costs(job, choice) for job in jobs]
    times = np.array([[0, *_times(costs, job)] for costs, job in zip(made, jobs, strict=True)], np.int64).T
    values: Int64s = times[shape.rows]
    everything = np.arange(len(shape.rows), dtype=np.int32)
    durations = Durations(values[:, 0].copy(), everything, values)
    ends, computed = shape.compiled.ends_and_compute(durations, shape.last)
    for job, costs, ended, compute in zip(jobs, made, ends.T.tolist(), computed[0].tolist(), strict=True):
        yield _estimate(shape, job, costs, ended, compute)


def _times(costs: JobCosts, job: Job) -> Iterator[int]:
    """Of each stage in turn; those between the first and the last are equal but for where their messages go."""
    for stage in range(job.training.stages * job.training.chunks):
        yield from costs.of(stage)


def _estimate(shape: _Shape, job: Job, costs: JobCosts, ended: Sequence[int], compute: int) -> Estimate:
    ranks = range(job.training.stages)
    tails = [{part.kind: part.duration_ns for part in costs.tail(rank)} for rank in ranks]
    kept = costs.kept_bytes()
    beyond = [transient_bytes(job.model, job.training, is_last=is_last) for is_last in (False, True)]
    only_last = job.training.chunks == 1
    peaks = []
    for rank in ranks:
        is_end = rank == ranks[-1]
        held = shape.most[rank] * kept + beyond[is_end and only_last]
        peaks.append(costs.static_bytes(rank) + max(held, shape.most_last * kept + beyond[1] if is_end else 0))
    return Estimate(
        job=job,
        step_ns=max(end + sum(tail.values()) for end, tail in zip(ended, tails, strict=True)),
        window_ns=max(ended),
        peak_hbm_bytes=tuple(peaks),
        compute_ns=compute // len(ranks),
        reduction_ns=max(tail.get(ActionKind.REDUCE_GRAD, 0) for tail in tails),
        optimizer_ns=max(tail.get(ActionKind.OPTIMIZER, 0) for tail in tails),
    )
