"""Sends matched to receives: sizes must agree, and captures that begin or end in the middle are shifted.

True partners are known from how the operations were made; recordings are cut at one side.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes, texts
from helpers.recorded import data, h100, run_of
from helpers.small_pipeline import Job, gpipe, write
from helpers.thorough import spread
from hypothesis import assume, given
from hypothesis import strategies as st

from tracetool.ingestion import ingest
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.collectives import COLLECTIVES_SQL, find_collectives
from tracetool.reconstruction.capture.messages import P2POp, match_messages, read_p2p

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Sides = dict[int, list[P2POp]]


def _sides(times: list[tuple[int, int]], sizes: list[int]) -> Sides:
    """Messages from rank 0 to rank 1: (start of the send, how much later the receive starts)."""
    sides: Sides = {0: [], 1: []}
    for number, ((sent, later), size) in enumerate(zip(times, sizes, strict=True)):
        end = max(sent, sent + later) + 70_000
        sides[0].append(P2POp(0, number, 1, True, size, "pp", number, 7, 1, sent, sent, end, None))
        start = sent + later
        sides[1].append(P2POp(1, number, 0, False, size, "pp", number, 7, 1, start, start, end + 14_000, None))
    return sides


def _partners(sides: Sides) -> dict[int, int]:
    found = match_messages(sides, Account())
    return {m.send.position: m.recv.position for m in found.messages}


def _on_another_clock(ops: Sequence[P2POp], ahead_ns: int) -> list[P2POp]:
    return [
        op._replace(start_ns=(op.start_ns or 0) + ahead_ns, end_ns=(op.end_ns or 0) + ahead_ns) for op in ops
    ]  # fmt: skip


_TIMES = st.lists(
    st.tuples(st.integers(1_000_000, 30_000_000), st.integers(-900_000, 900_000)), min_size=6, max_size=14
).map(lambda steps: [(sum(s for s, _ in steps[: n + 1]), later) for n, (_, later) in enumerate(steps)])


@given(_TIMES, st.integers(1, 3), st.booleans(), st.booleans())
def test_a_capture_that_begins_or_ends_later_on_one_side_is_shifted(
    times: list[tuple[int, int]], lost: int, at_front: bool, of_sends: bool
) -> None:
    sides = _sides(times, [100] * len(times))
    side = 0 if of_sends else 1
    sides[side] = sides[side][lost:] if at_front else sides[side][:-lost]
    gaps = {b[0] - a[0] for a, b in itertools.pairwise(times)}
    assume(len(gaps) == len(times) - 1)  # evenly spaced messages fit at every shift
    account = Account()
    found = match_messages(sides, account)
    if found.messages:
        assert all(m.send.position == m.recv.position for m in found.messages)
        assert len(found.unmatched) == lost
    assert account.notes


def test_what_fits_at_several_shifts_is_not_matched() -> None:
    """Messages every 10 ms, one receive fewer, clocks an unknown time apart: nothing tells which send is alone."""
    sides = _sides([(n * 10_000_000, 0) for n in range(8)], [100] * 8)
    sides[1] = _on_another_clock(sides[1][:-1], 3_000_000_000)
    account = Account()
    found = match_messages(sides, account)
    assert found.messages == ()
    assert len(found.unmatched) == 15
    assert NoticeCode.MESSAGES_UNMATCHED in codes(account.notes)


def test_sizes_tell_the_shift_where_times_do_not() -> None:
    sides = _sides([(n * 10_000_000, 0) for n in range(6)], [100, 200, 300, 400, 500, 600])
    sides[0] = sides[0][2:]
    assert _partners(sides) == {n: n for n in range(2, 6)}


def test_messages_of_other_sizes_never_meet() -> None:
    sides = _sides([(0, 0), (10_000_000, 0)], [100, 200])
    sides[1] = [op._replace(payload_bytes=op.payload_bytes and 2 * op.payload_bytes) for op in sides[1]]
    assert _partners(sides) in ({}, {1: 0})  # 200 meets 200 at a shift of one


def test_kernels_that_run_at_one_time_tell_the_shift_of_evenly_spaced_messages() -> None:
    sides = _sides([(n * 10_000_000, 0) for n in range(8)], [100] * 8)
    sides[0], sides[1] = sides[0][2:], sides[1][:-1]
    assert _partners(sides) == {n: n for n in range(2, 7)}


def test_as_many_on_both_sides_but_of_other_times_do_not_meet_one_by_one() -> None:
    """One capture begins two messages later and ends two later than the other: six each, of which four met."""
    sides = _sides([(n * 10_000_000, 0) for n in range(8)], [100] * 8)
    sides[0], sides[1] = sides[0][2:], sides[1][:-2]
    assert _partners(sides) == {n: n for n in range(2, 6)}


def test_clocks_that_are_seconds_apart_do_not_keep_whole_captures_from_matching() -> None:
    sides = _sides([(n * 10_000_000, 0) for n in range(8)], [100] * 8)
    sides[1] = _on_another_clock(sides[1], 7_000_000_000)
    assert _partners(sides) == {n: n for n in range(8)}


# Orders differ in which messages look alike; with equal clocks it is the easier of two.
@spread("name", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "interleaved_m8", "zbh1_m8", "tp2pp2_1f1b_m8"], 1)
@spread("ahead_ns", [3_000_000, 0], 1)
def test_captures_of_other_spans_on_every_rank_are_matched_as_before_or_not_at_all(name: str, ahead_ns: int) -> None:
    """Each rank keeps a span of its own, some clocks are ahead: no message and no collective meets another one."""
    run = h100(name)
    rows = [
        (*op, group, tuple(ranks)) for group, ranks, *ops in run.rows(COLLECTIVES_SQL) for op in zip(*ops, strict=True)
    ]
    ops = read_p2p(run)
    collectives = find_collectives(run, Account())
    numbers = {(op.rank, op.position): n for n, c in enumerate(collectives) for op in c.ops}
    partners = {_place(m.send): _place(m.recv) for m in match_messages(ops, Account(), collectives).messages}
    begin, end = min(row[4] for row in rows), max(row[5] for row in rows)
    choose = random.Random(1)  # noqa: S311 - where captures are cut, the same every time
    for _ in range(12):
        spans = {
            r: (begin + 0.4 * choose.random() * (end - begin), end - 0.4 * choose.random() * (end - begin)) for r in ops
        }
        kept = [
            (*row[:4], row[4] + row[0] % 2 * ahead_ns, row[5] + row[0] % 2 * ahead_ns, *row[6:])
            for row in rows
            if spans[row[0]][0] <= row[4] and row[5] <= spans[row[0]][1]
        ]
        cut = {
            r: _on_another_clock(
                [o for o in mine if spans[r][0] <= (o.start_ns or 0) and (o.end_ns or 0) <= spans[r][1]],
                r % 2 * ahead_ns,
            )
            for r, mine in ops.items()
        }
        found = find_collectives(_Rows(kept), Account())  # type: ignore[arg-type]
        assert all(len({numbers[op.rank, op.position] for op in c.ops}) == 1 for c in found)
        for known in (found, []):
            messages = match_messages(cut, Account(), known).messages
            assert all(partners[_place(m.send)] == _place(m.recv) for m in messages)


def _place(op: P2POp) -> tuple[int, int]:
    return op.rank, op.position


class _Rows:
    """A Run that answers every query with the same operations, those of a group together."""

    def __init__(self, rows: list[tuple[object, ...]]) -> None:
        of_group: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
        for *op, group, group_ranks in rows:
            of_group.setdefault((group, group_ranks), []).append(tuple(op))
        self._rows = [(*key, *zip(*ops, strict=True)) for key, ops in of_group.items()]
        self.manifest: dict[str, object] = {}

    def rows(self, _sql: str) -> list[tuple[object, ...]]:
        return self._rows


@pytest.mark.parametrize("name", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "interleaved_m8"])
@pytest.mark.parametrize("lost", [1, 5])
def test_a_recording_cut_in_front_on_one_rank_is_matched_as_before(name: str, lost: int) -> None:
    ops = read_p2p(h100(name))
    whole = {(m.send.rank, m.send.position): m.recv.position for m in match_messages(ops, Account()).messages}
    cut = {**ops, 1: ops[1][lost:]}
    account = Account()
    found = match_messages(cut, account)
    assert all(whole[m.send.rank, m.send.position] == m.recv.position for m in found.messages)
    # Between the stages of the interleaved run some messages follow each other so evenly that several shifts fit.
    assert len(found.messages) >= (len(whole) - lost if name != "interleaved_m8" else len(whole) - 64 - lost)
    assert NoticeCode.MESSAGES_UNMATCHED in codes(account.notes)


@pytest.mark.parametrize(("p", "m"), [(2, 12), (2, 32), (3, 9), (3, 24)])
def test_a_receiver_that_falls_behind_buffered_sends_meets_them_in_turn(p: int, m: int, tmp_path: Path) -> None:
    """GPipe: the next forward is sent on before the last one is received, later by a little each time."""
    run = ingest([write(tmp_path / "traces", Job(p, steps=(m,), orders=(gpipe,)))], tmp_path / "x.run")
    ops = read_p2p(run)
    found = match_messages(ops, Account())
    assert found.unmatched == ()
    for src, dst in itertools.permutations(range(p), 2):
        sent = [m.send.position for m in found.messages if (m.send.rank, m.recv.rank) == (src, dst)]
        met = [m.recv.position for m in found.messages if (m.send.rank, m.recv.rank) == (src, dst)]
        assert sent == [op.position for op in ops[src] if op.is_send and op.peer == dst]
        assert met == [op.position for op in ops[dst] if not op.is_send and op.peer == src]


def test_a_rank_that_was_not_recorded_is_told() -> None:
    ops = read_p2p(h100("1f1b_m8"))
    account = Account()
    found = match_messages({rank: o for rank, o in ops.items() if rank != 2}, account)
    assert {op.peer for op in found.unmatched} == {2}
    assert any("with rank 2," in note for note in texts(account.notes, NoticeCode.MESSAGES_OF_UNRECORDED))


def test_an_all_to_all_is_no_message() -> None:
    """Its kernels are called SendRecv, too: NCCL has one kernel for both (mlcommons/chakra#185)."""
    run = run_of(data("torch", "facebookresearch+param", "et_replay", "tests", "inputs"))
    assert run.rows("SELECT count(*) FROM comms WHERE operation IN ('send', 'recv')") == [(0,)]
    assert run.rows("SELECT count(*) FROM comms WHERE operation = 'sendrecv'") == [(40,)]
    assert read_p2p(run) == {}
