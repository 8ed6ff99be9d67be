"""Logs and device times made up by hand, against a plain computation of whose change each one is."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import Segment
from tracetool.reconstruction.memory.actions import HostSpan, memory_by_action
from tracetool.reconstruction.memory.boundaries import by_device_times
from tracetool.reconstruction.memory.log import Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.memory.boundaries import Boundaries

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _segment(kind: ActionKind, start: int, end: int) -> Segment:
    return Segment(kind=kind, microbatch=0, stage=0, start_ns=start, end_ns=end, issue_ns=start, issued_ns=end)


def _bounds(segments: list[Segment], transfers: list[tuple[int, int]], *times: int) -> Boundaries:
    return by_device_times(segments, transfers, np.array(times, np.int64))


def test_where_a_transfer_parts_two_actions_the_host_is_level() -> None:
    found = _bounds([_segment(F, 10, 50), _segment(B, 90, 120)], [(0, 5), (52, 80)], 6, 15, 48, 85, 100)
    assert [(s.begin_ns, s.end_ns) for s in found.spans] == [(5, 50), (80, 120)]
    assert found.confidence == 1


def test_a_host_that_allocates_while_the_device_waits_is_ahead() -> None:
    found = _bounds([_segment(F, 10, 50), _segment(B, 90, 120)], [(0, 5), (52, 80)], 6, 15, 48, 60, 100)
    assert not found.spans
    assert "the host allocates during 1 of 2 transfers" in (found.detail or "")
    assert "no transfer makes the host wait" in (_bounds([_segment(F, 10, 50)], [], 20).detail or "")


def test_without_a_transfer_only_a_silence_that_stands_out_is_a_turn() -> None:
    pair = [_segment(F, 10, 50), _segment(B, 50, 90)]
    found = _bounds(pair, [(0, 5)], 11, 13, 15, 40, 42, 60)
    assert [(s.begin_ns, s.end_ns) for s in found.spans] == [(5, 15), (40, 90)]
    assert found.confidence == 0.5
    for times in ((11, 20, 30, 40, 49), (12, 40)):
        assert "no transfer lies between 0F0 and 0B0" in (_bounds(pair, [(0, 5)], *times).detail or "")
    swapped = [_segment(B, 10, 50), _segment(F, 50, 90)]
    assert not _bounds(swapped, [(0, 5)], 11, 13, 15, 40, 42).spans


def _log(changes: Sequence[tuple[int, int, int]], base: int = 1000) -> Log:
    time, delta, block = (np.array(column, np.int64) for column in zip(*changes, strict=True))
    return Log("torch", time, delta, base, block, 1.0, is_samples=False)


SPANS = (
    HostSpan((0, "F", 0), 10, 20), HostSpan((0, "B", 0), 30, 40),
    HostSpan((0, "F", 1), 50, 60), HostSpan((0, "B", 1), 70, 80),
)  # fmt: skip


def test_every_life_of_a_block_is_counted_where_it_belongs() -> None:
    found = memory_by_action(
        _log(
            [
                (1, 7, 90), (2, -7, 90),  # before the first action
                (5, 100, 1),  # made for it: freed in its backward
                (12, 30, 2), (15, -30, 2),  # transient
                (16, 40, 3),  # logits: freed in the next forward
                (31, 500, 4),  # gradients
                (35, -100, 1),
                (45, 100, 5), (55, -40, 3), (56, 40, 6),
                (75, -100, 5), (81, -40, 6), (85, 60, 7), (90, -60, 7), (95, -500, 4),
            ]
        ),
        SPANS,
    )  # fmt: skip
    assert found.static_bytes == 1000
    assert found.held == {(0, "F", 0): 140, (0, "B", 0): 360, (0, "F", 1): 140, (0, "B", 1): -140}
    assert found.outliving == {(0, "F", 0): 40}
    # Above the level that is counted: in F1 the logits of F0 are still there beside its own 100.
    assert found.peak == {(0, "F", 0): 140, (0, "B", 0): 500, (0, "F", 1): 140, (0, "B", 1): 0}
    assert found.tail_peak == 60


def test_without_blocks_frees_count_where_they_happen() -> None:
    changes = [(5, 100, -1), (16, 40, -1), (35, -100, -1), (45, 100, -1), (55, -40, -1), (75, -100, -1)]
    found = memory_by_action(_log(changes), SPANS)
    assert found.held == {(0, "F", 0): 140, (0, "B", 0): -100, (0, "F", 1): 60, (0, "B", 1): -100}
    assert not found.names_blocks


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Allocations and frees at distinct times, blocks reused after their free."""
    live: dict[int, int] = {}
    changes = []
    for time in sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=60))):
        if draw(st.booleans()) and live:
            block = draw(st.sampled_from(sorted(live)))
            changes.append((time, -live.pop(block), block))
        else:
            block = draw(st.sampled_from([b for b in range(61) if b not in live]))
            live[block] = draw(st.integers(1, 1000))
            changes.append((time, live[block], block))
    return changes


