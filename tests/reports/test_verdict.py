"""The answer in words: which schedule is named best, and what is said against it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic

from tracetool.reports.answer.verdict import best_result, verdict
from tracetool.whatif.accuracy import KnownError
from tracetool.whatif.answer import answer
from tracetool.whatif.memory_limit import Shortage, Violation

if TYPE_CHECKING:
    from tracetool.whatif.results import Answer, Result

MS = 10**6
GIB = 2**30


Step = tuple[str, int, bool | None, float | None]


def judged(*steps: Step, hbm: bool = True) -> Answer:
    """An answer with results of chosen names, step times in ms, fit and error; the first is the baseline."""
    measured = synthetic.pipeline(2, 2, MS, MS, p2p="posted-ahead")
    found = answer(synthetic.found(measured), ["1f1b"], synthetic.scenario(hbm_bytes=64 * GIB if hbm else None))

    def result(name: str, step_ms: int, feasible: bool | None, error: float | None) -> Result:
        base = found.baseline
        return replace(
            base,
            schedule=name,
            feasible=feasible,
            shortage=Shortage(1, step_ms * GIB, Violation(1, 0, None), (0, 1)) if feasible is False else None,
            metrics=replace(base.metrics, step_ns=step_ms * MS, peak_hbm_bytes=(GIB, GIB)),
            known_error=None if error is None else KnownError(error, 0.0, base.replayed.topology, base.microbatches),
        )

    base, *others = [result(*step) for step in steps]
    return replace(found, baseline=base, results=tuple(others))


@pytest.mark.parametrize(
    ("steps", "best"),
    [
        ([("1f1b", 100, True, 0.04), ("zb-h1", 90, True, 0.04), ("gpipe", 95, True, 0.04)], "zb-h1"),
        ([("1f1b", 100, True, 0.04), ("zb-h1", 90, False, 0.04), ("gpipe", 95, True, 0.04)], "gpipe"),
        ([("1f1b", 100, True, 0.04), ("zb-h1", 90, None, 0.04), ("gpipe", 120, True, 0.04)], "1f1b"),
        # Unknown is not "fits": where memory is known of one and that lacks some, it is what is told of.
        ([("1f1b", 100, False, 0.04), ("zb-h1", 90, None, 0.04), ("gpipe", 80, None, 0.04)], "1f1b"),
        ([("1f1b", 100, None, 0.04), ("zb-h1", 90, None, 0.04), ("gpipe", 80, None, 0.04)], "gpipe"),
        # What lacks is as many GiB as the step has ms: least of it counts where nothing fits.
        ([("1f1b", 30, False, 0.04), ("zb-h1", 20, False, 0.04)], "zb-h1"),
    ],
)
def test_what_fits_goes_before_what_is_short(
    steps: list[tuple[str, int, bool | None, float | None]], best: str
) -> None:
    assert best_result(judged(*steps)).schedule == best


def test_a_gain_is_told_with_its_error() -> None:
    found = verdict(judged(("1f1b", 100, True, 0.04), ("zb-h1", 80, True, 0.03)))
    assert found.headline == "zb-h1 is best: 80.0 ms ±3% a step, 20.0% ±3.5% less than 1f1b"
    against = ("Against 1f1b", "-20.0%", "20.0 ms less per step (±3.5% of 1f1b)")
    assert against in [(f.label, f.value, f.beside) for f in found.figures]
    assert any("at most 3% off" in point for point in found.points)


def test_a_gain_within_the_error_is_none() -> None:
    """The recorded order is kept."""
    found = verdict(judged(("1f1b", 100, True, 0.04), ("zb-h1", 98, True, 0.04)))
    assert found.headline == "Nothing replayed is shorter than 1f1b by more than can be told: 100.0 ms ±4% a step"
    assert "As good, nearer to it than the error of prediction: zb-h1 (98.0 ms)." in found.points


def test_a_result_of_unknown_error_is_not_named_ahead_of_known_ones() -> None:
    found = verdict(judged(("1f1b", 100, True, 0.04), ("zb-v", 80, True, None), ("zb-h1", 90, True, 0.04)))
    assert found.headline == "zb-h1 is best: 90.0 ms ±4% a step, 10.0% ±3.5% less than 1f1b"
    assert "zb-v (80.0 ms) is 11.1% shorter, but its prediction rests on less." in found.points


def test_unknown_memory_is_a_condition() -> None:
    found = verdict(judged(("1f1b", 100, None, 0.04), ("zb-h1", 80, None, 0.04)))
    assert found.headline.startswith("zb-h1 is best if it fits: ")
    assert any("was not checked" in point for point in found.points)


def test_shorter_ones_that_do_not_fit_are_named() -> None:
    found = verdict(judged(("1f1b", 100, True, 0.04), ("gpipe", 70, False, 0.04), ("zb-h1", 80, True, 0.04)))
    assert "Shorter, but its memory stands against it: gpipe (70.0 ms), rank 1 lacks 70.00 GiB." in found.points


def test_where_none_fits_the_headline_says_so() -> None:
    found = verdict(judged(("1f1b", 100, False, 0.04), ("gpipe", 90, False, 0.04)))
    assert found.headline == "None of 2 schedules fits 64.00 GiB of HBM: gpipe lacks least, 90.00 GiB"
    alone = verdict(judged(("1f1b", 100, False, 0.04)))
    assert alone.headline == "1f1b does not fit 64.00 GiB of HBM: it lacks 100.00 GiB"


def test_nothing_better_than_the_baseline() -> None:
    found = verdict(judged(("1f1b", 100, True, 0.04), ("gpipe", 150, True, 0.04), hbm=False))
    assert found.headline == "Nothing replayed is shorter than 1f1b: 100.0 ms ±4% a step"
    assert any("No memory limit was given" in point for point in found.points)
    assert verdict(judged(("1f1b", 100, True, 0.04), hbm=False)).headline == "1f1b takes 100.0 ms ±4% a step"


def test_an_order_that_differs_in_its_transfers_alone_is_named_as_that() -> None:
    """Without extra forwards geopipe has 1F1B's order: what it gains beside a recording in batches is theirs."""
    measured = synthetic.pipeline(2, 2, MS, MS)
    (tuned,) = answer(synthetic.found(measured), ["geopipe"], extra_forwards=(0, 0)).results
    (deeper,) = answer(synthetic.found(measured), ["geopipe"], extra_forwards=(1, 0)).results
    judged_first = judged(("1f1b", 100, True, 0.04), hbm=False)
    assert verdict(judged_first, tuned).headline.startswith("geopipe +0,0 (1f1b's order with in-order transfers) is ")
    assert verdict(judged_first, deeper).headline.startswith("geopipe +1,0 is ")


