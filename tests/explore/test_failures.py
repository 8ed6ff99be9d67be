"""Failures of a fleet: against fleets that are built so, closed forms, and sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracetool.errors import ScenarioError, UnknownName
from tracetool.estimates.device import Accelerator
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B
from tracetool.explore.failures import FailureJudge, SlowGroup, parse_failure, weigh_failures
from tracetool.explore.judge import Judge
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.search import PlanSearch
from tracetool.explore.space import Space
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

GB, MS = 10**9, 10**6
DEVICE = Accelerator("500 TFLOPS", 500 * 10**12, 1 << 60)
TRAINING = Training(
    tensor=8, stages=2, microbatches=8, batch=1, sequence=4096, efficiency_ratio=1.0, data=4, has_head=False
)
PP, DP = "tp in hb, pp across wan", "tp in hb, dp across wan"


def fleet(wan_gb_per_s: int = 64, latency_ms: int = 1, rail_gb_per_s: int = 50) -> Workload:
    tiers = (
        Tier("hb", 8, 450 * GB, 1_000),
        Tier("dc", 32, rail_gb_per_s * GB, 5_000),
        Tier("wan", 64, wan_gb_per_s * GB, latency_ms * MS, shared_by="pair"),
    )
    return Workload(LLAMA_2_13B, DEVICE, NetworkChoice(Network("two DCs", tiers)), 1 << 60)


@pytest.mark.parametrize("rule", [PP, DP])
@pytest.mark.parametrize(
    ("failure", "built"),
    [("wan.bandwidth=50%", fleet(32)), ("dc.links=4/5", fleet(rail_gb_per_s=40)), ("wan.bandwidth=100%", fleet())],
)
def test_a_tier_with_less_is_a_fleet_that_is_built_so(rule: str, failure: str, built: Workload) -> None:
    plan = JobPlan(TRAINING, rule)
    (failing,) = FailureJudge(fleet(), parse_failure(failure, fleet().choice.network)).judge([plan])
    assert failing == Judge(built).judge([plan])[0]
    assert failing.runs


def test_groups_of_the_outermost_tier_are_those_that_it_joins() -> None:
    """Links of ``wan`` are called wan0-wan1: each end is a DC."""
    for number in (0, 1):
        assert (
            parse_failure(f"wan{number}.speed=80%", fleet().choice.network).slow
            == parse_failure(f"dc{number}.speed=80%", fleet().choice.network).slow
        )
    with pytest.raises(ScenarioError, match="no wan2") as caught:
        parse_failure("wan2.speed=80%", fleet().choice.network)
    assert caught.value.hint == "wan0 to wan1"


def test_pipelines_within_a_slow_dc_hold_up_all() -> None:
    """Data-parallel ranks in both DCs: the window is that of the slow one, gradients meet after it."""
    plan = JobPlan(TRAINING, DP)
    (whole,) = Judge(fleet()).judge([plan])
    for slow in ("dc0.speed=50%", "dc1.speed=50%"):
        (failing,) = FailureJudge(fleet(), parse_failure(slow, fleet().choice.network)).judge([plan])
        assert failing.reduction_ns == whole.reduction_ns
        assert failing.compute_ns == pytest.approx(2 * whole.compute_ns, rel=1e-6)
        assert failing.step_ns - failing.window_ns == whole.step_ns - whole.window_ns
        assert 1.9 * whole.window_ns < failing.window_ns <= 2 * whole.window_ns


@pytest.mark.parametrize(("slow", "factors"), [("dc0", (2, 1)), ("dc1", (1, 2))])
def test_stages_within_a_slow_dc_take_longer(slow: str, factors: tuple[int, int]) -> None:
    """1F1B of two stages with messages at once, one of them twice as slow, f and b of the other one.

    Behind: f, then 16 (f + b) without a pause, then b. Ahead: 16 (f + b), and a pause of b - f for the first gradient.
    """
    workload = fleet(10**6, 0, 10**6)
    plan = JobPlan(TRAINING, PP)
    judge = FailureJudge(workload, parse_failure(f"{slow}.speed=50%", workload.choice.network))
    ((_, costs),) = judge.costs(plan)
    (_, alone) = Judge(workload).costs(plan)[0]
    each = alone.of(0)
    assert [costs.of(stage).forward_ns for stage in (0, 1)] == [
        pytest.approx(factor * alone.of(stage).forward_ns, abs=1) for stage, factor in enumerate(factors)
    ]
    forward, backward = each.forward_ns, each.backward_ns
    beside = forward + backward if slow == "dc1" else backward - forward
    expected = 16 * (forward + backward) + beside
    (failing,) = judge.judge([plan])
    assert failing.window_ns == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize("slow", ["dc0", "dc1"])
def test_every_stage_within_a_slow_dc_takes_longer(slow: str) -> None:
    """Of four equal stages two take twice as long: ranks compute half as long again on average, whichever they are."""
    workload = fleet()
    plan = JobPlan(replace(TRAINING, stages=4, data=2), PP)
    (whole,) = Judge(workload).judge([plan])
    (failing,) = FailureJudge(workload, parse_failure(f"{slow}.speed=50%", workload.choice.network)).judge([plan])
    assert failing.compute_ns == pytest.approx(1.5 * whole.compute_ns, rel=1e-6)


def test_several_hold_at_once_and_for_a_share_of_the_time() -> None:
    found = parse_failure("wan.bandwidth=50%, wan.links=1/2,dc1.speed=80% @ 2%", fleet().choice.network)
    assert found.narrowed == (("wan", 0.25),)
    assert found.slow == (SlowGroup("dc", 1, 0.8),)
    assert found.weight_ratio == 0.02
    assert found.text == "wan.bandwidth=50%, wan.links=1/2,dc1.speed=80%"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wan", "is no failure"),
        ("wan.colour=50%", "is no failure"),
        ("wan.bandwidth=0%", "leaves 0%"),
        ("wan.bandwidth=150%", "leaves 150%"),
        ("wan.bandwidth=fast", "wan.bandwidth=fast"),
        ("dc.speed=50%", "'dc' is no group of devices"),
        ("dc2.speed=50%", "two DCs has no dc2"),
        ("wan.bandwidth=50%@200%", "no share of the time"),
    ],
)
def test_what_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_failure(text, fleet().choice.network)
    assert said in caught.value.message
    assert caught.value.hint


def test_tiers_that_are_not_there() -> None:
    with pytest.raises(UnknownName):
        parse_failure("lan.bandwidth=50%", fleet().choice.network)


def test_the_plan_that_is_best_then_and_over_all_the_time() -> None:
    """Gradients or messages over the link: with a twentieth of its bandwidth the other is best, and is over half the
    time."""
    workload = fleet(4000, 100)
    base = JobPlan(TRAINING, DP)
    space = Space(workload, base, {"placement": (DP, PP)}).only("placement")
    found = PlanSearch(space, Judge(workload)).run(exhaustive=10)
    assert found.best is not None
    assert found.best.plan.placement == DP
    half, seldom = (parse_failure(f"wan.bandwidth=0.05%@{share}", workload.choice.network) for share in ("50%", "1%"))
    done = weigh_failures(space, found, [half])
    (outcome,) = done.outcomes
    assert outcome.best is not None
    assert outcome.best.plan.placement == PP
    assert outcome.best.step_ns < outcome.kept.step_ns
    whole_pp = next(one.step_ns for one in found.judged if one.plan.placement == PP)
    assert done.kept is not None
    assert done.least_worst is not None
    assert done.least_expected is not None
    assert done.kept.expected_ns == pytest.approx((found.best.step_ns + outcome.kept.step_ns) / 2)
    assert done.least_expected.judged.plan.placement == PP
    assert done.least_expected.expected_ns == pytest.approx((whole_pp + outcome.best.step_ns) / 2)
    assert done.least_worst.worst_ns == outcome.best.step_ns
    often = weigh_failures(space, found, [seldom]).least_expected
    assert often is not None
    assert often.judged.plan.placement == (
        DP
        if found.best.step_ns * 0.99 + outcome.kept.step_ns * 0.01 < (whole_pp * 0.99 + outcome.best.step_ns * 0.01)
        else PP
    )
    assert weigh_failures(space, found, [replace(half, weight_ratio=None)]).least_expected is None


def test_shares_of_the_time_are_no_more_than_all_of_it() -> None:
    workload = fleet()
    space = Space(workload, JobPlan(TRAINING, DP)).only("placement")
    found = PlanSearch(replace(space, given={"placement": (DP,)}), Judge(workload)).run()
    many = [parse_failure(f"wan.bandwidth={left}%@60%", workload.choice.network) for left in (50, 25)]
    with pytest.raises(ScenarioError, match="120%"):
        weigh_failures(space, found, many)
    with pytest.raises(ScenarioError, match=r"wan\.bandwidth=25% holds is not said"):
        weigh_failures(space, found, [many[0], replace(many[1], weight_ratio=None)])
