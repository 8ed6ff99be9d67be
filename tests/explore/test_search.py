"""The search: bounds are bounds, it finds what judging everything finds, and more of a resource is never worse."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.thorough import spread

from tracetool.errors import ScenarioError
from tracetool.estimates.device import A100
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import Experts, Transformer
from tracetool.explore import progress
from tracetool.explore.bounds import bounds_of
from tracetool.explore.candidates import candidates
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.judge import Judge
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.progress import SearchWork
from tracetool.explore.search import PlanSearch, search
from tracetool.explore.space import Space, read_axes
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.explore.space import AxisName, Values

DEVICE = replace(A100, hbm_bandwidth_bytes_per_s=1631 * 10**9, processors=108, tile_overhead=128, kernel_ns=5000)
GIGABYTE = 10**9


def drawn_space(seed: int) -> Space:
    """A small job on two or three DCs, of links, sizes and axes at random."""
    draw = Random(seed)  # noqa: S311 - no secret
    model = Transformer(
        name="drawn", layers=draw.choice([8, 16]), hidden=draw.choice([1024, 4096]), heads=16, kv_heads=4, ffn=8192,
        vocabulary=32000, gated=True, fused_attention=draw.random() < 0.5,
        experts=draw.choice([None, None, Experts(8, 2)]),
    )  # fmt: skip
    dcs = draw.choice([2, 3])
    tiers = (
        Tier("hb", 4, 300 * GIGABYTE, 1_000),
        Tier("dc", 8, 25 * GIGABYTE, 5_000),
        Tier(
            "wan", 8 * dcs, draw.choice([1, 10, 100]) * GIGABYTE, draw.choice([10_000, 1_000_000, 20_000_000]),
            shared_by=draw.choice(["pair", "group"]), connections=draw.choice([1, 8]),
        ),
    )  # fmt: skip
    training = Training(
        2, 2, 16 // draw.choice([1, 2]), 1, 2048, 0.6, data=4, sharded_optimizer=draw.random() < 0.5,
        sequence_parallel=draw.random() < 0.5,
    )  # fmt: skip
    hbm = draw.choice([8, 16, 80]) * GIGABYTE
    workload = Workload(model, DEVICE, NetworkChoice(Network("drawn", tiers), "tp,dp,pp"), hbm)
    listed = {
        "schedule": draw.sample(["1f1b", "gpipe", "geopipe", "interleaved", "zb-h1", "zb-v", "hanayo", "v-half"], 3),
        "recompute": draw.choice([["none"], ["none", "full"]]),
        "sharing": draw.choice([["spatial"], ["spatial", "temporal"]]),
        "depth": ["2"], "chunks": ["1", "2"], "microbatch": draw.choice([["1"], ["1", "2"]]),
        "p2p": draw.choice([["grouped", "in-order"], ["grouped", "per-edge"]]),
    }  # fmt: skip
    rules = ["placement=tp,ep,dp,pp; tp,pp,ep,dp"]
    tried = [*rules, *(f"{axis}={','.join(values)}" for axis, values in listed.items())]
    return Space(workload, JobPlan(training, "tp,dp,pp"), read_axes([], tried))


# A bound that is too high prunes the best plan of few jobs: each seed is another job.
@spread("seed", range(20), 2)
def test_the_best_plan_is_that_of_judging_everything(seed: int) -> None:
    """Bounds hold for every plan, and none that was pruned beats the best one."""
    space = drawn_space(seed)
    judge = Judge(space.workload)
    held = candidates(space)
    bounds = bounds_of(judge, held.bases)
    plans = [base.at(number) for base in held.bases for number in range(base.size)]
    assert 30 < len(plans) <= 5000
    assert len(set(plans)) == len(plans)
    everything = judge.judge(plans)
    for done, step_ns, memory_bytes in zip(everything, bounds.step_ns, bounds.memory_bytes, strict=True):
        assert not done.runs or step_ns <= done.step_ns, done.plan.text
        assert not done.peak_hbm_bytes or memory_bytes <= done.peak_hbm_bytes
    runs = [done for done in everything if done.runs]
    found = search(space, exhaustive=0, rival_ratio=0.0)
    assert found.candidates == len(plans)
    if not runs:
        assert found.best is None
        return
    best = min(runs, key=lambda done: done.step_ns)
    assert found.best is not None
    assert found.best.step_ns == best.step_ns
    assert found.is_proven
    pruned = found.pruned["compute"] + found.pruned["busiest link"]
    assert pruned + found.pruned["memory"] + found.replayed + sum(found.refused.values()) == len(plans)


# Seeds are other jobs on other fleets.
@spread("seed", range(2), 1)
def test_more_of_a_resource_is_never_worse(seed: int) -> None:
    space = drawn_space(seed)
    network, device = space.workload.choice, space.workload.device
    first = search(space).best
    more = (
        replace(space.workload, hbm_bytes=2 * space.workload.hbm_bytes),
        replace(space.workload, choice=network.with_figure("wan", "bandwidth", 500 * GIGABYTE)),
        replace(space.workload, choice=network.with_figure("wan", "latency", 0)),
        replace(space.workload, choice=network.with_figure("dc", "bandwidth", 100 * GIGABYTE)),
        replace(space.workload, device=replace(device, peak_flops=2 * device.peak_flops)),
    )
    for workload in more:
        then = search(replace(space, workload=workload)).best
        if first is not None:
            assert then is not None
            assert then.step_ns <= first.step_ns


def test_memory_budgets_give_the_fastest_plan_that_fits() -> None:
    space = drawn_space(3)
    judge = Judge(space.workload)
    whole = PlanSearch(space, judge)
    held = candidates(space)
    runs = [done for done in judge.judge([b.at(n) for b in held.bases for n in range(b.size)]) if done.runs]
    best = whole.run().best
    assert best is not None
    for share in (0.9, 0.7, 0.5):
        budget = int(best.peak_hbm_bytes * share)
        fitting = [done.step_ns for done in runs if done.peak_hbm_bytes <= budget]
        found = whole.run(hbm_bytes=budget).best
        assert (found.step_ns if found else None) == min(fitting, default=None)


def test_a_search_goes_on_from_its_file_and_is_the_same_with_more_workers(tmp_path: Path) -> None:
    """Bounds of two processes, a search that was stopped early, one that goes on, and one at once."""
    space = drawn_space(2)
    judge = Judge(space.workload)
    whole = PlanSearch(space, judge).run()
    path = tmp_path / "search.npz"
    first = PlanSearch(space, judge, SearchWork(jobs=2, state=path, ends=time.monotonic())).run()
    assert first.open > 0
    assert not first.is_proven
    assert whole.best is not None
    assert first.best is not None
    assert first.bound_ns <= whole.best.step_ns <= first.best.step_ns
    told: list[int] = []
    on = PlanSearch(space, judge, SearchWork(state=path, best_so_far=told.append)).run()
    assert [(one.plan, one.step_ns) for one in on.judged] == [(one.plan, one.step_ns) for one in whole.judged]
    assert told[-1] == whole.best.step_ns
    assert [each.name for each in tmp_path.iterdir()] == ["search.npz"]
    other = drawn_space(1)
    with pytest.raises(ScenarioError, match="of another space"):
        PlanSearch(other, Judge(other.workload), SearchWork(state=path))


def test_a_search_whose_time_is_up_while_plans_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bases have no bound then, nothing is known of how fast theirs are, and the file goes on with the others."""
    monkeypatch.setattr(progress, "_PIECE", 3)
    space = drawn_space(2)
    judge = Judge(space.workload)
    whole = PlanSearch(space, judge).run()
    path = tmp_path / "search.npz"
    first = PlanSearch(space, judge, SearchWork(jobs=1, state=path, ends=time.monotonic())).run()
    assert 0 < first.unbounded < first.candidates == whole.candidates
    assert first.bound_ns == 0
    looked = sum(first.pruned.values()) + first.replayed + first.refused.total()
    assert looked + first.open == first.candidates
    on = PlanSearch(space, judge, SearchWork(jobs=1, state=path)).run()
    assert [(one.plan, one.step_ns) for one in on.judged] == [(one.plan, one.step_ns) for one in whole.judged]
    assert (on.pruned, on.open, on.bound_ns) == (whole.pruned, 0, whole.bound_ns)


