"""Clocks from messages whose true times are known, and from recordings on one host, where all clocks are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes, texts
from helpers.other_clock import with_other_clocks
from helpers.recorded import data, h100, rebuilt, run_of, small
from helpers.thorough import spread

from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import NOISE_NS, find_clocks
from tracetool.reconstruction.capture.messages import P2POp, PairedMessage
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.replays import replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MS = 1_000_000
START = 1_795_849_743_000 * MS
COPY = 10_000  # a payload that the library buffers is copied in and out in about as much
STAGGER = 4_000
WAYS = [(0, 1), (1, 0)]


def _op(rank: int, peer: int, position: int, *, is_send: bool, start: int, end: int) -> P2POp:
    return P2POp(rank, position, peer, is_send, 1 << 20, "pp", position, 7, 1, start - COPY, start, end, None)


def _message(way: tuple[int, int], number: int, *, sent: int, lag: int, waited: int, ahead: int) -> PairedMessage:
    """One message: it was sent at a true time, and received so much later; rank 1's clock is ahead."""
    src, dst = way
    there, here = (ahead if rank == 1 else 0 for rank in (dst, src))
    arrived = sent + lag
    send = _op(src, dst, 2 * number, is_send=True, start=sent - COPY + here, end=sent + here)
    recv = _op(dst, src, 2 * number + 1, is_send=False, start=arrived - waited + there, end=arrived + there)
    return PairedMessage(send, recv)


def _offset_and_whether_applied(messages: Sequence[PairedMessage]) -> tuple[int, bool]:
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


# Each has other messages by which clocks are known.
@spread(
    "name",
    [
        "ckpt_nonreentrant", "ckpt_reentrant", "zbv", "dualpipev", "izb", "interleaved2", "interleaved3", "loopedbfs",
    ], ["zbv", "izb"])  # fmt: skip
def test_ranks_of_one_host_have_one_clock(name: str) -> None:
    """Their barriers end within microseconds of each other in the recordings."""
    run = small(name)
    account = Account()
    clocks = survey_run(run, account).clocks
    assert not any(clock.applied for clock in clocks.by_rank.values())
    assert abs(clocks.by_rank[1].offset_ns or 0) < NOISE_NS


@pytest.mark.parametrize(("jump_ns", "drift_ppm", "told"), [(0, 20.0, False), (0, 400.0, False), (300_000, 0.0, True)])
def test_a_clock_that_was_set_during_the_capture_is_told(jump_ns: int, drift_ppm: float, told: bool) -> None:
    """40 messages over 240 ms, both ways in turn, whose receiver waits; rank 1's clock drifts, or jumps half-way."""
    messages = []
    for number in range(40):
        sent = START + number * 6 * MS
        ahead = (jump_ns if number >= 20 else 0) + round(number * 6 * MS * drift_ppm / 1e6)
        messages.append(_message(WAYS[number % 2], number, sent=sent, lag=20_000, waited=MS, ahead=ahead))
    account = Account()
    find_clocks([0, 1], messages, [], account)
    assert (NoticeCode.CLOCKS_DRIFT in codes(account.notes)) is told


# Costs on drifting clocks are those on true ones by default (test_other_clocks), and made messages give their clocks
# (above); of a recording, here, the true times of all kernels.
@pytest.mark.thorough
# Every order leaves other messages by which a clock is known, and a middle rank has them on both sides.
@spread("name", ["1f1b_m8", "gpipe_m8", "rt1f1b_m8", "tp2pp2_1f1b_m8"], ["1f1b_m8"])
@spread("rank", [1, 3], 1)
def test_an_offset_of_3_ms_and_a_drift_of_20_ppm_are_recovered(name: str, rank: int, tmp_path: Path) -> None:
    """Within 5 us over the whole capture; replay of its own recording is as near as before."""
    run = h100(name)
    shifted = with_other_clocks(run, {rank: (3 * MS, 20.0)}, tmp_path / "x.run")
    clocks = survey_run(shifted, Account()).clocks
    times = f"SELECT start_ns FROM events WHERE rank = {rank} AND category = 'kernel' ORDER BY event"
    for (wrong,), (true,) in zip(shifted.rows(times), run.rows(times), strict=True):
        assert abs(clocks.aligned_ns(rank, wrong) - true) <= 5_000
    assert _fidelity(reconstruct(shifted)) == pytest.approx(_fidelity(rebuilt(name)), abs=2e-4)


