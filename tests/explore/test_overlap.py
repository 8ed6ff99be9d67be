"""Overlap inside layers as an axis: bounds stay bounds, the best is that of judging everything, and estimates agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.drawn_jobs import DEVICE
from helpers.thorough import is_asked

from tracetool.errors import ScenarioError
from tracetool.estimates.estimating import Job, estimate
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B
from tracetool.explore.answer import explore
from tracetool.explore.bounds import bounds_of
from tracetool.explore.candidates import candidates
from tracetool.explore.checks import checked_space
from tracetool.explore.file import read_plan
from tracetool.explore.judge import Judge
from tracetool.explore.launch import launches
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.search import search
from tracetool.explore.space import Space, read_axes
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.explore.space import AxisName

GIGABYTE = 10**9
HOST = Tier("host", 4, 20 * GIGABYTE, 3_000, collective_blocks=4)
TRAINING = Training(tensor=4, stages=2, microbatches=4, batch=1, sequence=4096, efficiency_ratio=0.7, recompute="full")
SMALL = ["pp=1,2", "tp=1,2,4", "schedule=1f1b,zb-h1", "microbatch=1,2", "placement=tp,pp", "recompute=none,full"]


def space_of(*tried: str, inner: Tier = HOST) -> Space:
    """Eight devices in two hosts whose GPUs reach each other through its memory."""
    wan = Tier("wan", 8, 5 * GIGABYTE, 100_000, shared_by="pair", collective_blocks=2)
    workload = Workload(LLAMA_2_13B, DEVICE, NetworkChoice(Network("hosts", (inner, wan)), "tp,pp"), 1 << 60)
    return Space(workload, JobPlan(TRAINING, "tp,pp"), read_axes([], tried))


def test_bounds_hold_and_nothing_beats_the_best() -> None:
    """Every candidate is judged, in every way to overlap."""
    # One of sizes, recomputing and orders by default: what all of them hold is tried of drawn spaces (test_search).
    tried = SMALL if is_asked() else ["pp=2", "tp=1,4", "schedule=1f1b,zb-h1", "placement=tp,pp", "recompute=none"]
    space = space_of(*tried, "overlap=none,slice:2,slice:4,p2p,async-tp")
    judge, held = Judge(space.workload), candidates(space)
    bounds = bounds_of(judge, held.bases)
    plans = [base.at(number) for base in held.bases for number in range(base.size)]
    assert {plan.training.overlap for plan in plans} == {"none", "slice:2", "slice:4", "p2p"}
    done = judge.judge(plans)
    assert all(one.runs and low <= one.step_ns for one, low in zip(done, bounds.step_ns, strict=True))
    best = min(done, key=lambda one: one.step_ns)
    results = search(space, judge, exhaustive=0, rival_ratio=0.0)
    assert results.best is not None
    assert results.best.step_ns == best.step_ns
    assert results.pruned.total() + results.replayed == len(plans) == results.candidates
    # Without tensor parallelism nothing overlaps; copy engines reach no further than NVLink.
    assert any("without tensor parallelism" in reason for reason in results.left_out)
    assert any("NVLink alone" in reason for reason in results.left_out)


def test_a_plan_that_overlaps_takes_what_its_estimate_says() -> None:
    space = space_of("overlap=none,slice:2")
    plain, sliced = (replace(TRAINING, overlap=way) for way in ("none", "slice:2"))
    choice = space.workload.choice
    before, after = Judge(space.workload).judge([JobPlan(each, "tp,pp") for each in (plain, sliced)])
    for how, judged in ((plain, before), (sliced, after)):
        assert estimate(Job("plan", LLAMA_2_13B, DEVICE, how), choice).step_ns == judged.step_ns
    assert after.step_ns < before.step_ns


# Of a recording overlap is an axis of its own by default (test_recorded).
@pytest.mark.thorough
def test_it_is_a_choice_of_its_own() -> None:
    """Slicing pays through host memory, in the same order and at the same degrees."""
    kept: frozenset[AxisName] = frozenset(
        {"tp", "pp", "dp", "cp", "placement", "schedule", "p2p", "chunks", "microbatch", "recompute"}
    )
    space = replace(space_of("overlap=none,slice:2,slice:4"), left=kept)
    done = explore(space)
    alone = {one.name: one.judged for one in done.alone}
    assert done.best is not None
    assert done.best.plan.training.overlap.startswith("slice:")
    assert alone["overlap"] is not None
    assert alone["overlap"].step_ns == done.best.step_ns < done.base.step_ns
    assert f"layers overlap by {done.best.plan.training.overlap}" in done.best.plan.text


def test_a_fleet_that_does_not_tell_is_refused_ahead_of_the_search() -> None:
    silent = space_of("overlap=slice:2", inner=replace(HOST, collective_blocks=0))
    tiers = tuple(replace(tier, collective_blocks=0) for tier in silent.workload.choice.network.tiers)
    network = replace(silent.workload.choice.network, tiers=tiers)
    workload = replace(silent.workload, choice=replace(silent.workload.choice, network=network))
    with pytest.raises(ScenarioError, match="how many SMs") as error:
        checked_space(replace(silent, workload=workload))
    assert "collective_blocks" in (error.value.hint or "")
    device = replace(DEVICE, processors=0)
    with pytest.raises(ScenarioError, match="processors are not said"):
        checked_space(replace(silent, workload=replace(silent.workload, device=device)))


def test_a_plan_in_a_file_says_it_and_frameworks_are_told_what_they_know(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('overlap = "async-tp"\n', "utf-8")
    nvlink = replace(HOST, bandwidth_bytes_per_s=300 * GIGABYTE, collective_blocks=24)
    space = space_of(inner=nvlink)
    plan = read_plan(path, space.base)
    assert plan.training.overlap == "async-tp"
    megatron, titan = launches(space.workload, plan)
    assert ("--parallelism.enable_async_tensor_parallel",) in titan.flags
    assert not [said for said in titan.unsaid if "overlap" in said]
    assert [said for said in megatron.unsaid if "overlap by async-tp" in said]
    sliced = replace(plan, training=replace(plan.training, overlap="slice:2"))
    assert [said for said in launches(space.workload, sliced)[1].unsaid if "overlap by slice:2" in said]
    path.write_text('overlap = "fused"\n', "utf-8")
    with pytest.raises(ScenarioError, match="a bound"):
        read_plan(path, space.base)
