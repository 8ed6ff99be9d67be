"""Waiting and moving of every communication operation.

Golden numbers of Ascend are those that its profiler wrote (communication.json) and of the data's README, of
megatron-tp8 those of the latter; recordings of H100 are compared with the kernels' own times.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.recorded import data, derived, h100, looked_at, run_of
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.reconstruction.actions.hops import link_rows
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import Clocks
from tracetool.reconstruction.capture.collectives import find_collectives
from tracetool.reconstruction.capture.messages import P2POp, PairedMessage
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reconstruction.capture.waits import Union, Wait, find_waits, read_ops, total_ns, with_exposed
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.store.run import Run

LEVEL2 = ("ascend", "Ascend+msinsight", "test", "st", "level2")
TP8 = ("torch", "astra-sim+astra-sim", "megatron-tp8")
LINK_MS = 0.40
"""Time of 8,388,608 bytes over HCCS at 20.9 GB/s."""

ELAPSED_MS = {
    "_3": (0.43614, 0.43518, 71.42468, 73.75088),
    "_4": (158.55328, 164.09654, 0.80412, 0.80168),
    "_5": (154.88838, 158.44884, 0.43486, 0.43418),
}
"""Elapse of the P2P operators on ranks 0 to 3."""

WAITED_MS = {
    "_3": (0.0, 0.0, 71.42468 - LINK_MS, 73.75088 - LINK_MS),
    "_4": (158.55328 - LINK_MS, 164.09654 - LINK_MS, 0.40446, 0.40454),
    "_5": (154.88838 - LINK_MS, 158.44884 - LINK_MS, 0.0, 0.0),
}
"""What is left after the link's time; of an operator that only sends, the transfer is all (0.436 ms)."""


def _waits(run: Run) -> dict[tuple[int, int], Wait]:
    return {(w.rank, w.position): w for w in with_exposed(run, survey_run(run, Account()).waits)}


@pytest.mark.parametrize("kind", ["F", "B"])
def test_stages_and_links_take_the_time_of_a_message_from_the_same_place_as_waits(kind: str) -> None:
    """On Ascend the shortest operator of a link and size (the golden elapse times of pipeline 0), not the time since
    both sides started, which holds handshakes too."""
    run = run_of(data(*LEVEL2))
    found = looked_at(run)
    (row,) = [r for r in link_rows(found.observed, survey_run(run, Account())) if r[2] == kind]
    if kind == "F":
        expected_ms, stage_ns = ELAPSED_MS["_3"][0], found.pipeline.stages[0].forward_transfer_ns
    else:
        expected_ms, stage_ns = ELAPSED_MS["_5"][2], found.pipeline.stages[1].backward_transfer_ns
    assert stage_ns == row[5]
    # The vendor's elapse and the operator's span on the timeline differ by less than two microseconds.
    assert stage_ns == pytest.approx(expected_ms * 1e6, abs=2_000)
    assert {t.end_ns - t.start_ns for t in found.observed.transfers if t.kind.value == kind} == {stage_ns}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_what_overlaps_counts_once(spans: list[tuple[int, int]]) -> None:
    """Against counting whole nanoseconds one by one."""
    covered = {t for start, length in spans for t in range(start, start + length)}
    assert total_ns((start, start + length) for start, length in spans) == len(covered)


@pytest.mark.parametrize("schedule", ["ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"])
def test_overlapping_work_of_the_host_is_no_longer_than_the_capture(schedule: str) -> None:
    """gloo: sends and receives wait on threads of the host side by side; their sum is 17 times the capture."""
    run = run_of(data("cpu-gloo-pp4", schedule))
    account = Account()
    survey_run(run, account)
    told = {f.subject: f.value for f in account.findings if f.fact == "communication"}
    rows = run.rows(
        "WITH ops AS (SELECT rank, start_ns, end_ns, max(end_ns) OVER (PARTITION BY rank ORDER BY start_ns, end_ns "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until FROM comms WHERE start_ns IS NOT NULL) "
        "SELECT rank, count(*), sum(greatest(0, end_ns - greatest(start_ns, coalesce(until, start_ns))))::BIGINT "
        "FROM ops GROUP BY rank ORDER BY rank"
    )
    assert len(rows) == 4
    for rank, count, busy in rows:
        assert told[f"rank {rank}"].startswith(f"{count} operations, {format_duration(busy)}, ")
        assert "kernel" not in told[f"rank {rank}"]


def test_the_p2p_operators_of_four_ascend_ranks() -> None:
    run = run_of(data(*LEVEL2))
    waits = _waits(run)
    rows = run.rows(
        "SELECT rank, position, dense_rank() OVER (PARTITION BY rank ORDER BY start_ns) + 2, peer, payload_bytes, "
        "operation FROM comms WHERE operation IN ('send', 'recv') ORDER BY rank, position"
    )
    assert len(rows) == 16
    for rank, position, index, peer, size, _ in rows:
        wait = waits[rank, position]
        assert (peer, size) == ((rank + 2) % 4, 8_388_608)
        assert (wait.wait_ns + wait.transfer_ns) / 1e6 == pytest.approx(ELAPSED_MS[f"_{index}"][rank], abs=1e-5)
        assert wait.wait_ns / 1e6 == pytest.approx(WAITED_MS[f"_{index}"][rank], abs=0.1)
        assert not wait.upper_bound
    directions = {(rank, index, operation) for rank, _, index, _, _, operation in rows if rank == 0}
    assert directions == {(0, 3, "send"), (0, 4, "send"), (0, 4, "recv"), (0, 5, "recv")}


