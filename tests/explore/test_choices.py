"""Choices alone and one by one, within the space that was asked for."""

from __future__ import annotations

from helpers.drawn_jobs import DEVICE

from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B
from tracetool.explore.answer import explore
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.space import Space
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

TRAINING = Training(tensor=4, stages=2, microbatches=4, batch=1, sequence=4096, efficiency_ratio=0.7, recompute="full")


def test_what_is_left_stays_left_in_each_choice_alone() -> None:
    """Without recomputation a step is shorter; a choice that may not make it cannot be shorter than all together."""
    network = Network("one DC", (Tier("hb", 4, 450 * 10**9), Tier("rail", 8, 50 * 10**9)))
    workload = Workload(LLAMA_2_13B, DEVICE, NetworkChoice(network), 1 << 60)
    space = Space(workload, JobPlan(TRAINING), {"schedule": ("1f1b",)}, frozenset({"recompute", "tp", "depth"}))
    assert space.only("recompute", "schedule").values("recompute") == ("full",)
    done = explore(space)
    assert done.best is not None
    for one in (*done.alone, done.one_by_one):
        assert one.judged is not None
        assert one.judged.plan.training.recompute == "full"
        assert one.judged.step_ns >= done.best.step_ns
