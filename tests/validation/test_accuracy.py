"""How accurate predictions are, on every measured row of the recorded machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.recorded import data, rebuilt

from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements

if TYPE_CHECKING:
    from tracetool.validation.rows import Row

TENSOR_PARALLEL = "tp2pp2_1f1b_m8"


def _rows(base: str) -> dict[str, Row]:
    """All rows that are of the recorded shape, by name; memory comes from the recording that has it."""
    measurements = read_measurements(data("h100-pp4", "measured.json"))
    done = validate(Sources(rebuilt(base), rebuilt("1f1b_m8_mem")), measurements)
    rows = {row.measured.name: row for row in done.rows}
    assert [name for name, row in rows.items() if row.prediction is None] == [TENSOR_PARALLEL]
    del rows[TENSOR_PARALLEL]
    assert len(rows) == 21
    return rows


def _errors(rows: dict[str, Row], *, interleaved: bool | None = None, grouped: bool | None = None) -> list[float]:
    """Absolute errors of the rows chosen."""
    chosen = [
        row
        for row in rows.values()
        if interleaved in (None, row.measured.schedule == "interleaved")
        and grouped in (None, row.measured.p2p == "grouped")
    ]
    return [abs(row.error_ratio) for row in chosen if row.error_ratio is not None]


def _mean(errors: list[float]) -> float:
    return sum(errors) / len(errors)


def test_everything_from_one_recording_in_order() -> None:
    rows = _rows("rt1f1b_m8")
    plain, interleaved = (_errors(rows, interleaved=kind) for kind in (False, True))
    assert (len(plain), len(interleaved)) == (19, 2)
    assert _mean(plain) <= 0.012
    assert max(plain) <= 0.035
    assert _mean(interleaved) <= 0.025
    assert max(interleaved) <= 0.06
    for row in rows.values():
        peaks = [error for error in row.peak_error_ratios if error is not None]
        assert len(peaks) == 4, row.measured.name
        assert max(map(abs, peaks)) <= 0.005, row.measured.name


def test_everything_from_one_recording_in_blocking_batches() -> None:
    rows = _rows("1f1b_m8")
    grouped, others = (_errors(rows, grouped=kind) for kind in (True, False))
    assert (len(grouped), len(others)) == (3, 18)
    assert max(grouped) <= 0.015
    assert _mean(others) <= 0.04


def test_a_communicator_per_edge_from_one_recording_in_order() -> None:
    """Steps measured with one per pair of ranks and direction, over links and not: within the machine's own scatter."""
    measurements = read_measurements(data("h100-pp4", "measured-per-edge.json"))
    done = validate(Sources(rebuilt("rt1f1b_m8"), rebuilt("1f1b_m8_mem")), measurements)
    assert {row.measured.p2p for row in done.rows} == {"per-edge"}
    assert len(done.errors) == len(done.rows) == 8
    assert _mean(list(map(abs, done.errors))) <= 0.007
    assert max(map(abs, done.errors)) <= 0.025


@pytest.mark.parametrize("base", ["rt1f1b_m8", "1f1b_m8", "gpipe_m8"])
def test_a_recording_replays_to_itself_within_half_a_percent(base: str) -> None:
    """What is taken out of its times for load and interference is what replay puts back in."""
    found = rebuilt(base)
    done = validate(Sources(found), read_measurements(data("h100-pp4", "measured.json")))
    assert done.replayed_ns == pytest.approx(done.recorded_ns, rel=0.005)


def test_a_recording_whose_hosts_were_held_up_predicts_orders_that_were_not() -> None:
    """ZB-H1's two backwards per microbatch kept hosts under the profiler busy; figures as seen, rounded up."""
    rows = _rows("zbh1_m8")
    errors = _errors(rows)
    assert _mean(errors) <= 0.03
    assert max(errors) <= 0.05
