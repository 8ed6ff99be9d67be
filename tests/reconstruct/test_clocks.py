"""Clocks from messages whose true times are known, and from recordings on one host, where all clocks are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded import small

from tracetool.reconstruct.account import Account
from tracetool.reconstruct.clocks import NOISE_NS, find_clocks
from tracetool.reconstruct.messages import Message, P2POp
from tracetool.reconstruct.survey import survey_run

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000
START = 1_795_849_743_000 * MS
COPY = 10_000  # a payload that the library buffers is copied in and out in about as much
STAGGER = 4_000
WAYS = [(0, 1), (1, 0)]


def _op(rank: int, peer: int, position: int, *, is_send: bool, start: int, end: int) -> P2POp:
    return P2POp(rank, position, peer, is_send, 1 << 20, "pp", position, 7, 1, start - COPY, start, end, None)


def _message(way: tuple[int, int], number: int, *, sent: int, lag: int, waited: int, ahead: int) -> Message:
    """One message: it was sent at a true time, and received so much later; rank 1's clock is ahead."""
    src, dst = way
    there, here = (ahead if rank == 1 else 0 for rank in (dst, src))
    arrived = sent + lag
    send = _op(src, dst, 2 * number, is_send=True, start=sent - COPY + here, end=sent + here)
    recv = _op(dst, src, 2 * number + 1, is_send=False, start=arrived - waited + there, end=arrived + there)
    return Message(send, recv)


def _offset_and_whether_applied(messages: Sequence[Message]) -> tuple[int, bool]:
    clock = find_clocks([0, 1], messages, [], Account()).by_rank[1]
    assert clock.offset_ns is not None
    return clock.offset_ns, clock.applied


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("late", [0.1 * MS, 1.9 * MS, 40 * MS])
def test_sends_of_one_way_that_were_all_buffered_do_not_move_a_clock(count: int, late: float) -> None:
    """As the last backward of 1F1B on two ranks: it is sent alone, and fetched when the other rank gets there."""
    there = [_message((0, 1), n, sent=START + n * 100 * MS, lag=STAGGER, waited=MS, ahead=0) for n in range(count)]
    back = [
        _message((1, 0), n + 50, sent=START + (n * 100 + 30) * MS, lag=int(late), waited=COPY, ahead=0)
        for n in range(count)
    ]
    assert not _offset_and_whether_applied([*there, *back])[1]


@pytest.mark.parametrize("lag", [STAGGER, 20 * MS])
@pytest.mark.parametrize("ahead", [-3 * MS, 70 * MS])
def test_a_clock_that_is_off_is_found_whatever_the_latency_of_the_link(lag: int, ahead: int) -> None:
    """Receives that wait for their message show the whole lag, short or long."""
    messages = [
        _message(way, n, sent=START + n * 50 * MS, lag=lag, waited=lag + 2 * MS, ahead=ahead)
        for n, way in enumerate(WAYS * 4)
    ]
    assert _offset_and_whether_applied(messages) == (-ahead, True)


def test_a_clock_that_is_off_by_more_than_the_bounds_of_buffered_sends_is_moved() -> None:
    messages = [
        _message(way, n, sent=START + n * 50 * MS, lag=2 * MS, waited=COPY, ahead=70 * MS)
        for n, way in enumerate(WAYS * 4)
    ]
    offset, applied = _offset_and_whether_applied(messages)
    assert applied
    assert offset == pytest.approx(-70 * MS, abs=2 * MS)


@pytest.mark.parametrize(
    "name",
    [
        "ckpt_nonreentrant", "ckpt_reentrant", "zbv", "dualpipev", "izb", "interleaved2", "interleaved3", "loopedbfs",
    ],
)  # fmt: skip
def test_ranks_of_one_host_have_one_clock(name: str) -> None:
    """Their barriers end within microseconds of each other in the recordings."""
    run = small(name)
    account = Account()
    clocks = survey_run(run, account).clocks
    assert not any(clock.applied for clock in clocks.by_rank.values())
    assert abs(clocks.by_rank[1].offset_ns or 0) < NOISE_NS