def test_axes_are_read_as_they_are_written() -> None:
    found: dict[AxisName, Values] = read_axes(["tp=8", "beside=on"], ["schedule=1f1b,zb-h1", "placement=tp,pp;tp,dp"])
    assert found == {"tp": (8,), "beside": (True,), "schedule": ("1f1b", "zb-h1"), "placement": ("tp,pp", "tp,dp")}


# Seeds are other jobs on other fleets.
@spread("seed", [1, 3], 1)
def test_budgets_of_bytes_over_the_link_give_the_fastest_plan_within_them(seed: int) -> None:
    """Of all plans judged one by one, each with the bytes that it moves."""
    space = drawn_space(seed)
    judge = Judge(space.workload)
    whole = PlanSearch(space, judge)
    held = candidates(space)
    runs = [done for done in judge.judge([b.at(n) for b in held.bases for n in range(b.size)]) if done.runs]
    moved = [tier_bytes(space.workload, done.plan)[-1] for done in runs]
    assert len(set(moved)) > 3
    for budget in sorted(set(moved))[:3]:
        within = [done.step_ns for done, size in zip(runs, moved, strict=True) if size <= budget]
        found = whole.run(crossing_bytes=budget)
        assert found.best is not None
        assert found.best.step_ns == min(within)
        counted = sum(found.pruned.values()) + found.replayed + sum(found.refused.values())
        assert counted == found.candidates
    assert whole.run(crossing_bytes=min(moved) - 1).best is None
