"""Memory from another recording: what it says must be what that recording alone says of the same order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.recorded import rebuilt
from helpers.synthetic import found, pipeline, places, replayed

from tracetool.costs.borrowed import with_memory_of
from tracetool.costs.recut import recut
from tracetool.errors import ScenarioError
from tracetool.model.pipeline import LayerCosts, Pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.whatif.answer import answer

P, M, HELD, STATIC = 4, 8, 10, 500
LATENCY = 3_000_000


def _timed() -> Pipeline:
    return pipeline(P, M, 1_000_000, 2_000_000, p2p="posted-ahead")


def _weighed() -> Pipeline:
    """The same model recorded while memory was: twice as slow, in another order."""
    return pipeline(P, M, 2_000_000, 4_000_000, schedule="gpipe", activation_bytes=HELD, static_bytes=STATIC)


def test_the_depth_of_geopipe_is_chosen_by_the_other_recordings_memory() -> None:
    """Two crossings of 3 ms ask for ceil(6 / 3) = 2 forwards; rank 0 holds 4 under 1F1B, and the limit allows 5."""
    both = with_memory_of(_timed(), _weighed())
    scenario = Scenario(topology=places((2, 2), latency_ns=LATENCY), hbm_bytes=STATIC + 5 * HELD)
    done, free = (answer(found(of), ["geopipe"], scenario) for of in (both, _timed()))
    assert [r.results[0].extra_forwards for r in (done, free)] == [(1, 1, 0, 0), (2, 2, 0, 0)]
    assert done.results[0].metrics.peak_hbm_bytes == (550, 540, 520, 510)
    assert done.results[0].feasible
    assert free.results[0].feasible is None
    assert done.baseline.metrics.step_ns == free.baseline.metrics.step_ns


def test_pipelines_that_share_links_have_it_too() -> None:
    scenario = Scenario(topology=places((2, 2), latency_ns=LATENCY), pipelines=2)
    done = replayed(with_memory_of(_timed(), _weighed()), "1f1b", scenario)
    assert measure(done.timeline).peak_hbm_bytes == (540, 530, 520, 510)


@pytest.mark.parametrize("schedule", ["geopipe", "zb-h1", "interleaved"])
def test_recorded_peaks_are_those_of_the_recording_that_has_them(schedule: str) -> None:
    """Whole, derived halves and re-cut stages: the order alone decides, not whose times it is replayed with."""
    timed, weighed = rebuilt("rt1f1b_m8"), rebuilt("1f1b_m8_mem")
    both = replace(timed, pipeline=with_memory_of(timed.pipeline, weighed.pipeline))
    scenario = Scenario(p2p="in-order")
    by_both, by_times, by_memory = (
        answer(of, [schedule], scenario, extra_forwards=(2, 2, 0, 0) if schedule == "geopipe" else None).results[0]
        for of in (both, timed, weighed)
    )
    assert by_both.metrics.peak_hbm_bytes == by_memory.metrics.peak_hbm_bytes
    assert by_both.metrics.overhead_bytes == by_memory.metrics.overhead_bytes
    assert None in by_times.metrics.peak_hbm_bytes
    assert by_both.metrics.step_ns == by_times.metrics.step_ns


def test_memory_recorded_with_other_stages_is_cut_into_these() -> None:
    two_each = rebuilt("interleaved_m8").pipeline
    both = with_memory_of(two_each, rebuilt("1f1b_m8_mem").pipeline)
    cut = recut(rebuilt("1f1b_m8_mem").pipeline, 2)
    peaks = [
        measure(replay(of, two_each.observed, Scenario(p2p="in-order")).timeline).peak_hbm_bytes for of in (both, cut)
    ]
    assert peaks[0] == peaks[1]
    # interleaved_m8 of measured.json holds 14.261, 12.128, 10.938, 11.451 GiB.
    for peak, gib in zip(peaks[0], (14.261, 12.128, 10.938, 11.451), strict=True):
        assert peak is not None
        assert peak / 2**30 == pytest.approx(gib, rel=0.01)


def _layered(*counts: int) -> Pipeline:
    base = pipeline(len(counts), 2, 1, 1)
    stages = tuple(
        replace(s, layers=LayerCosts({}, (s.costs,) * n, {})) for s, n in zip(base.stages, counts, strict=True)
    )
    return replace(base, stages=stages)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (_layered(2, 2), _layered(2, 2, 2), "2 pipeline ranks in one Run, 3 in the other"),
        (_layered(2, 2), _layered(2, 3), "4 layers in one Run, 5 in the other"),
        (_layered(3, 1), _layered(2, 2), "3 layers on stage 0 in one Run, 2 in the other"),
        (pipeline(2, 2, 1, 1, payload_bytes=10), pipeline(2, 2, 1, 1, payload_bytes=20), "10 bytes per message"),
    ],
)
def test_memory_of_another_model_is_refused(one: Pipeline, other: Pipeline, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        with_memory_of(one, other)
