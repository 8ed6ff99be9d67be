"""What errors are given of predictions and of their differences, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.recorded import SAMPLES, looked_at, rebuilt, run_of
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.reports.answer import result_cells
from tracetool.whatif.accuracy import KnownError, change_error_ratio, change_of, format_error, is_within_error, widened
from tracetool.whatif.answer import answer
from tracetool.whatif.best import is_as_good
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.results import Answer, step_change_error

INSIDE = KnownError(0.04, 0.0, Topology(), 8)
LINKS = (Link("dc0", "dc1", 3_125_000_000, 10_000_000), Link("dc1", "dc0", 3_125_000_000, 10_000_000))
OVER = replace(INSIDE, topology=Topology(("dc0", "dc0", "dc1", "dc1"), LINKS))
FASTER = replace(OVER, topology=replace(OVER.topology, links=tuple(replace(k, latency_ns=1) for k in LINKS)))


def over(latency_ms: float, gbit: float) -> Scenario:
    links = tuple(
        replace(k, latency_ns=round(latency_ms * 1e6), bandwidth_bytes_per_s=round(gbit * 1.25e8)) for k in LINKS
    )
    return Scenario(topology=replace(OVER.topology, links=links))


def test_the_kind_of_a_change_is_what_two_predictions_differ_in() -> None:
    assert change_of(INSIDE, INSIDE) == "inside"
    assert change_of(OVER, OVER) == "links"
    assert {change_of(*two) for two in ((INSIDE, OVER), (OVER, FASTER), (OVER, replace(OVER, microbatches=16)))} == {
        "scenario"
    }


@given(ratio=st.floats(0.2, 5), own=st.floats(0, 0.2))
def test_it_is_the_same_whichever_of_two_is_the_base(ratio: float, own: float) -> None:
    for one, other in ((INSIDE, INSIDE), (OVER, replace(OVER, own_ratio=own)), (OVER, FASTER)):
        there, back = change_error_ratio(one, other, ratio - 1), change_error_ratio(other, one, 1 / ratio - 1)
        assert there is not None
        assert back is not None
        assert there == pytest.approx(back * ratio)
        if abs(abs(ratio - 1) / there - 1) > 1e-9:
            assert (abs(ratio - 1) <= there) == (abs(1 / ratio - 1) <= back)


def test_a_difference_is_no_surer_than_replay_of_the_recording_itself() -> None:
    missed = replace(OVER, own_ratio=0.2)
    assert change_error_ratio(OVER, missed, -0.1) == 0.2
    assert change_error_ratio(missed, OVER, -0.1) == 0.2


def test_unknown_errors_stay_unknown_and_certainty_takes_what_is_known() -> None:
    known = change_error_ratio(OVER, OVER, -0.04)
    assert known is not None
    assert change_error_ratio(None, OVER, -0.04) is None
    assert change_error_ratio(OVER, None, -0.04) is None
    assert is_within_error(None, OVER, -known)
    assert is_within_error(OVER, None, -known)
    assert not is_within_error(None, OVER, -known - 0.001)
    assert is_within_error(None, None, RELEVANT_RATIO)
    assert not is_within_error(None, None, RELEVANT_RATIO + 0.001)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.04, "4%"), (0.035, "3.5%"), (0.0351, "3.6%"), (0.0401, "4.1%"), (0.0501, "6%"), (0.14, "14%")],
)
def test_errors_are_never_rounded_down(ratio: float, text: str) -> None:
    assert format_error(ratio) == text


@given(seen=st.floats(0.001, 0.3))
def test_errors_given_are_wider_than_those_seen_by_a_quarter_to_half_a_percent_more(seen: float) -> None:
    assert 1.25 * seen - 1e-9 <= widened(seen) <= 1.25 * seen + 0.005 + 1e-9


def shown_change(done: Answer) -> str:
    return result_cells(done, done.results[0].metrics, done.results[0])[3].text


@pytest.mark.parametrize("latency_ms", [1, 4, 9, 10, 12, 20])
def test_a_change_within_its_error_is_marked_and_only_that(latency_ms: float) -> None:
    """Over 100 Gbit/s geopipe gains from 0 to more than 10 %: the mark goes with the error of the change."""
    done = answer(looked_at(run_of(SAMPLES / "h100-1f1b")), "geopipe", over(latency_ms, 100))
    (result,) = done.results
    change, error = done.step_change(result), done.step_change_error(result)
    assert error is not None
    assert change == result.metrics.step_ns / done.baseline.metrics.step_ns - 1
    assert shown_change(done).startswith("~") == (abs(change) <= error) == is_as_good(done.baseline, result)
    assert shown_change(done).endswith(f"±{format_error(error)}")


def test_where_no_recording_was_like_it_a_change_has_no_error() -> None:
    done = answer(rebuilt("tp2pp2_1f1b_m8"), ["gpipe"])
    assert done.step_change_error(done.results[0]) is None
    assert "±" not in shown_change(done)


# Replay misses each recording by another amount: the error of one could hide behind those of the measured changes.
@spread("base", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "zbh1_m8"], 1)
def test_no_error_is_smaller_than_what_replay_misses_of_the_recording(base: str) -> None:
    done = answer(rebuilt(base), ["gpipe", "geopipe", "interleaved"], over(10, 25), baseline="observed")
    assert done.results
    for result in (done.baseline, *done.results):
        assert result.seen_error_ratio is not None
        assert result.seen_error_ratio >= abs(done.fidelity.error_ratio)
        error = step_change_error(done.baseline, result)
        assert error is not None
        assert error >= abs(done.fidelity.error_ratio)


def test_nothing_tells_how_interleaved_stages_run_in_blocking_batches() -> None:
    """Recordings of them are of transfers issued one by one; Megatron's batches of them were never recorded."""
    found = rebuilt("1f1b_m8")
    errors = {
        p2p: answer(found, ["interleaved"], Scenario(p2p=p2p)).results[0].seen_error_ratio
        for p2p in ("in-order", "grouped", "blocking")
    }
    assert errors["in-order"] is not None
    assert errors["grouped"] is None
    assert errors["blocking"] is None


def test_a_recording_that_replay_misses_has_errors_as_large() -> None:
    """The observed step made a tenth longer than its actions: replay misses it by 9 %, and so may all it predicts."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    ops = tuple(
        replace(op, start_ns=round(op.start_ns * 1.1), duration_ns=round(op.duration_ns * 1.1))
        for op in found.observed.ops
    )
    done = answer(replace(found, observed=replace(found.observed, ops=ops)), ["gpipe"])
    missed = abs(done.fidelity.error_ratio)
    assert missed == pytest.approx(1 - 1 / 1.1, abs=0.002)
    for result in (done.baseline, *done.results):
        assert result.seen_error_ratio is not None
        assert result.seen_error_ratio >= missed
    error = done.step_change_error(done.results[0])
    assert error is not None
    assert error >= missed