def test_the_cool_down_of_the_second_stage_waits_inside_the_embedding_all_reduce() -> None:
    """121.0 against 34.6 ms: 86.4 ms, on rank 2 as on rank 3."""
    run = run_of(data(*LEVEL2))
    waits = _waits(run)
    rows = run.rows("SELECT rank, position FROM comms WHERE operation = 'allreduce' AND end_ns - start_ns > 30000000")
    found = {rank: waits[rank, position] for rank, position in rows}
    assert sorted(found) == [0, 1, 2, 3]
    assert [round(found[rank].wait_ns / 1e6, 1) for rank in range(4)] == [0.0, 0.0, 86.4, 86.4]
    assert found[0].transfer_ns / 1e6 == pytest.approx(34.6, abs=0.05)


def test_the_all_reduces_of_megatron_are_matched_by_order_and_move_for_50_ms() -> None:
    """84 all-reduces without a host record on 8 ranks; ends agree within 30 us (median)."""
    run = run_of(data(*TP8))
    account = Account()
    survey = survey_run(run, account)
    own = {w.pair: w.transfer_ns for w in survey.waits}
    assert len(own) == 84
    assert sum(own.values()) / 1e6 == pytest.approx(50.1, rel=0.02)
    spreads = []
    for collective in find_collectives(run, Account()):
        ends = [survey.clocks.aligned_ns(op.rank, op.end_ns) for op in collective.ops]
        assert (len(ends), collective.evidence) == (8, "order")
        spreads.append(max(ends) - min(ends))
    assert median(spreads) <= 30_000


@pytest.mark.parametrize("name", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "tp2pp2_1f1b_m8"])
def test_waiting_and_moving_make_up_every_operation(name: str) -> None:
    run = h100(name)
    waits = _waits(run)
    rows = run.rows("SELECT rank, position, end_ns - start_ns, batch FROM comms WHERE start_ns IS NOT NULL")
    assert len(rows) == len(waits)
    for rank, position, duration, _ in rows:
        wait = waits[rank, position]
        assert wait.wait_ns >= 0
        assert wait.transfer_ns >= 0
        assert wait.wait_ns + wait.transfer_ns == duration
        assert wait.exposed_ns is not None
        assert 0 <= wait.exposed_ns <= duration
        assert wait.pair is not None


def test_a_message_of_16_mib_moves_in_tens_of_microseconds_on_nvlink() -> None:
    """Sends of these runs that end before their receive has begun last about 70 us.

    What is longer is waiting, or a copy out of a buffer.
    """
    waits = _waits(h100("1f1b_m8"))
    moved = [w.transfer_ns for w in waits.values() if w.operation == "recv"]
    assert 50_000 < median(moved) < 110_000


def test_exposed_time_counted_by_an_independent_sweep() -> None:
    run = h100("rt1f1b_m8")
    waits = _waits(run)
    spans = run.rows(
        "SELECT start_ns, start_ns + duration_ns FROM events WHERE rank = 1 AND category = 'kernel' "
        "AND NOT starts_with(name, 'nccl')"
    )
    for rank, position, start, end in run.rows("SELECT rank, position, start_ns, end_ns FROM comms WHERE rank = 1"):
        free, at = 0, start
        for s, e in sorted(span for span in spans if span[0] < end and span[1] > start):
            free += max(0, s - at)
            at = max(at, e)
        assert waits[rank, position].exposed_ns == free + max(0, end - at)


def _p2p(rank: int, *, is_send: bool, start: int, end: int) -> P2POp:
    return P2POp(rank, 0, 1 - rank, is_send, 8, "pp", None, 7, 1, start, start, end, None)


class _NoRun:
    """A Run of two operations and no kernels."""

    manifest: dict[str, list[dict[str, object]]] = {"sources": []}  # noqa: RUF012 - as a Run has it

    def __init__(self, message: PairedMessage) -> None:
        self._ops = [
            (op.rank, op.position, "send" if op.is_send else "recv", op.start_ns, op.end_ns, op.position)
            for op in message
        ]

    def rows(self, _sql: str) -> list[tuple[object, ...]]:
        return list(self._ops)

    def arrow(self, sql: str) -> pa.Table:
        ops = self._ops if "FROM comms" in sql else []
        columns = {"rank": 0, "position": 1, "start_ns": 3, "end_ns": 4}
        return pa.table({name: pa.array([op[at] for op in ops], pa.int64()) for name, at in columns.items()})


