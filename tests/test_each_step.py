"""Predictions by each recorded step: of the one looked at the replay's own, of others what they would have given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import h100

from tracetool.each_step import predict_each_step
from tracetool.metrics import measure
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Link, Topology
from tracetool.reconstruct import reconstruct
from tracetool.recording import (
    ActionRecord,
    MessageRecord,
    RankRecord,
    Recording,
    StepRecord,
    TailRecord,
    recording_of,
)
from tracetool.replay import replay
from tracetool.schedules import build_schedule
from tracetool.whatif import answer

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline

times = st.lists(st.lists(st.integers(1, 50), min_size=4, max_size=4), min_size=3, max_size=3)
steps = st.builds(
    lambda forward, backward, transfer, tail: synthetic.pipeline(
        3, 4, forward, backward, transfer_ns=transfer, tail_ns=tail, payload_bytes=100, p2p="in-order"
    ),
    times, times, st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(1, 20),
)  # fmt: skip


def kept(pipelines: list[Pipeline]) -> Recording:
    """A recording of steps, written out here."""
    return Recording(
        tool_version="", digest="", global_ranks=[0, 1, 2], orders=[[]],
        steps=[
            StepRecord(
                number=number, step_ns=0, window_ns=0, compute_ns=0, bubble_ns=0, bubble_ratio=0, peak_hbm_bytes=[],
                overhead_bytes=[], order=0, p2p=pipeline.p2p, buffered=False,
                actions={
                    f"{stage.stage}{kind.value}": ActionRecord(
                        duration_ns=[cost.duration_ns for cost in costs], held_bytes=[], peak_bytes=[]
                    )
                    for stage in pipeline.stages
                    for kind, costs in stage.costs.items()
                },
                messages={
                    f"{stage.stage}{kind}": MessageRecord(transfer_ns=taken, each_ns=[taken], payload_bytes=100)
                    for stage in pipeline.stages
                    for kind, taken in (("F", stage.forward_transfer_ns), ("B", stage.backward_transfer_ns))
                },
                ranks=[
                    RankRecord(
                        static_bytes=None, tail_peak_bytes=0, receive_buffer_bytes=None,
                        tail=[TailRecord(kind=p.kind.value, duration_ns=p.duration_ns) for p in rank.tail],
                    )
                    for rank in pipeline.ranks
                ],
            )
            for number, pipeline in enumerate(pipelines)
        ],
    )  # fmt: skip


@given(st.lists(steps, min_size=2, max_size=3))
@settings(max_examples=40)
def test_a_prediction_by_a_step_is_a_replay_of_it(pipelines: list[Pipeline]) -> None:
    """Where nothing is known but how long actions take, a step's own pipeline is all that a prediction can be of."""
    links = (Link("a", "b", 10**9, 7), Link("b", "a", 10**9, 7))
    scenario = Scenario(topology=Topology(("a", "b", "b"), links))
    schedule = build_schedule("gpipe", pipelines[0].observed.shape)
    found = predict_each_step(pipelines[0], kept(pipelines), schedule, scenario)
    assert [one.number for one in found] == list(range(len(pipelines)))
    for one, pipeline in zip(found, pipelines, strict=True):
        assert one.metrics == measure(replay(pipeline, schedule, scenario).timeline)
        free = measure(replay(pipeline, schedule, Scenario(topology=scenario.topology.without_delays())).timeline)
        assert one.cross_dc_bubble_ns == one.metrics.window_ns - free.window_ns


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"])
def test_of_a_real_recording_it_is_near_what_that_step_itself_gives(schedule: str) -> None:
    """Looked at kernel by kernel, the other step's own replay is within 0.4 % of it: halves and layers keep shares."""
    run = h100("rt1f1b_m8")
    links = (Link("a", "b", 3_125_000_000, 10**7), Link("b", "a", 3_125_000_000, 10**7))
    scenario = Scenario(topology=Topology(("a", "a", "b", "b"), links))
    looked_at, other = (answer(reconstruct(run, step=n), schedule, scenario) for n in (2, 1))
    result = looked_at.results[0]
    found = predict_each_step(looked_at.pipeline, recording_of(run), result.replayed.schedule, scenario)
    assert [one.number for one in found] == [1, 2]
    assert (found[1].metrics, found[1].cross_dc_bubble_ns) == (result.metrics, result.cross_dc_bubble_ns)
    assert found[0].metrics.step_ns == pytest.approx(other.results[0].metrics.step_ns, rel=0.004)


def test_a_recording_without_the_step_says_nothing() -> None:
    pipeline = synthetic.pipeline(3, 4, 10, 20)
    recording = kept([pipeline, pipeline])
    del recording.steps[0]
    assert predict_each_step(pipeline, recording, pipeline.observed, Scenario()) == []