def test_the_observed_order_is_named_in_words() -> None:
    found = verdict(judged(("observed", 100, True, 0.04), ("zb-h1", 80, True, 0.04)))
    assert found.headline.endswith("less than the recorded order")
    assert verdict(judged(("observed", 100, True, 0.04))).headline == "The recorded order takes 100.0 ms ±4% a step"


def test_of_steps_that_repeating_cannot_tell_apart_the_one_that_needs_less_memory_and_why_is_said() -> None:
    """100 and 99 ms differ by 1 %, 95 by more than 2 %."""
    found = judged(("1f1b", 120, True, 0.01), ("geopipe", 100, True, 0.01), ("zb-h1", 99, True, 0.01))
    base, thrifty, greedy = found.baseline, *found.results
    more = replace(greedy, metrics=replace(greedy.metrics, peak_hbm_bytes=(3 * GIB, GIB)))
    told = verdict(replace(found, results=(thrifty, more)))
    assert told.best is thrifty
    assert any("zb-h1 (99.0 ms) is 1.0% shorter" in point and "2.00 GiB more" in point for point in told.points)
    shorter = replace(more, metrics=replace(more.metrics, step_ns=95 * MS))
    assert best_result(replace(found, results=(thrifty, shorter))) is shorter
    kept = verdict(replace(found, results=(base, thrifty)), best=base)
    assert "shorter than 1f1b by more than can be told" in kept.headline
