"""Choices alone and one by one, within the space that was asked for."""

from __future__ import annotations

import time

from helpers.drawn_jobs import DEVICE

from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B
from tracetool.explore.answer import explore
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.progress import SearchWork
from tracetool.explore.space import Space
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

TRAINING = Training(tensor=4, stages=2, microbatches=4, batch=1, sequence=4096, efficiency_ratio=0.7, recompute="full")


NETWORK = Network("one DC", (Tier("hb", 4, 450 * 10**9), Tier("rail", 8, 50 * 10**9)))
SPACE = Space(
    Workload(LLAMA_2_13B, DEVICE, NetworkChoice(NETWORK), 1 << 60), JobPlan(TRAINING), {"schedule": ("1f1b",)},
    frozenset({"recompute", "tp", "depth"}),
)  # fmt: skip


def test_what_is_left_stays_left_in_each_choice_alone() -> None:
    """Without recomputation a step is shorter; a choice that may not make it cannot be shorter than all together."""
    assert SPACE.only("recompute", "schedule").values("recompute") == ("full",)
    done = explore(SPACE)
    assert done.best is not None
    assert done.cut_short == ()
    for one in (*done.alone, done.one_by_one):
        assert one.judged is not None
        assert one.judged.plan.training.recompute == "full"
        assert one.judged.step_ns >= done.best.step_ns


def test_what_there_was_no_time_for_is_said() -> None:
    """When the time is up before it began, one lot of plans is replayed, and nothing beside them is looked at."""
    done = explore(SPACE, work=SearchWork(ends=time.monotonic()))
    assert done.best is not None
    every = (*done.alone, done.one_by_one, *done.baselines, done.unproven)
    assert all(one.is_cut for one in every)
    assert not any(one.judged for one in (*done.alone, *done.baselines, done.unproven))
    assert done.turned == ()
    assert done.front == (done.best,)
    assert {one.name for one in every} < set(done.cut_short)
    assert {"less memory", "figures that are off"} <= set(done.cut)