def _tops(log: Log) -> list[int]:
    """Highest level in each action, and in what follows."""
    found = memory_by_action(log, SPANS)
    level, tops = found.static_bytes, []
    for span in SPANS:
        assert found.peak[span.key] >= 0
        tops.append(level + found.peak[span.key])
        level += found.held[span.key]
    return [*tops, level + found.tail_peak]


@given(_histories())
def test_no_level_is_lost_or_made_up(changes: list[tuple[int, int, int]]) -> None:
    """Whatever lives how long: where a free is counted moves no peak of an action."""
    named = _log(changes)
    tops = _tops(named)
    assert tops[:-1] == _tops(named._replace(block=np.full(len(changes), -1, np.int64)))[:-1]
    # Frees between two actions are counted ahead of the next one's allocations.
    assert max(tops) <= max(accumulate((delta for _, delta, _ in changes), initial=1000))


@given(_histories())
def test_the_plain_computation_agrees_where_no_blocks_are_named(changes: list[tuple[int, int, int]]) -> None:
    found = memory_by_action(_log([(t, d, -1) for t, d, _ in changes]), SPANS)
    frees = [i for i, (t, d, _) in enumerate(changes) if t < 10 and d < 0]
    begin = frees[-1] + 1 if frees else 0
    assert found.static_bytes == 1000 + sum(d for _, d, _ in changes[:begin])
    own: list[list[int]] = [[], [], [], [], []]
    allocated_after = False
    for time, delta, _ in changes[begin:]:
        current = max(i for i, span in enumerate(SPANS) if span.begin_ns <= max(time, 10))
        if time > 80:
            allocated_after |= delta > 0
            own[4 if allocated_after else 3].append(delta)
        else:
            own[current + (time > SPANS[current].end_ns and delta > 0)].append(delta)
    assert list(found.held.values()) == [sum(deltas) for deltas in own[:4]]
    assert list(found.peak.values()) == [max(accumulate(deltas, initial=0)) for deltas in own[:4]]
    assert found.tail_peak == max(accumulate(own[4], initial=0))


def test_buffers_that_the_next_step_frees_belong_to_their_microbatch() -> None:
    """Two buffers of outputs (7 bytes) used in turn, by hand: each forward frees the output of the one two before it.

    A microbatch holds 20 and frees 20 in whatever step; of the 14 that stand before this one none is static.
    """
    changes = [(0, 7, 2), (1, 7, 3), (2, 5, 99), (3, -5, 99)]
    for n in range(4):
        at, old = 10 + 20 * n, 2 + n if n < 2 else 18 + n
        changes += [(at, 13, 10 + n), (at + 1, 7, 20 + n), (at + 2, -7, old), (at + 11, -13, 10 + n)]
    spans = [
        HostSpan((0, kind.value, n), 10 + 20 * n + after, 14 + 20 * n + after)
        for n in range(4)
        for kind, after in ((F, 0), (B, 10))
    ]
    found = memory_by_action(_log(changes), spans)
    assert found.static_bytes == 1000
    assert [found.held[span.key] for span in spans] == [20, -20] * 4
    # 1014 are allocated before the first forward, 1034 within it.
    assert found.peak[spans[0].key] == 34
