"""Sustained load against one H100 that ran the same layers over and over (tests/data/load)."""

from __future__ import annotations

import json
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from helpers.recorded import ROOT

from tracetool.model.action import ActionKind
from tracetool.model.load import KNOWN_LOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD = KNOWN_LOADS["H100"]
NS = 10**6


class Ran(NamedTuple):
    """An action: how much longer it took than at its fastest, what the model says, and the moving average it met."""

    case: str
    measured: float
    modelled: float
    moving: float


def _fastest(cases: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Per stage and kind, the second percentile of durations; first backwards make gradients and are left out."""
    times: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for kind, _, duration in case["actions"][2:]:
            times.setdefault((case["stage"], kind), []).append(duration)
    return {key: quantiles(of_key, n=50)[0] for key, of_key in times.items()}


def _ran() -> Iterator[Ran]:
    cases = json.loads((ROOT / "tests" / "data" / "load" / "h100.json").read_text(encoding="utf-8"))["cases"]
    fastest = _fastest(cases)
    for case in cases:
        actions = case["actions"]
        window = actions[-1][1] + actions[-1][2]
        step_load = sum(LOAD.load_of(ActionKind(kind)) * time for kind, _, time in actions) / window
        average, now = LOAD.start_load, 0.0
        for number, (kind, start, duration) in enumerate(actions):
            brought = LOAD.load_of(ActionKind(kind))
            average = LOAD.after(average, round((start - now) * NS), 0.0)
            middle = (average + LOAD.after(average, round(duration * NS), brought)) / 2
            if number > 1:
                longer = duration / fastest[case["stage"], kind]
                modelled = LOAD.factor(average, round(duration * NS), brought, step_load)
                yield Ran(f"{case['stage']} {case['case']}", longer, modelled, middle)
            average, now = LOAD.after(average, round(duration * NS), brought), start + duration


@pytest.fixture(scope="module")
def ran() -> list[Ran]:
    return list(_ran())


def test_what_the_model_leaves_is_less_than_half_of_what_load_does(ran: list[Ran]) -> None:
    """Root mean squares of all actions: 8 % without a model; the clock jumps, so that no average tells it all."""
    without = np.sqrt(np.mean([(r.measured - 1) ** 2 for r in ran]))
    left = np.sqrt(np.mean([(r.measured - r.modelled) ** 2 for r in ran]))
    assert without == pytest.approx(0.083, abs=0.001)
    assert left < without / 2


def test_the_slopes_constant_is_no_steeper_than_this_card_shows(ran: list[Ran]) -> None:
    """Least squares over these actions without the part of the step: 0.33 of the time per unit beyond the threshold."""
    beyond = np.array([max(0.0, r.moving - LOAD.threshold) for r in ran])
    slower = np.array([r.measured - 1 for r in ran])
    slope = float(beyond @ slower / (beyond @ beyond))
    assert slope == pytest.approx(0.334, abs=0.005)
    assert LOAD.slope < slope


@pytest.mark.parametrize("stage", ["last", "mid"])
def test_steps_with_less_idle_time_are_slower(ran: list[Ran], stage: str) -> None:
    """More microbatches between equal gaps, measured and modelled; pauses after every pair undo most of it."""
    for values in ([(r.case, r.measured) for r in ran], [(r.case, r.modelled) for r in ran]):
        mean = {
            case: fmean(value for of, value in values if of == f"{stage} {case}")
            for case in ("m4_gap60", "m8_gap60", "m16_gap60", "m64_gap10", "m16_pause8_gap60")
        }
        assert mean["m4_gap60"] < mean["m8_gap60"] < mean["m16_gap60"] < mean["m64_gap10"]
        assert mean["m16_pause8_gap60"] - 1 < (mean["m16_gap60"] - 1) / 2