def _fidelity(found: Reconstruction) -> float:
    again = measure(replay(found.pipeline, found.pipeline.observed, Scenario()).timeline)
    return again.window_ns / measure(found.observed).window_ns


def test_the_clocks_of_four_ascend_ranks() -> None:
    """24.1 us between ranks 0 and 2, -2.0 between 1 and 3: half the difference of the lags of both directions.

    By hand from the operators' ends: rank 2 ends 3.8 us after rank 0 where it receives, rank 0 51.8 and 52.2 us after
    rank 2 where that sends: (52.0 - 3.8) / 2; small all-reduces, which end together, seem to end 24.0 to 24.2 us apart.
    """
    clocks = survey_run(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")), Account()).clocks.by_rank
    offsets = {rank: clock.offset_ns or 0 for rank, clock in clocks.items()}
    assert offsets[2] - offsets[0] == pytest.approx(24_100, abs=1_000)
    assert offsets[3] - offsets[1] == pytest.approx(-2_000, abs=1_000)
    assert clocks[2].applied


def test_messages_of_one_way_only_align_nothing_and_say_what_that_costs() -> None:
    messages = [
        _message((0, 1), n, sent=START + n * 50 * MS, lag=20_000, waited=2 * MS, ahead=40 * MS) for n in range(8)
    ]
    account = Account()
    clock = find_clocks([0, 1], messages, [], account).by_rank[1]
    assert (clock.offset_ns, clock.applied) == (None, False)
    (note,) = texts(account.notes)
    assert "messages go one way only between 0 and 1" in note
    assert "off by as much" in note


def test_the_table_of_clocks_says_by_what_they_are_known() -> None:
    """Megatron's capture holds collectives only; one rank's pair that contradicts the others lowers its confidence."""
    clocks = survey_run(run_of(data("torch", "astra-sim+astra-sim", "megatron-tp8")), Account()).clocks.by_rank
    assert {clock.evidence for clock in clocks.values()} == {"kernels"}
    assert {clock.confidence for clock in clocks.values()} == {1.0}
    circle = [
        _message(way, n, sent=START + n * 50 * MS, lag=STAGGER, waited=MS, ahead=0) for n, way in enumerate(WAYS * 4)
    ]
    wrong = [
        PairedMessage(*(op._replace(rank=places[op.rank], peer=places[op.peer]) for op in message))
        for places, ahead in (({0: 1, 1: 2}, 0), ({0: 0, 1: 2}, 5 * MS))
        for message in (
            _message(way, n + 100 + ahead, sent=START + n * 50 * MS, lag=STAGGER, waited=MS, ahead=ahead)
            for n, way in enumerate(WAYS * 4)
        )
    ]
    found = find_clocks([0, 1, 2], [*circle, *wrong], [], Account()).by_rank
    assert found[2].confidence < 1.0
    assert found[2].evidence == "messages"


DAYS_NS = 86_400 * 10**9


# Two groups of ranks are the easier half of three; a clock alone is told by none of it.
@spread(
    ("ahead", "told"),
    [
        ({2: 185 * DAYS_NS, 3: 185 * DAYS_NS}, ["ranks 2-3 185.0 days after ranks 0-1"]),
        ({0: 90 * 10**9, 3: -2 * DAYS_NS}, ["ranks 1-2 2.0 days after rank 3", "rank 0 89."]),
        ({2: 3 * MS}, []),
        ({}, []),
    ],
    [({0: 90 * 10**9, 3: -2 * DAYS_NS}, ["ranks 1-2 2.0 days after rank 3", "rank 0 89."]), ({2: 3 * MS}, [])],
)
def test_ranks_that_communicated_at_no_time_together_are_told(
    ahead: dict[int, int], told: list[str], tmp_path: Path
) -> None:
    """Captures of other steps, of whichever profilers, put together as one job; 3 ms are a clock's alone."""
    shifted = with_other_clocks(h100("1f1b_m8"), {rank: (ns, 0.0) for rank, ns in ahead.items()}, tmp_path / "x.run")
    account = Account()
    survey_run(shifted, account)
    (text,) = [note.text for note in account.notes if note.code is NoticeCode.CAPTURES_APART] or [""]
    assert all(each in text for each in told)
    assert bool(text) == bool(told)
