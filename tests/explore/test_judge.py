"""Plans judged many at once: what a whole replay of each pipeline over links gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.drawn_jobs import drawn_jobs

from tracetool.estimates.many import estimate_many
from tracetool.estimates.stages import pipeline_of
from tracetool.explore.judge import Judge
from tracetool.explore.plan import JobPlan, Workload, pipelines_sharing
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.file import NetworkChoice
from tracetool.network.link import Link
from tracetool.network.tiers import Network, Tier
from tracetool.replays import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.estimates.stages import JobCosts
    from tracetool.estimates.transport import OverTiers

TIERS = (
    Tier("hb", 8, 400 * 10**9, 1_000),
    Tier("dc", 256, 50 * 10**9, 5_000),
    Tier("wan", 512, 100 * 10**9, 3_000_000, shared_by="pair"),
)
RULES = ("tp,cp,dp,pp across wan", "tp,cp,pp,dp", "tp in hb, pp across wan", "tp in hb, dp across wan")


def plans(seed: int, count: int) -> Iterator[tuple[Workload, JobPlan]]:
    """Drawn jobs of four stages, placed one way or another over two DCs."""
    draw = Random(seed)  # noqa: S311 - no secret
    orders = [("", 1), ("", 2), ("zb-h1", 1), ("zb-v", 2), ("geopipe", 1), ("gpipe", 1)]
    for job in drawn_jobs(seed, count):
        schedule, chunks = draw.choice(orders)
        how = replace(
            job.training, stages=4, chunks=chunks, schedule=schedule, microbatches=8, data=draw.choice([2, 4]),
            expert=1, extra_forwards=(2, 2, 0, 0) if schedule == "geopipe" else (),
            p2p=draw.choice([None, "in-order", "per-edge"]),
        )  # fmt: skip
        rule = draw.choice(RULES[2:])
        choice = NetworkChoice(Network("two DCs", TIERS))
        yield (
            Workload(job.model, job.device, choice, 1 << 60),
            JobPlan(how, rule, sharing=draw.choice(["spatial", "temporal"])),
        )


def links_of(over: OverTiers, costs: JobCosts, tensor: int) -> Topology:
    """Places of the outermost tier, and links between them that a message occupies as long as it does there."""
    names = [f"place{place}" for place in over.line.places]
    links: dict[tuple[str, str], Link] = {}
    for rank, place in enumerate(names):
        other = names[(rank + 1) % len(names)]
        took = over.link_ns(costs.payload // tensor, rank)
        if took is not None:
            bandwidth = round(costs.payload * 1e9 / took[0])
            for one, two in ((place, other), (other, place)):
                links.setdefault((one, two), Link(one, two, bandwidth, took[1]))
    return Topology(tuple(names), tuple(links.values()))


def test_a_plan_takes_what_replays_of_its_pipelines_over_links_take() -> None:
    crossing = taking_turns = 0
    for workload, plan in plans(1, 40):
        judge = Judge(workload)
        (done,) = judge.judge([plan])
        steps, peaks = [], []
        for over, costs in judge.costs(plan):
            pipeline = pipeline_of(plan.training, costs)
            crosses = bool(over.line.places) and not plan.training.messages_hold_up
            scenario = Scenario(pipelines=1)
            if crosses:
                turns = pipelines_sharing(over.line) if plan.sharing == "temporal" else 1
                topology = links_of(over, costs, plan.training.tensor)
                scenario = Scenario(topology, pipelines=turns, link_sharing="temporal")
                taking_turns += turns > 1
            crossing += crosses
            metrics = measure(replay(pipeline, pipeline.observed, scenario).timeline)
            steps.append(metrics.step_ns)
            peaks.append(max(peak or 0 for peak in metrics.peak_hbm_bytes))
        # Links have whole bytes per second, so that what messages occupy is rounded.
        assert done.step_ns == pytest.approx(max(steps), rel=1e-6)
        assert done.peak_hbm_bytes == max(peaks)
    assert crossing > 10
    assert taking_turns > 3


def test_a_plan_inside_one_dc_takes_what_an_estimate_says() -> None:
    """Nothing is shared there: ports are each device's own."""
    jobs = [job for job in drawn_jobs(2, 60) if job.training.devices <= 256]
    for job, done in zip(jobs, estimate_many(jobs, NetworkChoice(Network("one DC", TIERS[:2]))), strict=True):
        workload = Workload(job.model, job.device, NetworkChoice(Network("one DC", TIERS[:2])), 1 << 60)
        (judged,) = Judge(workload).judge([JobPlan(job.training)])
        assert (judged.step_ns, judged.window_ns) == (done.step_ns, done.window_ns)
        assert judged.peak_hbm_bytes == max(done.peak_hbm_bytes)


def test_taking_turns_on_a_link_is_pipelines_side_by_side() -> None:
    """Of two pipelines the first waits for nobody, the second for the first one's message alone."""
    workload, drawn = next(plans(3, 1))
    how = replace(drawn.training, schedule="", chunks=1, extra_forwards=(), p2p="per-edge", data=2, context=1, tensor=8)
    judge = Judge(workload)
    spatial, temporal = (JobPlan(how, RULES[2], sharing=sharing) for sharing in ("spatial", "temporal"))
    over, _ = judge.costs(temporal)[0]
    assert pipelines_sharing(over.line) == 2
    both = judge.judge([spatial, temporal])
    alone = judge.judge([replace(temporal, training=replace(how, data=1), placement="tp in hb, pp across wan")])
    assert all(done.runs for done in (*both, *alone))
    assert alone[0].window_ns < both[1].window_ns <= both[0].window_ns
