"""Very many estimates at once: the same as one by one, and as a whole replay."""

from __future__ import annotations

import pytest
from helpers.drawn_jobs import drawn_jobs
from helpers.recorded import ROOT

from tracetool.estimate.estimating import estimate
from tracetool.estimate.many import estimate_many
from tracetool.estimate.stages import analytical_pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.network.file import NetworkChoice, read_network
from tracetool.replays import replay


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
