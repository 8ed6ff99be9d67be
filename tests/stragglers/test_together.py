"""Ranks that share layers: an action takes on all of them what it takes on the slowest, whose own times alone count.

The oracle is the simulator of ``made_job``, with nothing of the product in it: a rank that takes the mean is one whose
kernels are that much slower, as collectives within actions take the same on all.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.made_job import KERNELS, MadeJob, simulate
from helpers.made_traces import write_job
from helpers.thorough import spread

from tracetool.ingestion.runs import ingest
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction import record_steps
from tracetool.stragglers import find_stragglers
from tracetool.stragglers.together import waits_inside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


SLOW, SLOWER = 6, 0.2
"""A rank of stage 1, and by how much its kernels take longer."""
PARALLEL = {"tensor": (2, 1, 2), "context": (1, 2, 2), "both": (2, 2, 1)}
"""Ranks of a tensor group, of a context group and of a data-parallel one."""
MEAN = 1 + SLOWER / 12


def made_job(parallel: str, slow: Mapping[int, float]) -> MadeJob:
    tp, cp, dp = PARALLEL[parallel]
    return MadeJob(pp=3, dp=dp, tp=tp, cp=cp, microbatches=4, layers=1, slow=slow)


@cache
def step_ns(parallel: str, slow: tuple[tuple[int, float], ...]) -> int:
    (step,) = simulate(made_job(parallel, dict(slow))).step_ns
    return step


# Groups of one kind by themselves are another part of what is put together.
@spread("parallel", PARALLEL, ["both"])
def test_a_slow_rank_is_blamed_and_its_peers_are_not(parallel: str, tmp_path: Path) -> None:
    """Today's step, and the same with the rank or all taking the mean, are those of the simulator but for its gaps."""
    write_job(tmp_path / "traces", made_job(parallel, {SLOW: 1 + SLOWER}))
    result = find_stragglers(ingest(tmp_path / "traces", tmp_path / "x.run"))
    measured = step_ns(parallel, ((SLOW, 1 + SLOWER),))
    every = dict.fromkeys(range(12), MEAN)
    truth = {
        "rank": measured - step_ns(parallel, ((SLOW, MEAN),)),
        "all": measured - step_ns(parallel, tuple(every.items())),
        "others": step_ns(parallel, tuple((every | {SLOW: 1 + SLOWER}).items())),
    }
    (step,) = result.steps
    assert step.measured_ns - step.equalized_ns == pytest.approx(truth["all"], rel=0.01)
    worst = result.worst("rank")
    assert worst is not None
    assert worst.name == str(SLOW)
    assert worst.saved_ns == pytest.approx(truth["rank"], rel=0.01)
    assert worst.alone_ratio * worst.equalized_ns == pytest.approx(truth["others"], rel=0.01)
    assert result.slow_rank is not None
    assert result.slow_rank.rank == SLOW
    # All others take less than the mean by themselves: with it, they win nothing, and cost nothing as the only ones.
    others = [s for s in result.suspects if s.axis == "rank" and s is not worst]
    assert len(others) == 11
    assert all(s.saved_ns <= 0 and s.alone_ratio == pytest.approx(1, abs=0.001) for s in others)


@pytest.mark.parametrize("parallel", ["tensor", "context"])
def test_without_its_waits_an_action_takes_its_kernels_and_transfers(parallel: str, tmp_path: Path) -> None:
    """Of drawn times, to the ns: what is left is what the simulator drew, from the first kernel to the last one."""
    tp, cp, _ = PARALLEL[parallel]
    job = MadeJob(pp=2, dp=1, tp=tp, cp=cp, microbatches=3, layers=2, jitter_ratio=0.1, slow={2: 1.3})
    simulated = write_job(tmp_path / "traces", job)
    run = ingest(tmp_path / "traces", tmp_path / "x.run")
    for number in range(2):
        (recorded,) = record_steps(run, pipeline=number)
        inside = waits_inside(recorded)
        assert set(inside) == {(stage.stage, kind) for stage in recorded.pipeline.stages for kind in stage.costs}
        for (stage, kind), waits in inside.items():
            assert waits is not None
            costs = recorded.pipeline.stages[stage].costs[kind]
            acts = [
                act for act in simulated.acts[recorded.group.ranks[stage]][0]
                if (act.stage, act.kind) == (stage, kind.value[0])
            ]  # fmt: skip
            assert len(acts) == len(costs)
            for act, cost, wait in zip(acts, costs, waits, strict=True):
                spans = [span for span in act.spans if span.peer < 0]
                computing = [n for n, span in enumerate(spans) if span.what in KERNELS[act.kind]]
                mine = spans[computing[0] : computing[-1] + 1]
                moving = {"tp": job.tensor_ns, "cp": job.context_ns}
                took = sum(moving.get(span.what, span.end_ns - span.start_ns) for span in mine)
                gaps = sum(after.start_ns - before.end_ns for before, after in pairwise(mine))
                assert cost.duration_ns - wait == took + gaps


def test_what_peers_that_were_not_recorded_take_is_not_known(tmp_path: Path) -> None:
    job = made_job("tensor", {SLOW: 1 + SLOWER})
    write_job(tmp_path / "traces", job, ranks=[rank for rank in range(job.world) if job.place(rank).t == 0])
    result = find_stragglers(ingest(tmp_path / "traces", tmp_path / "x.run"))
    assert [note.code for note in result.notes].count(NoticeCode.PEERS_UNMATCHED) == 1
    assert len(result.ranks) == 2
