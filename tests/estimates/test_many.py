"""Very many estimates at once: the same as one by one, and as a whole replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from helpers.drawn_jobs import drawn_jobs
from helpers.recorded import ROOT
from helpers.thorough import is_asked

from tracetool.estimates.estimating import estimate
from tracetool.estimates.many import estimate_many
from tracetool.estimates.stages import JobCosts, analytical_pipeline
from tracetool.estimates.training import WithinNode
from tracetool.estimates.transport import placed
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.network.file import NetworkChoice, read_network
from tracetool.network.tiers import Network, Tier
from tracetool.replays import replay

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode


@pytest.fixture(scope="module")
def network() -> NetworkChoice:
    return read_network(ROOT / "schemas" / "networks" / "a100.toml")


def test_many_are_as_each_alone(network: NetworkChoice) -> None:
    drawn = drawn_jobs(1, 60)
    assert len({(job.training.stages, job.training.chunks) for job in drawn}) == 5
    assert estimate_many(drawn, network) == [estimate(job, network) for job in drawn]


def test_each_alone_is_what_replay_measures(network: NetworkChoice) -> None:
    """Step and peaks of a whole replay, with its timeline and memory curves."""
    for job in drawn_jobs(2, 25):
        pipeline = analytical_pipeline(job.model, job.device, job.training, network)
        metrics = measure(replay(pipeline, pipeline.observed, Scenario()).timeline)
        done = estimate(job, network)
        assert (done.step_ns, done.window_ns) == (metrics.step_ns, metrics.window_ns)
        assert done.peak_hbm_bytes == metrics.peak_hbm_bytes


ORDERS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("gpipe", 1, ()), ("eager-1f1b", 1, ()), ("geopipe", 1, (2, 1, 0, 0)), ("zb-h1", 1, ()), ("zb-h2", 1, ()),
    ("looped-bfs", 2, ()), ("interleaved-zero-bubble", 2, ()), ("zb-v", 2, ()), ("v-half", 2, ()), ("v-min", 2, ()),
    ("hanayo", 2, ()), ("dualpipev", 2, ()),
)  # fmt: skip
"""Schedules, their stages per rank, and extra forwards of four ranks."""


def test_any_schedule_of_shapes_is_what_replay_measures(network: NetworkChoice) -> None:
    """Steps, and memory curves, of every order that shapes can have, however messages are issued."""
    modes: cycle[P2PMode | None] = cycle((None, "in-order", "per-edge", "posted-ahead"))
    jobs = []
    for (name, chunks, extra), drawn in zip(ORDERS, drawn_jobs(3, len(ORDERS)), strict=True):
        how = replace(
            drawn.training,
            schedule=name,
            stages=4,
            chunks=chunks,
            extra_forwards=extra,
            p2p=next(modes),
            microbatches=8,
        )
        jobs.append(replace(drawn, training=how))
    for job, done in zip(jobs, estimate_many(jobs, network), strict=True):
        pipeline = analytical_pipeline(job.model, job.device, job.training, network)
        metrics = measure(replay(pipeline, pipeline.observed, Scenario()).timeline)
        assert (done.step_ns, done.window_ns, done.peak_hbm_bytes) == (
            metrics.step_ns, metrics.window_ns, metrics.peak_hbm_bytes
        )  # fmt: skip
        assert done == estimate(job, network)


def test_halves_of_a_backward_fill_the_drain_as_the_closed_form_says() -> None:
    """ZB-H1 (arXiv 2401.10241): its bubble is (p - 1)(f + b - 2w) for w <= i at equal stages without messages."""
    job = drawn_jobs(4, 1)[0]
    how = replace(
        job.training, schedule="zb-h1", stages=4, chunks=1, microbatches=16, has_head=False, tensor=1, data=1,
        context=1, expert=1, recompute="none", p2p=None,
    )  # fmt: skip
    costs = JobCosts(job.model, job.device, how, WithinNode(10**12, 1))
    forward, backward, weight = costs.of(1)[:3]
    assert 0 < weight < backward - weight
    window = estimate(replace(job, training=how)).window_ns
    assert window == 16 * (forward + backward) + 3 * (forward + backward - 2 * weight)


def test_the_way_from_the_last_rank_back_to_the_first_is_its_own() -> None:
    """Two ranks in each of two DCs: of interleaved stages the last rank's output crosses back, neighbours' do not."""
    tiers = Tier("dc", 2, 10**12), Tier("wan", 4, 10**9, 1_000_000, shared_by="pair")
    choice = NetworkChoice(Network("two DCs", tiers))
    job = drawn_jobs(5, 1)[0]
    how = replace(job.training, tensor=1, context=1, data=1, expert=1, stages=4, chunks=2, p2p=None)
    (transport,) = placed(choice, how.degrees)
    costs = JobCosts(job.model, job.device, how, transport)
    forwards = [costs.of(stage).forward_ns for stage in range(7)]
    wan_ns = 1_000_000 + costs.payload
    inside_ns = round(costs.payload / 1000)
    crossing = wan_ns - inside_ns
    assert [forward - forwards[0] for forward in forwards] == [0, crossing, 0, crossing, 0, crossing, 0]


def two_dcs(replicas: int, bandwidth_bytes_per_s: int) -> NetworkChoice:
    """Two DCs, each with one stage of every replica; one link joins them."""
    tiers = Tier("dc", replicas, 10**12), Tier("wan", 2 * replicas, bandwidth_bytes_per_s, 1_000_000, shared_by="pair")
    return NetworkChoice(Network("two DCs", tiers[replicas == 1 :]))


@pytest.mark.parametrize("change", [{}, {"chunks": 2}, {"p2p": "in-order"}, {"p2p": "posted-ahead"}])
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_that_share_a_link_have_each_its_part_of_it(replicas: int, change: dict[str, Any]) -> None:
    """Four of them over a link take as long as one over a quarter of it, but for their gradients."""
    (job,) = drawn_jobs(5, 1)
    how = replace(job.training, tensor=1, context=1, data=1, expert=1, stages=2, chunks=1, schedule="", p2p=None)
    how = replace(how, **change)
    alone = estimate(replace(job, training=how), two_dcs(1, 10**9))
    shared = replace(job, training=replace(how, data=replicas))
    assert estimate(shared, two_dcs(replicas, replicas * 10**9)).window_ns == pytest.approx(alone.window_ns, rel=1e-6)
    (many,) = estimate_many([shared], two_dcs(replicas, 10**9))
    assert many.window_ns > 1.01 * alone.window_ns


def test_many_are_as_each_alone_where_tiers_are_shared() -> None:
    """Over a link between DCs, and over nodes whose ports are oversubscribed."""
    tiers = Tier("node", 8, 200 * 10**9, 2_000), Tier("fabric", 256, 20 * 10**9, 5_000, oversubscription=4.0)
    wan = Tier("wan", 512, 50 * 10**9, 1_000_000, shared_by="pair")
    for network in (Network("one DC", tiers), Network("two DCs", (*tiers, wan))):
        choice = NetworkChoice(network, "tp in node")
        jobs = [job for job in drawn_jobs(4, 40 if is_asked() else 20) if job.training.devices <= network.devices]
        assert len(jobs) > 10
        for job, done in zip(jobs, estimate_many(jobs, choice), strict=True):
            assert done.step_ns == pytest.approx(estimate(job, choice).step_ns, rel=1e-5)
