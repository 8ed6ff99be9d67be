"""What halves of a backward hold: by hand from a small log, and against peaks of a run that split its backwards."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import data, rebuilt

from tracetool.metrics import measure
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.reconstruct.action_view import ActionView
from tracetool.reconstruct.kernels import Kernel
from tracetool.reconstruct.memory_log import Log
from tracetool.reconstruct.segments import Segment
from tracetool.reconstruct.split_memory import Needs, memory_of_halves, needs_of_weights, read_needs
from tracetool.replay import replay
from tracetool.schedules import build_schedule

INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def _view(nodes: list[tuple[int, int]], stage: int = 0) -> ActionView:
    """A backward whose nodes (number, launch) run a kernel each."""
    kernels = tuple(Kernel(1000 + n, 1001 + n, launch, node=node) for n, (node, launch) in enumerate(nodes))
    segment = Segment(ActionKind.BACKWARD, 0, stage, 1000, 1001 + len(nodes), nodes[0][1], nodes[-1][1], kernels)
    return ActionView(0, segment, [1] * len(nodes), [], [], [], [])


def _log(changes: list[tuple[int, str, int]]) -> Log:
    """Changes (time, block, bytes); names of blocks become numbers."""
    names = sorted({name for _, name, _ in changes})
    times, delta = (np.array([c[i] for c in changes], np.int64) for i in (0, 2))
    block = np.array([names.index(name) for _, name, _ in changes], np.int64)
    return Log("x", times, delta, 0, block, 1.0, is_samples=False)


# Node 1 is the loss, 2 and 4 are products that feed parameters, 3 is an activation function.
NODES = [(1, 100), (2, 200), (3, 300), (4, 400)]
CHANGES = [
    (10, "logits", 50),  # by the forward
    (20, "input of 2", 30),
    (30, "input of 4", 20),
    (110, "gradient of 2", 8),
    (150, "logits", -50),  # ahead of the first product: no weight needs it
    (210, "gradient of 3", 8),
    (220, "gradient of 2", -8),  # needed last by a product
    (230, "input of 2", -30),
    (310, "gradient of 4", 6),
    (320, "gradient of 3", -8),  # needed last by an activation function
    (410, "gradient of weights", 1000),  # stays
    (420, "gradient of 4", -6),
    (430, "input of 4", -20),
]


def test_what_weight_gradients_need() -> None:
    """Gradients of both products' outputs, 8 + 6; of what the forward kept, 100, the 50 of the loss are not needed."""
    needs = needs_of_weights(_view(NODES), _log(CHANGES), frozenset({2, 4}))
    assert needs == Needs(gradient_bytes=14, early_bytes=50, kept_bytes=100)


def test_what_is_freed_after_the_backward_is_not_its_own() -> None:
    late = [*CHANGES[:-1], (400 + 200_001, "input of 4", -20)]
    assert needs_of_weights(_view(NODES), _log(late), frozenset({2, 4})) == Needs(14, 50, 80)
    just = [*CHANGES[:-1], (400 + 199_999, "input of 4", -20)]
    assert needs_of_weights(_view(NODES), _log(just), frozenset({2, 4})) == Needs(14, 50, 100)


def test_nothing_is_told_without_products_or_frees() -> None:
    assert needs_of_weights(_view(NODES), _log(CHANGES), frozenset()) is None
    assert needs_of_weights(_view(NODES), _log(CHANGES[:4]), frozenset({2})) is None


def test_needs_are_read_of_split_stages_alone() -> None:
    views = [_view(NODES), _view(NODES, stage=1)]
    weights = {0: frozenset({2, 4})}
    found = read_needs(views, {0: _log(CHANGES)}, weights, frozenset({1}))
    assert found == {(1, 0): Needs(14, 50, 100)}
    assert read_needs(views, {}, weights, frozenset({0, 1})) == {}


def test_memory_of_halves_by_hand() -> None:
    """Of 100 kept, I frees 50 and leaves 14 of gradients: it ends 36 lower; W frees the other 50 and the 14.

    The whole backward needs 9 above its start; gradients of weights, 1000, come in full in its first microbatch.
    """
    forward = ActionCost(10, 100, 120)
    halves = memory_of_halves(forward, ActionCost(20, -100, 9), Needs(14, 50, 100))
    assert halves[INPUT] == ActionCost(0, 14 - 50, 0 + 9)
    assert halves[WEIGHT] == ActionCost(0, -50 - 14, 9)
    first = memory_of_halves(forward, ActionCost(20, -100 + 1000, 909), Needs(14, 50, 100))
    assert first[INPUT] == ActionCost(0, -36, 9)
    assert first[WEIGHT] == ActionCost(0, 1000 - 50 - 14, 1000 + 9)


def test_what_another_action_made_is_not_freed_twice() -> None:
    """Freed were 100, of which the forward is counted with 70: 30 less of what is freed early are its own."""
    halves = memory_of_halves(ActionCost(10, 70, 70), ActionCost(20, -70, 0), Needs(14, 50, 100))
    assert halves[INPUT].held_bytes == 14 - 20
    assert memory_of_halves(ActionCost(10, 10, 10), ActionCost(20, -10, 0), Needs(14, 50, 100))[INPUT].held_bytes == 14


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (ActionCost(1), ActionCost(1, -1, 0)),
        (ActionCost(1, 1, 1), ActionCost(1, None, 0)),
        (ActionCost(1, 1, 1), ActionCost(1, -1, None)),
    ],
)
def test_unknown_memory_stays_unknown(forward: ActionCost, backward: ActionCost) -> None:
    assert memory_of_halves(forward, backward, Needs(1, 1, 1)) == {}


@given(
    forward=st.integers(0, 1000),
    gradients=st.integers(0, 1000),
    above=st.integers(0, 1000),
    needs=st.builds(Needs, st.integers(0, 500), st.integers(0, 500), st.integers(0, 1000)),
)
def test_halves_hold_together_what_the_whole_holds(forward: int, gradients: int, above: int, needs: Needs) -> None:
    held = gradients - forward
    whole = ActionCost(1, held, max(0, held) + above)
    halves = memory_of_halves(ActionCost(1, forward, forward), whole, needs)
    sizes = [halves[kind].held_bytes or 0 for kind in (INPUT, WEIGHT)]
    assert sum(sizes) == held
    for kind in (INPUT, WEIGHT):
        assert (halves[kind].peak_bytes or 0) >= max(0, halves[kind].held_bytes or 0)


def test_a_first_stages_halves_are_nothing_and_all() -> None:
    first = rebuilt("1f1b_m8_mem").pipeline.stages[0]
    backward = first.costs[ActionKind.BACKWARD]
    assert {(c.held_bytes, c.peak_bytes) for c in first.derived[INPUT]} == {(0, 0)}
    assert [(c.held_bytes, c.peak_bytes) for c in first.derived[WEIGHT]] == [
        (c.held_bytes, c.peak_bytes) for c in backward
    ]


def test_peaks_of_split_backwards_are_those_measured_within_5_percent() -> None:
    """zbh1_m8 of measured.json, from a recording that never split a backward."""
    rows = json.loads(data("h100-pp4", "measured.json").read_text(encoding="utf-8"))["results"]
    (row,) = (r for r in rows if r["name"] == "zbh1_m8")
    pipeline = rebuilt("1f1b_m8_mem").pipeline
    done = replay(pipeline, build_schedule("zb-h1", PipelineShape(4, 8)), Scenario())
    measured = [gib * 2**30 for gib in row["peak_allocated_gib"]]
    assert measure(done.timeline).peak_hbm_bytes == pytest.approx(measured, rel=0.05)
