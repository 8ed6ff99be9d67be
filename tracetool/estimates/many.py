"""Very many jobs at once, for a search: those of one form are replayed together, by the same engine.

What depends on the form alone (order, task graph, how many microbatches a rank holds) is worked out once.
"""

from __future__ import annotations

from collections import defaultdict
from operator import add
from typing import TYPE_CHECKING

from tracetool.estimates.estimating import Estimate, naming
from tracetool.estimates.form import OrderKey, form_of
from tracetool.estimates.stages import JobCosts
from tracetool.estimates.transport import placed
from tracetool.model.action import ActionKind
from tracetool.model.notice import unasked
from tracetool.replays.sweeping import Durations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.estimating import Job
    from tracetool.estimates.form import OrderForm
    from tracetool.estimates.transport import OverTiers
    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import P2PMode
    from tracetool.network.file import NetworkChoice
    from tracetool.replays.flow import Int64s

_TOGETHER = 256
"""Jobs of one sweep of the engine."""


def estimate_many(jobs: Sequence[Job], choice: NetworkChoice, progress: Progress | None = None) -> list[Estimate]:
    """What ``estimate`` gives of each job.

    Args:
        jobs: What to estimate.
        choice: The network of all that have none of their own.
        progress: Told how many unlike pipelines they have, and how many are estimated.

    Raises:
        ScenarioError: If something does not divide, or a figure is not positive.
        BadTopology: If a job does not fit on the network.
    """
    lanes: dict[tuple[OrderKey, P2PMode, tuple[int, ...]], list[tuple[int, OverTiers]]] = defaultdict(list)
    for number, job in enumerate(jobs):
        training = job.training
        training.check(job.model, job.device)
        with naming(job):
            unlike = placed(job.network or choice, training.degrees)
        for over in unlike:
            places = () if training.messages_hold_up else over.places
            lanes[OrderKey.of(training), training.mode, places].append((number, over))
    done: dict[int, Estimate] = {}
    progress = progress or unasked()
    progress.start(sum(map(len, lanes.values())))
    for key, alike in lanes.items():
        form = form_of(*key)
        for first in range(0, len(alike), _TOGETHER):
            some = alike[first : first + _TOGETHER]
            asked = [jobs[number] for number, _ in some]
            costs = [
                JobCosts(job.model, job.device, job.training, over) for job, (_, over) in zip(asked, some, strict=True)
            ]
            for (number, _), took in zip(some, estimates_of(form, asked, costs), strict=True):
                before = done.get(number)
                done[number] = took if before is None or took.step_ns > before.step_ns else before
            progress.advance(len(some))
    return [done[number] for number in range(len(jobs))]


def estimates_of(form: OrderForm, jobs: Sequence[Job], costs: Sequence[JobCosts]) -> Iterator[Estimate]:
    """Replay jobs of one form together.

    Args:
        form: What they have in common.
        jobs: The jobs.
        costs: Of each, over what its messages and collectives pass.
    """
    import numpy as np

    times = np.array([each.figures() for each in costs], np.int64).T
    values: Int64s = times[form.rows]
    everything = np.arange(len(form.rows), dtype=np.int32)
    durations = Durations(values[:, 0].copy(), everything, values)
    ends, computed = form.compiled.ends_and_compute(durations, form.last, parts=form.copies)
    for job, each, ended, compute in zip(jobs, costs, ends.T.tolist(), computed[-1].tolist(), strict=True):
        yield _estimate(form, job, each, ended, compute)


def _estimate(form: OrderForm, job: Job, costs: JobCosts, ended: Sequence[int], compute: int) -> Estimate:
    ranks = range(job.training.stages)
    tails = [{part.kind: part.duration_ns for part in costs.tail(rank)} for rank in ranks]
    behind = [sum(tail.values()) for tail in tails]
    # Of pipelines side by side the one that ends last counts, the first of several.
    parts = [ended[first : first + len(ranks)] for first in range(0, len(ended), len(ranks))]
    steps = [max(map(add, part, behind)) for part in parts]
    return Estimate(
        job=job,
        step_ns=max(steps),
        window_ns=max(parts[steps.index(max(steps))]),
        peak_hbm_bytes=costs.peaks_bytes(form.held),
        compute_ns=compute // len(ranks),
        reduction_ns=max(tail.get(ActionKind.REDUCE_GRAD, 0) for tail in tails),
        optimizer_ns=max(tail.get(ActionKind.OPTIMIZER, 0) for tail in tails),
    )
