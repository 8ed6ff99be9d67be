"""Turns that torch's action runtime takes besides computing, written out by hand from what torch 2.11 does.

``_add_unshard_reshard`` puts UNSHARD ahead of the first compute of each of the next three stages and RESHARD when one
is not among those any more; ``_add_reduce_grad`` puts REDUCE_GRAD after a stage's last B or W. Each is one turn.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tracetool.model.action import Action, ActionKind
from tracetool.replays.flow import BACKWARD, FORWARD, INPUT, WEIGHT, WHOLE_WEIGHT, Flow
from tracetool.replays.placing import other_turns

_CODES = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


def turns(order: str, *, splits: bool = False) -> list[int]:
    """Turns ahead of each compute of an order such as ``0F0 0B0``; another rank runs an I if the schedule splits."""
    mine = [Action(int(text[0]), ActionKind(text[1]), int(text[2:])) for text in order.split()]
    actions = [*mine, *([Action(9, ActionKind.BACKWARD_INPUT, 0)] if splits else [])]
    split = {(a.stage, a.microbatch) for a in actions if a.kind is ActionKind.BACKWARD_INPUT}
    kinds = [
        WHOLE_WEIGHT if a.kind.value == "W" and (a.stage, a.microbatch) not in split else _CODES[a.kind.value]
        for a in actions
    ]
    flow = SimpleNamespace(
        actions=actions,
        first=np.array([0, len(mine), len(actions)], np.int32),
        stage=np.array([a.stage for a in actions], np.int32),
        kind=np.array(kinds, np.int8),
        opens=np.arange(len(actions), dtype=np.int32),
        schedule=SimpleNamespace(shape=SimpleNamespace(stages=10)),
    )
    return other_turns(cast("Flow", flow))[: len(mine)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # One stage: UNSHARD first, nothing more between computes; REDUCE_GRAD comes after the last one.
        ("0F0 0B0", [1, 0]),
        ("2F0 2F1 2B0 2F2 2B1 2B2", [1, 0, 0, 0, 0, 0]),
        # Two stages are both among the next three from the start; after 4B0 its gradients are reduced and, as no
        # compute of it follows, its weights resharded.
        ("0F0 4F0 4B0 0B0", [2, 0, 0, 2]),
        # Four stages: 0, 2 and 4 are gathered first. Ahead of 2F0 the next three are 2, 4, 6: 0 goes, 6 comes. Then
        # 4, 6, 2 and 6, 4, 2: none changes. Ahead of 4B0 they are 4, 2, 0: 6 is reduced, goes, and 0 comes. Ahead
        # of 2B0 and of 0B0 the one before is reduced and goes.
        ("0F0 2F0 4F0 6F0 6B0 4B0 2B0 0B0", [3, 2, 0, 0, 0, 3, 2, 2]),
        # A microbatch left of stage 4 keeps it from being reduced or resharded.
        ("0F0 4F0 4B0 0B0 4F1 4B1", [2, 0, 0, 0, 1 + 1, 0]),
    ],
)
def test_turns_of_orders_with_whole_backwards(order: str, expected: list[int]) -> None:
    assert turns(order) == expected


def test_weights_are_the_last_backward_of_a_split_one() -> None:
    # I does not end a stage's backward: 4 is reduced and goes ahead of 0I0, when its W is through.
    assert turns("0F0 4F0 4I0 4W0 0I0 0W0", splits=True) == [2, 0, 0, 0, 2, 0]
    # Here it does after 0I0.
    assert turns("0F0 4F0 4I0 0I0 4W0 0W0", splits=True) == [2, 0, 0, 0, 0, 2]


def test_the_first_stages_input_gradient_takes_a_turn_that_no_trace_shows() -> None:
    """Torch's I of its first stage does nothing; the W alone, which is its whole backward, tells that it was there."""
    assert turns("0F0 0F1 0W0 0W1", splits=True) == [1, 0, 1, 1]
    # Where nothing is split, torch ran a whole backward that a trace calls W.
    assert turns("0F0 0F1 0W0 0W1") == [1, 0, 0, 0]
