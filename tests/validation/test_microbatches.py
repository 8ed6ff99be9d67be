"""Other microbatch counts than the recorded one, on two H200 (tests/data/h200-pp2): none of it was fitted to."""

from __future__ import annotations

from dataclasses import replace

from helpers.recorded import ROOT, looked_at, run_of

from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements

FOLDER = ROOT / "tests" / "data" / "h200-pp2"


def test_steps_of_4_to_32_microbatches_follow_from_a_trace_of_8() -> None:
    """Eight measured steps, in-order and grouped; the figures are what was seen, rounded up."""
    found = looked_at(run_of(FOLDER))
    measured = read_measurements(FOLDER / "measured.json")
    done = validate(Sources(found), measured)
    assert done.not_predicted == 0
    assert done.mape_ratio is not None
    assert done.mape_ratio < 0.012
    assert max(map(abs, done.errors)) < 0.025
    assert done.kendall_tau == 1.0
    # Without what is known of sustained load, steps without pauses come out too short.
    ranks = tuple(replace(rank, load=None) for rank in found.pipeline.ranks)
    bare = validate(Sources(replace(found, pipeline=replace(found.pipeline, ranks=ranks))), measured)
    assert bare.mape_ratio is not None
    assert bare.mape_ratio > 2 * done.mape_ratio
