"""Each replay is made once: as many are made as differ in the values of their inputs, counted beside the product.

What an input is worth is its text (``msgspec``, keys sorted), which nothing of the product makes or compares.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from helpers.recorded import SAMPLES, data, derived, looked_at, run_of
from helpers.synthetic import pipeline, places, scenario
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool import replays, sweeps
from tracetool.advice import advise
from tracetool.cli import run
from tracetool.errors import ScheduleDeadlock
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.replays import evaluation, replay
from tracetool.replays.compiled import Compiled
from tracetool.replays.evaluation import Evaluation, Inputs, KnownOutcomes, evaluate
from tracetool.replays.scenarios import Replayer
from tracetool.schedules import build_schedule
from tracetool.sweeps import Grid, sweep
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import Schedule
    from tracetool.reconstruction import Reconstruction
    from tracetool.replays.scenarios import StepTimes

LINKS = places([2, 2], latency_ns=10_000_000, bandwidth_bytes_per_s=3_125_000_000)
OVER = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "-q"]
SHAPE = PipelineShape(4, 8)
ACTIONS = 4 * 8 * 2


@dataclass
class Counted:
    """What was asked for, as text, and how many replays of one scenario were made, by whomever."""

    asked: list[bytes] = field(default_factory=list)
    made: int = 0

    def hold(self, *, at_least: int) -> None:
        assert self.made == len(set(self.asked)) >= at_least


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    count = Counted()

    class Recorder(KnownOutcomes):
        def of(self, inputs: Inputs) -> Evaluation | ScheduleDeadlock:
            parts = inputs.pipeline, inputs.schedule, inputs.scenario
            # In JSON a link of unlimited bandwidth is like any other.
            links = repr(inputs.scenario.topology.links).encode()
            count.asked.append(msgspec.json.encode(parts, order="sorted") + links)
            return super().of(inputs)

    def compiled(*args: object, **options: object) -> Compiled:
        count.made += 1
        return Compiled(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluation, "_KNOWN", Recorder(10**6))
    monkeypatch.setattr(replays, "Compiled", compiled)
    return count


def sample() -> Reconstruction:
    return looked_at(run_of(SAMPLES / "h100-1f1b"))


def test_advice_over_two_schedules_replays_what_differs_and_nothing_twice(counted: Counted) -> None:
    """Results, the same over free links, depths, other transfers, the recording itself: most are asked for again."""
    advise(sample(), Scenario(LINKS, hbm_bytes=80 << 30), ["1f1b", "geopipe"])
    counted.hold(at_least=90)
    assert len(counted.asked) > 2 * counted.made


def test_costs_drawn_anew_are_drawn_once_for_equal_results(counted: Counted) -> None:
    """The baseline, and the result of its name."""
    answer(sample(), ["1f1b"], jitter_seed=7)
    counted.hold(at_least=40)
    assert len(counted.asked) >= 80


# Each command puts its what-ifs together by itself; what these two share with the others is most of it.
@spread(
    "words",
    [
        ["replay", "--schedule", "1f1b,gpipe,geopipe,zb-h1", *OVER],
        ["replay", "--schedule", "1f1b,geopipe", "--each-step", *OVER],
        ["sweep", "--dc", "0-1,2-3", "--bandwidth", "25Gbit/s", "--latency", "10ms", "--no-knees", "-q"],
        ["advise", "--co-tune", "--mbs", "1", "--seq", "2048", "--schedule", "1f1b,geopipe", *OVER],
        ["explain", "-q"],
        ["explain", "--schedule", "geopipe", "--hbm", "14GiB", *OVER],
        ["report", "--schedule", "1f1b,geopipe", *OVER],
    ],
    [["replay", "--schedule", "1f1b,geopipe", "--each-step", *OVER], ["explain", "-q"]],
)
def test_no_command_replays_anything_twice(
    counted: Counted, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run([words[0], str(derived(SAMPLES / "h100-1f1b").path), *words[1:]])
    counted.hold(at_least=1)
    assert len(counted.asked) > counted.made


# The columns of such a sweep are held in tests/stragglers; that nothing else is replayed is a matter of speed.
@pytest.mark.thorough
def test_equalizing_replays_nothing_one_by_one(counted: Counted) -> None:
    """All what-ifs of a step are columns of one sweep, which ``tests/stragglers`` holds to each one's own replay."""
    run(["replay", str(derived(SAMPLES / "h100-1f1b").path), "--equalize", "-q"])
    assert (counted.asked, counted.made) == ([], 0)


# Advice, which asks most often, and sweeps replay nothing twice by default (above, below).
@pytest.mark.thorough
def test_neither_validation_nor_comparison_replays_anything_twice(counted: Counted) -> None:
    one, other = (str(derived(SAMPLES / name).path) for name in ("h100-1f1b", "h100-1f1b-annotated"))
    run(["validate", one, str(data("h100-pp4", "measured.json")), "-q"])
    run(["compare", one, other, "-q"])
    counted.hold(at_least=30)


