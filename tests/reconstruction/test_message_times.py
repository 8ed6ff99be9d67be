"""Messages against the actions that make and take them, all times chosen by hand."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.notices import texts

from tracetool.errors import UnmatchedTransfer
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.actions import RankWork, Segment
from tracetool.reconstruction.actions.cautions import check_times
from tracetool.reconstruction.actions.transfers import StageOp, messages_of_step
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.groups import PipelineGroup
from tracetool.reconstruction.capture.messages import P2POp, match_messages
from tracetool.reconstruction.capture.survey import Survey
from tracetool.reconstruction.steps import Step

F, INPUT, WEIGHT = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def _notes(*ops: tuple[ActionKind, bool, int, int], microbatch: int = 0) -> list[str]:
    """Rank 5 runs 1F0 from 1000 to 2000, 1I0 to 2500 and 1W0 from 3000 to 4000; per message its kind, side and time."""
    spans = ((F, 1000, 2000), (INPUT, 2000, 2500), (WEIGHT, 3000, 4000))
    segments = tuple(
        Segment(kind=kind, microbatch=0, stage=1, start_ns=start, end_ns=end, issue_ns=start, issued_ns=end)
        for kind, start, end in spans
    )
    posted = [
        StageOp(
            P2POp(5, n, 6, is_send, 8, "pp", None, 20, 1, start, start, end, None),
            kind if kind is F else ActionKind.BACKWARD, 1, microbatch,
        )
        for n, (kind, is_send, start, end) in enumerate(ops)
    ]  # fmt: skip
    account = Account()
    check_times(Step(0, {}), {5: posted}, {5: RankWork(segments, (), "label")}, account)
    return texts(account.notes, NoticeCode.ACTIONS_BEFORE_MESSAGES)


def test_messages_around_their_actions_are_fine() -> None:
    """A gradient may leave before the weights' gradients begin, and a send may begin while its action runs."""
    assert _notes((F, False, 0, 1000), (F, True, 1900, 2100), (INPUT, False, 0, 2000), (INPUT, True, 2500, 2600)) == []


def test_an_action_that_begins_before_its_message_came_is_told() -> None:
    (note,) = _notes((F, False, 500, 1700), (INPUT, False, 0, 2000))
    assert note.startswith("actions that begin before their message has come: 1; up to 700.0 ns of waiting")


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ((F, True, 900, 1100), "what 1F0 makes is sent 100.0 ns before it begins"),
        ((INPUT, True, 1900, 2100), "what 1B0 makes is sent 100.0 ns before it begins"),
        ((F, False, 2200, 2300), "what 1F0 takes is received 200.0 ns after it ended"),
        ((INPUT, False, 4000, 4100), "what 1B0 takes is received 0 ns after it ended"),
    ],
)
def test_a_message_at_a_time_that_cannot_be_is_refused(op: tuple[ActionKind, bool, int, int], told: str) -> None:
    with pytest.raises(UnmatchedTransfer, match=f"step 0, rank 5: {told}"):
        _notes(op)


def test_a_message_of_an_action_that_does_not_run_is_refused() -> None:
    with pytest.raises(UnmatchedTransfer, match="rank 5 sends a message of 1F7, which it does not run"):
        _notes((F, True, 1900, 2100), microbatch=7)


def test_equally_many_messages_that_do_not_fit_are_not_said_to_be_too_few() -> None:
    """Three sends of 8, 16 and 32 bytes against receives of 32, 8 and 16: no shift pairs them all."""
    ops = {
        rank: tuple(
            P2POp(rank, n, 1 - rank, rank == 0, size, "pp", None, 20, 1, 100 * n, 100 * n, 100 * n + 50, None)
            for n, size in enumerate(sizes)
        )
        for rank, sizes in ((0, (8, 16, 32)), (1, (32, 8, 16)))
    }
    nothing: Any = None
    p2p = {rank: list(of_rank) for rank, of_rank in ops.items()}
    survey = Survey(run=nothing, p2p=p2p, matched=match_messages(ops, Account()), clocks=nothing)
    group = PipelineGroup((0, 1))
    with pytest.raises(UnmatchedTransfer, match="sends 3 messages to rank 1, which receives as many, but their sizes"):
        messages_of_step(survey, group, Step(0, {0: (0, 1000), 1: (0, 1000)}))