def _split(message: PairedMessage, pairs: list[PairedMessage]) -> list[Wait]:
    """Both operations of a message, in a Run of nothing else."""
    run: Any = _NoRun(message)
    return with_exposed(run, find_waits(run, read_ops(run), pairs, [], Clocks()))


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 100), st.integers(1, 100))
def test_no_split_is_negative_and_a_buffered_send_waits_for_nobody(s: int, d: int, r: int, e: int) -> None:
    message = PairedMessage(_p2p(0, is_send=True, start=s, end=s + d), _p2p(1, is_send=False, start=r, end=r + e))
    send, recv = _split(message, [message])
    for wait, duration in ((send, d), (recv, e)):
        assert wait.wait_ns >= 0
        assert wait.transfer_ns == duration - wait.wait_ns
        assert wait.exposed_ns is None
    if s + d <= r:
        assert (send.wait_ns, recv.wait_ns) == (0, 0)
    elif s <= r:
        assert send.wait_ns == r - s
        assert recv.wait_ns == 0
    elif r + e <= s:
        # What arrives before it was sent tells of clocks, not of how long it moved.
        assert recv.transfer_ns == 0


def test_a_kernel_with_messages_of_two_peers_waits_for_both() -> None:
    """Rank 1 starts at 0; rank 0 is there from 100 to 170, rank 2 from 900 to 970: each message moved for 70."""
    pairs = [
        PairedMessage(
            P2POp(peer, 0, 1, True, 8, "pp", 0, 7, 1, start, start, start + 70, None),
            P2POp(1, place, peer, False, 8, "pp", 5, 7, 1, 0, 0, 970, None),
        )
        for place, (peer, start) in enumerate(((0, 100), (2, 900)))
    ]
    for message in pairs:
        send, recv = _split(message, pairs)
        assert (send.wait_ns, send.transfer_ns) == (0, 70)
        assert (recv.wait_ns, recv.transfer_ns) == (900, 70)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12), st.integers(0, 80))
def test_a_union_of_intervals_is_what_counting_every_point_gives(spans: list[tuple[int, int]], start: int) -> None:
    import numpy as np

    ordered = sorted((s, s + d) for s, d in spans)
    union = Union(np.array([s for s, _ in ordered]), np.array([e for _, e in ordered]))
    covered = {point for s, e in ordered for point in range(s, e)}
    assert union.within(start, start + 15) == len(covered & set(range(start, start + 15)))


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


# Eight ranks with all kinds of collectives, and ranks without a device.
@spread("place", [LEVEL2, TP8, ("cpu-gloo-pp4", "ScheduleZBVZeroBubble")], 1)
def test_the_view_of_communication_counts_every_moment_once(place: tuple[str, ...]) -> None:
    """Against unions made here, from the tables: of kernels on several streams, of their waits, of what is exposed."""
    run = derived(data(*place))
    moving: dict[tuple[int, str, str], dict[object, tuple[int, int]]] = {}
    waiting: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for rank, position, operation, group, batch, start, end, wait in run.rows(
        'SELECT rank, position, c.operation, "group", batch, start_ns, end_ns, wait_ns '
        "FROM comms AS c JOIN waits AS w USING (rank, position)"
    ):
        key = rank, "p2p" if operation in {"send", "recv"} else operation, group
        moving.setdefault(key, {})[f"batch {batch}" if batch is not None else position] = (start, end)
        waiting.setdefault(key, []).append((start, start + wait))
    compute: dict[int, list[tuple[int, int]]] = {}
    for rank, name, start, end in run.rows(
        "SELECT rank, name, start_ns, start_ns + duration_ns FROM events WHERE category = 'kernel'"
    ):
        if not name.lower().startswith(("nccl", "hcom_")):
            compute.setdefault(rank, []).append((start, end))
    rows = run.rows('SELECT rank, operation, "group", duration_ns, wait_ns, exposed_ns FROM exposed_communication')
    assert len(rows) == len(moving)
    for rank, operation, group, duration, waited, exposed in rows:
        spans = list(moving[rank, operation, group].values())
        assert duration == _length(_union(spans))
        assert waited == _length(_union(waiting[rank, operation, group]))
        if rank in compute:
            # What is on in either, less what computes.
            assert exposed == _length(_union(spans + compute[rank])) - _length(_union(compute[rank]))
        else:
            assert exposed is None


def test_operations_launched_as_one_kernel_are_told_by_it() -> None:
    """1F1B's batches: the waits of operations sum to more than the kernels', those of one per kernel do not."""
    run = h100("1f1b_m8")
    waits = _waits(run).values()
    batches = dict(run.rows("SELECT (rank, position), batch FROM comms WHERE batch IS NOT NULL"))
    by_kernel: dict[tuple[int, int], set[int | None]] = {}
    for wait in waits:
        by_kernel.setdefault((wait.rank, wait.kernel), set()).add(batches.get((wait.rank, wait.position)))
    assert all(len(found) == 1 for found in by_kernel.values())
    assert len(by_kernel) == run.rows("SELECT count(DISTINCT (rank, stream, start_ns)) FROM comms")[0][0] < len(waits)