def test_a_sweep_and_its_knees_replay_no_order_twice_over_the_same_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under two memory limits: depths are chosen under each, and knees sought."""
    made: list[bytes] = []

    class Recorder(Replayer):
        def __init__(self, pipe: Pipeline, schedule: Schedule) -> None:
            self.order = schedule
            super().__init__(pipe, schedule)

        def replay_many(self, scenarios: Sequence[Scenario]) -> list[StepTimes]:
            made.extend(msgspec.json.encode((self.order, one), order="sorted") for one in scenarios)
            return super().replay_many(scenarios)

    monkeypatch.setattr(sweeps.replays, "Replayer", Recorder)
    grid = Grid(
        ("1f1b", "geopipe"), dcs=(Topology(LINKS.dcs),), bandwidths_bytes_per_s=(10**9,),
        latencies_ns=(10**6, 10**7), hbm_bytes=(14 << 30, 80 << 30),
    )  # fmt: skip
    assert sweep(sample(), grid, jobs=1).knees
    assert len(made) == len(set(made)) > 100


def measured() -> Pipeline:
    return pipeline(4, 8, 10, 20, payload_bytes=5, activation_bytes=3, static_bytes=7)


def test_equal_inputs_are_replayed_once_whatever_objects_they_are(counted: Counted) -> None:
    inputs = measured(), build_schedule("gpipe", SHAPE), scenario(LINKS)
    first = evaluate(*inputs)
    assert evaluate(*deepcopy(inputs)) is first
    # Neither a limit nor what is so already makes another replay.
    assert evaluate(inputs[0], inputs[1], replace(inputs[2], hbm_bytes=1, p2p="in-order", microbatches=8)) is first
    assert counted.made == 1


@given(hbm=st.none() | st.integers(1, 40), p2p=st.sampled_from(["grouped", "per-edge"]), m=st.none() | st.just(8))
def test_what_is_kept_is_what_replay_gives(hbm: int | None, p2p: str, m: int | None) -> None:
    what_if = Scenario(LINKS, hbm_bytes=hbm, p2p=p2p, microbatches=m)  # type: ignore[arg-type]
    order = build_schedule("gpipe", SHAPE)
    alone = replay(measured(), order, what_if)
    done = evaluate(measured(), order, what_if)
    assert (done.replayed, done.metrics) == (alone, measure(alone.timeline))


def test_inputs_that_differ_in_any_figure_are_replayed_apart(counted: Counted) -> None:
    pipe, order = measured(), build_schedule("1f1b", SHAPE)
    later = replace(pipe.stages[1], forward_transfer_ns=1)
    others = [
        (replace(pipe, stages=(pipe.stages[0], later, *pipe.stages[2:])), order, scenario(LINKS)),
        (replace(pipe, memory=pipe), order, scenario(LINKS)),
        (pipe, build_schedule("eager-1f1b", SHAPE), scenario(LINKS)),
        (pipe, order, scenario(LINKS, "per-edge")),
        (pipe, order, scenario(places([2, 2], latency_ns=10_000_001, bandwidth_bytes_per_s=3_125_000_000))),
    ]
    kept = [evaluate(pipe, order, scenario(LINKS)), *(evaluate(*other) for other in others)]
    assert counted.made == len({id(one) for one in kept}) == 1 + len(others)


def test_a_deadlock_is_found_once_and_told_each_time(counted: Counted) -> None:
    """Blocking batches cannot run two extra forwards (worked out in tests/replays/test_properties.py)."""
    pipe = pipeline(2, 8, 1, 2)
    order = build_schedule("geopipe", PipelineShape(2, 8), extra_forwards=(2, 0))
    for _ in range(3):
        with pytest.raises(ScheduleDeadlock, match="cannot finish"):
            evaluate(pipe, order, scenario(p2p="grouped"))
    assert counted.made == 1


def test_of_too_many_the_first_are_dropped(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_KNOWN", KnownOutcomes(2 * ACTIONS))
    orders = [build_schedule(name, SHAPE) for name in ("1f1b", "gpipe", "eager-1f1b")]
    first, *others = [evaluate(measured(), order) for order in orders]
    assert [evaluate(measured(), order) for order in orders[1:]] == others
    assert counted.made == 3
    again = evaluate(measured(), orders[0])
    assert counted.made == 4
    assert again is not first
    assert again == first


@given(st.permutations(range(2)))
def test_equal_profiles_have_one_hash_whatever_the_order_of_kinds(order: list[int]) -> None:
    stage = measured().stages[0]
    items = list(stage.costs.items())
    turned = replace(stage, costs={items[i][0]: items[i][1] for i in order})
    assert (turned, hash(turned)) == (stage, hash(stage))
