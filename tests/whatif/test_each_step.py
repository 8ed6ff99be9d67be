"""Predictions by each recorded step: each is what a look at that step alone gives, whichever step was looked at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.made_job import MadeJob
from helpers.recorded import data, derived, h100, made
from helpers.thorough import some, spread

from tracetool.cli import run
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.reconstruction import reconstruct
from tracetool.replays import replay
from tracetool.replays.evaluation import stages_for
from tracetool.schedules import build_schedule
from tracetool.whatif.variation import predict_each_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.store.run import Run

FIGURES = ("step_ns", "window_ns", "bubble_ns", "bubble_ratio", "cross_dc_bubble_ns")


JOB = MadeJob(pp=2, microbatches=4, steps=2, layers=2, jitter_ratio=0.03, seed=1)


# Halves of backwards and slowdowns, too, are those of a recorded step.
@spread(
    ("recorded", "schedules", "extra", "numbers"),
    [
        (lambda: made(JOB), "geopipe,interleaved", "1,0", (0, 1)),
        (lambda: derived(data("h100-pp4", "traces", "rt1f1b_m8")), "geopipe,zb-h1,zb-v", "2,2,0,0", (1, 2)),
    ],
    1,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_replayed_by_each_step_is_what_a_look_at_it_gives(
    recorded: Callable[[], Run],
    schedules: str,
    extra: str,
    numbers: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Re-cut stages are those of the step."""
    asked = [
        "replay", str(recorded().path), "--schedule", schedules, "--extra-forwards", extra,
        "--dc", "0,1" if extra == "1,0" else "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--json",
    ]  # fmt: skip

    def answered(*more: str) -> list[dict[str, Any]]:
        assert run([*asked, *more]) == 0
        results: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["results"]
        return results

    alone = {step: answered("--step", str(step)) for step in numbers}
    assert all(result["each_step"] == [] for result in alone[numbers[1]])
    for step in some(numbers, 1):
        both = answered("--step", str(step), "--each-step")
        for place, result in enumerate(both):
            assert result["each_step"] == [
                {"number": n} | {name: alone[n][place][name] for name in FIGURES} for n in numbers
            ]
    assert run([*asked, "--each-step", "--copy-missing-ranks"]) == 2
    assert "copied ranks have no steps of their own" in capsys.readouterr().err


# What is replayed by each step is what a look at it gives by default, with re-cut stages.
@pytest.mark.thorough
def test_stages_are_cut_for_each_step() -> None:
    pipelines = [reconstruct(h100("rt1f1b_m8"), step=step).pipeline for step in (1, 2)]
    links = (Link("a", "b", 3_125_000_000, 10**7), Link("b", "a", 3_125_000_000, 10**7))
    scenario = Scenario(topology=Topology(("a", "a", "b", "b"), links))
    free = Scenario(topology=scenario.topology.without_delays())
    cut, shape, _ = stages_for(pipelines[0], "interleaved", None, 8)
    schedule = build_schedule("interleaved", shape, observed=cut.observed)
    found = predict_each_step(pipelines, schedule, scenario)
    for one, pipeline in zip(found, pipelines, strict=True):
        stages = stages_for(pipeline, "interleaved", None, 8)[0]
        over, at_once = (measure(replay(stages, schedule, each).timeline) for each in (scenario, free))
        assert (one.number, one.metrics) == (pipeline.step, over)
        assert one.cross_dc_bubble_ns == over.window_ns - at_once.window_ns > 0
