"""Sizes of a microbatch: against the closed form tried by brute force, and against layers that were measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from helpers.accuracy import sizes_errors
from helpers.recorded import SAMPLES, looked_at, run_of
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import spread

from tracetool.advice import advise
from tracetool.advice.cotune import EXTRAPOLATION_ERROR_RATIO, CoTuning, OtherSizes, co_tune, fixed_parts
from tracetool.costs.rescaled import MicrobatchSize, fixed_by_fit, with_batch
from tracetool.errors import ScenarioError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_dc_map, parse_link

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction

P, M, F, B = 4, 24, 1000, 2000
HELD, STATIC = 8, 500
RECORDED = MicrobatchSize(4, 1000)
NO_ATTENTION = 10**12
"""A hidden size so large that attention is nothing: times grow with the tokens alone."""


class Choice(NamedTuple):
    fits: bool
    step: float
    length: int
    sequences: int
    microbatches: int
    extra: int


def closed_ns(m: int, cycle: float, extra: int, delay_ns: int) -> float:
    """(m+p-1)(f+b) + 2c + r max(0, 2c - n(f+b)), one boundary in the middle of four stages: k = 3.

    r is how often the order waits for a round trip, which each takes in n + 2 microbatches.
    """
    rounds = (m - 1 - 3 - extra) // (extra + 2) + 1 if 3 + extra <= m - 1 else 0
    return (m + P - 1) * cycle + 2 * delay_ns + rounds * max(0, 2 * delay_ns - extra * cycle)


def by_brute_force(delay_ns: int, room_bytes: float) -> list[Choice]:
    """Every choice of sizes at equal tokens, each with the fewest forwards within 2 % of its shortest step."""
    choices = []
    tokens = RECORDED.tokens * M
    for length in (500, 1000, 2000):
        for sequences in range(1, tokens // length + 1):
            grown = sequences * length / RECORDED.tokens
            if tokens % (sequences * length) or not 1 / 4 <= grown <= 4:
                continue
            m, cycle = tokens // (sequences * length), (F + B) * grown
            steps = {n: closed_ns(m, cycle, n, delay_ns) for n in range(m - P + 1)}
            fitting = {n: step for n, step in steps.items() if min(P + n, m) * HELD * grown <= room_bytes}
            allowed = fitting or {0: steps[0]}
            extra = next(n for n, step in allowed.items() if step - min(allowed.values()) <= 0.02 * step)
            choices.append(Choice(bool(fitting), allowed[extra], length, sequences, m, extra))
    return sorted(choices, key=lambda c: (not c.fits, c.step, c.length, c.sequences))


# Other links, over which other sizes are best.
@spread(("delay_ns", "room_bytes"), [(10, 6 * HELD), (3000, 9 * HELD)], 1)
def test_choices_are_those_of_the_closed_form_tried_by_brute_force(delay_ns: int, room_bytes: int) -> None:
    pipe = pipeline(P, M, F, B, p2p="posted-ahead", activation_bytes=HELD, static_bytes=STATIC)
    over = scenario(places([2, 2], latency_ns=delay_ns), hbm_bytes=STATIC + room_bytes)
    tuned = co_tune(found(pipe), over, RECORDED, hidden=NO_ATTENTION)
    ours = [
        Choice(
            c.feasible is True,
            c.metrics.step_ns,
            c.batch.length,
            c.batch.sequences,
            c.microbatches,
            c.extra_forwards[0],
        )
        for c in tuned.candidates
    ]
    expected = by_brute_force(delay_ns, room_bytes)
    assert len(expected) > 10
    assert ours == expected
    assert all(c.extrapolated == (c.batch != RECORDED) for c in tuned.candidates)


def test_attention_grows_with_the_square_of_the_sequence() -> None:
    """FLOPs b s (1 + s / 6h): with h = s / 6 half of them are attention's, and a sequence twice as long has three
    times the FLOPs; twice the sequences have twice."""
    pipe = pipeline(1, 1, F, B)
    longer = with_batch(pipe, MicrobatchSize(1, 600), MicrobatchSize(1, 1200), hidden=100, fixed_ns={})
    more = with_batch(pipe, MicrobatchSize(1, 600), MicrobatchSize(2, 600), hidden=100, fixed_ns={})
    assert longer.stages[0].median_ns(ActionKind.FORWARD) == 3 * F
    assert more.stages[0].median_ns(ActionKind.BACKWARD) == 2 * B


def test_gradients_weights_and_fixed_times_stay() -> None:
    pipe = pipeline(1, 2, F, B, activation_bytes=HELD, static_bytes=STATIC, payload_bytes=64)
    first, second = pipe.stages[0].costs[ActionKind.BACKWARD]
    grads = 100  # the first backward leaves them behind
    costs = {**pipe.stages[0].costs, ActionKind.BACKWARD: (replace(first, held_bytes=grads - HELD), second)}
    pipe = replace(pipe, stages=(replace(pipe.stages[0], costs=costs),))
    place = (0, ActionKind.BACKWARD, 1)
    bigger = with_batch(
        pipe, MicrobatchSize(1, 100), MicrobatchSize(4, 100), hidden=NO_ATTENTION, fixed_ns={place: 500}
    )
    forward, backward = (bigger.stages[0].costs[kind] for kind in (ActionKind.FORWARD, ActionKind.BACKWARD))
    assert [c.held_bytes for c in forward] == [4 * HELD] * 2
    assert [c.held_bytes for c in backward] == [grads - 4 * HELD, -4 * HELD]
    assert [c.duration_ns for c in backward] == [4 * B, 500 + 4 * (B - 500)]
    assert bigger.stages[0].forward_payload_bytes == 256
    assert bigger.ranks == pipe.ranks


@pytest.mark.parametrize("by_fit", [False, True])
def test_layers_that_were_measured_are_within_the_error_that_is_told(*, by_fit: bool) -> None:
    errors = sizes_errors(by_fit=by_fit)
    assert max(errors) <= EXTRAPOLATION_ERROR_RATIO
    if not by_fit:
        assert max(errors) > EXTRAPOLATION_ERROR_RATIO - 0.01


def test_a_fit_gives_back_the_line_that_two_recordings_lie_on() -> None:
    one, two = MicrobatchSize(1, 100), MicrobatchSize(3, 100)
    line = {batch: pipeline(2, 3, 50 + 10 * batch.sequences, 80 + 20 * batch.sequences) for batch in (one, two)}
    fixed = fixed_by_fit(line[one], one, line[two], two, hidden=NO_ATTENTION)
    assert {fixed[s, ActionKind.FORWARD, i] for s in range(2) for i in range(3)} == {50}
    there = with_batch(line[one], one, two, hidden=NO_ATTENTION, fixed_ns=fixed)
    assert there.stages == line[two].stages


def test_sums_of_weight_gradients_take_what_the_memory_does() -> None:
    """Of every backward but the first: a sum reads the gradients twice and writes them once, at no more than the
    3.35 TB/s of an H100."""
    recorded = _sample()
    parts = fixed_parts(recorded)
    assert parts.sums_found
    for stage in recorded.pipeline.stages:
        first, later = (parts.times_ns[stage.stage, ActionKind.BACKWARD, i] for i in (0, 3))
        least = 3 * (stage.gradient_bytes() or 0) / 3.35e12 * 1e9
        assert 0.9 * least < later - first < 1.5 * least


@cache
def _sample() -> Reconstruction:
    return looked_at(run_of(SAMPLES / "h100-1f1b"))


def _tuned(**how: Any) -> CoTuning:
    recorded = _sample()
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    return co_tune(recorded, Scenario(topology=over), **({"recorded": MicrobatchSize(1, 2048)} | how))


def test_the_recorded_sizes_are_what_advice_says_of_geopipe() -> None:
    tuned = _tuned()
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    advice = advise(_sample(), Scenario(topology=over), ["geopipe"])
    assert advice.best is not None
    assert tuned.measured.metrics == advice.best.result.metrics
    assert tuned.measured.extra_forwards == advice.best.result.extra_forwards
    assert tuned.error_ratio == EXTRAPOLATION_ERROR_RATIO
    assert tuned.hidden == 4096  # measured.json: the model's
    assert {c.batch.tokens * c.microbatches for c in tuned.candidates} == {tuned.tokens} == {8 * 2048}


def test_the_error_is_not_told_where_nothing_like_it_was_measured() -> None:
    """Another device, tensor parallelism, or a host that keeps the device waiting for a tenth of an action."""
    recorded = _sample()
    unknown = replace(recorded.pipeline, ranks=tuple(replace(rank, load=None) for rank in recorded.pipeline.ranks))
    split = tuple(c._replace(tp=c.pp) for c in recorded.coordinates)
    slow = {
        rank: tuple(
            replace(s, kernels=tuple(k._replace(end_ns=k.end_ns - (k.end_ns - k.start_ns) // 5) for k in s.kernels))
            for s in segments
        )
        for rank, segments in recorded.segments.items()
    }
    for found_so, why in (
        (replace(recorded, pipeline=unknown), "H200 only"),
        (replace(recorded, coordinates=split), "tensor"),
        (replace(recorded, segments=slow), "gaps"),
    ):
        tuned = co_tune(found_so, Scenario(), MicrobatchSize(1, 2048))
        assert tuned.error_ratio is None
        assert why in tuned.assumptions[-1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"recorded": MicrobatchSize(3, 2048)}, "hidden size does not follow"),
        ({"also": OtherSizes(pipeline(2, 8, F, B), MicrobatchSize(2, 2048))}, "has 2 stages, this one 4"),
        ({"also": OtherSizes(pipeline(4, 8, F, B), MicrobatchSize(1, 2048))}, "as large as those"),
    ],
)
def test_what_does_not_go_together_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        _tuned(**how)


def test_a_cost_without_times_of_contention_keeps_none() -> None:
    pipe = pipeline(1, 1, F, B)
    (cost,) = (
        with_batch(pipe, MicrobatchSize(1, 2), MicrobatchSize(2, 2), hidden=NO_ATTENTION, fixed_ns={})
        .stages[0]
        .costs[ActionKind.FORWARD]
    )
    assert cost == ActionCost(2 * F)
