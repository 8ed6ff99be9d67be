"""How far off a step may be for layers that do not run as recorded: the largest share that any action may be off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, looked_at, run_of

from tracetool.costs.rescaled import with_layers
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionChange, LayerOverlap, Pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_link
from tracetool.replays.evaluation import evaluate
from tracetool.schedules import build_schedule
from tracetool.whatif.accuracy import change_error_ratio, known_error
from tracetool.whatif.answer import answer
from tracetool.whatif.best import recorded_test
from tracetool.whatif.layers import LayersError, layers_error

if TYPE_CHECKING:
    from tracetool.model.schedule import Schedule
    from tracetool.whatif.accuracy import KnownError

MS = 1_000_000


def recorded() -> Pipeline:
    return looked_at(run_of(SAMPLES / "h100-1f1b")).pipeline


def overlap(way: str = "slice:2", *, error_ns: int = MS, link_error_ns: int = 0, **words: object) -> LayerOverlap:
    """Every forward 2 ms shorter, every backward 1 ms longer; errors of one and two parts."""
    kinds = ((ActionKind.FORWARD, -2 * MS, 1), (ActionKind.BACKWARD, MS, 2))
    changes = tuple(
        ActionChange(stage, kind, change, error_ns * parts, link_error_ns * parts)
        for stage in range(4)
        for kind, change, parts in kinds
    )
    return replace(LayerOverlap(way, None, changes), **words)  # type: ignore[arg-type]


def test_replaying_the_recording_is_judged_with_layers_as_recorded() -> None:
    """Else what the layers change was told as what replay misses of the recording."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    changed = replace(found, pipeline=with_layers(found.pipeline, overlap()))
    plain, other = (answer(each, "1f1b") for each in (found, changed))
    assert other.results[0].metrics.step_ns != plain.results[0].metrics.step_ns
    assert (other.fidelity, other.warnings) == (plain.fidelity, plain.warnings)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "geopipe"])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_step_is_further_off_than_its_actions(schedule: str, sign: int) -> None:
    """Replayed with every action off by its whole error, over a link and without."""
    before = recorded()
    changed = with_layers(before, overlap())
    off = tuple(replace(c, change_ns=c.change_ns + sign * c.error_ns) for c in overlap().actions)
    further = with_layers(before, replace(overlap(), actions=off))
    known = layers_error(changed)
    assert known is not None
    assert known.way_ratio == max(
        parts * MS / min(cost.duration_ns for cost in stage.costs[kind])
        for stage in changed.stages
        for kind, parts in ((ActionKind.FORWARD, 1), (ActionKind.BACKWARD, 2))
    )
    for scenario in (Scenario(), Scenario(Topology(("a", "a", "b", "b"), tuple(parse_link("a-b=25Gbit/s,10ms"))))):
        steps = [evaluate(of, _order(of, schedule), scenario).metrics.step_ns for of in (changed, further)]
        assert 0 < sign * (steps[1] - steps[0]) <= known.way_ratio * steps[0]


def _order(pipeline: Pipeline, name: str) -> Schedule:
    return build_schedule(name, pipeline.observed.shape, extra_forwards=(2, 2, 0, 0) if name == "geopipe" else None)


def test_what_is_known_of_a_step_holds_its_layers() -> None:
    plain = answer(looked_at(run_of(SAMPLES / "h100-1f1b")), "1f1b").results[0]
    assert plain.known_error is not None

    own = plain.known_error.own_ratio

    def known(of: LayerOverlap) -> KnownError | None:
        return known_error(with_layers(recorded(), of), plain.replayed.schedule, plain.p2p, Scenario(), own)

    sliced, again, other = known(overlap()), known(overlap()), known(overlap("p2p"))
    layers = layers_error(with_layers(recorded(), overlap()))
    assert layers is not None
    assert sliced is not None
    assert sliced.step_ratio == plain.known_error.step_ratio + layers.way_ratio
    between = change_error_ratio(plain.known_error, plain.known_error, 0.0)
    assert between is not None
    assert change_error_ratio(sliced, again, 0.0) == between  # layers that are alike are as far off
    assert change_error_ratio(plain.known_error, sliced, 0.0) == pytest.approx(between + layers.way_ratio)
    assert change_error_ratio(sliced, other, 0.0) == pytest.approx(between + 2 * layers.way_ratio)
    assert known(overlap(is_measured=False)) is None
    assert known(overlap("fused")) is None


def test_links_count_where_they_differ() -> None:
    near, far = LayersError("none", 50, 0.0, 0.03), LayersError("slice:2", 50, 0.04, 0.03)
    assert near.beside(far) == pytest.approx(0.04)
    assert LayersError().beside(far) == pytest.approx(0.07)
    assert far.beside(replace(far, bandwidth_bytes_per_s=25)) == pytest.approx(0.14)


def test_an_overlapping_order_is_not_what_was_recorded() -> None:
    """So that nothing takes it for the recorded step: it says what it rests on."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    changed = replace(found, pipeline=with_layers(found.pipeline, overlap(is_measured=False)))
    result = answer(changed, "1f1b").results[0]
    assert recorded_test(found.pipeline)(result)
    assert (result.evidence, result.rests_on) == ("unproven", ("layers that overlap by slice:2",))
