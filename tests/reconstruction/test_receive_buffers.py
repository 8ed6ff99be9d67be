"""Whether receive buffers stand or come and go, from logs such as torch's pipelining and Megatron would write."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recorded import rebuilt

from tracetool.reconstruction.capture.messages import P2POp
from tracetool.reconstruction.memory.log import Log, standing_buffer_bytes

SIZE = 2**24
MS = 10**6


def posts(count: int, *, size: int | None = SIZE) -> list[P2POp]:
    """A receive and a send per microbatch, at 10, 20, 30 ... ms and 5 ms later."""
    return [
        P2POp(
            rank=0, position=2 * n + is_send, peer=1, is_send=bool(is_send), payload_bytes=size, group="pp",
            batch=None, stream=7, thread=1, posted_ns=(10 * n + 10) * MS + 5 * MS * is_send,
            start_ns=None, end_ns=None, label=None,
        )
        for n in range(count)
        for is_send in (0, 1)
    ]  # fmt: skip


def log(changes: list[tuple[int, int]], *, is_samples: bool = False) -> Log:
    """An allocator's log of (time, change)."""
    changes = sorted(changes)
    times, delta = (np.array([c[i] for c in changes], np.int64) for i in (0, 1))
    return Log("x", times, delta, 0, np.arange(len(changes)), 1.0, is_samples)


LAUNCHES = [(10 * n + 10) * MS - 100_000 for n in range(8)]
"""The last kernel ahead of each receive is launched 100 us before it."""

ACTIVATIONS = [(at - 20_000, SIZE) for at in LAUNCHES]
"""What that kernel writes is allocated 20 us ahead of it, as large as a message."""


def fresh(count: int, *, size: int = SIZE) -> list[tuple[int, int]]:
    """A buffer 30 us ahead of each of the first receives, freed 4 ms later."""
    return [c for n in range(count) for c in (((10 * n + 10) * MS - 30_000, size), ((10 * n + 14) * MS, -size))]


def test_buffers_that_come_just_ahead_of_each_receive_do_not_stand() -> None:
    assert standing_buffer_bytes(posts(8), log(fresh(8)), LAUNCHES) == 0
    # Rounded up by the allocator to what blocks are cut into.
    assert standing_buffer_bytes(posts(8), log(fresh(8, size=SIZE + 2**20)), LAUNCHES) == 0


def test_without_allocations_they_stand_one_per_message() -> None:
    assert standing_buffer_bytes(posts(8), log([(0, 5)]), LAUNCHES) == 8 * SIZE
    assert standing_buffer_bytes(posts(8), log([]), LAUNCHES) == 8 * SIZE


def test_activations_as_large_as_a_message_are_no_buffers() -> None:
    """They belong to the kernel that is launched after them."""
    assert standing_buffer_bytes(posts(8), log(ACTIVATIONS), LAUNCHES) == 8 * SIZE
    assert standing_buffer_bytes(posts(8), log(ACTIVATIONS + fresh(8)), LAUNCHES) == 0


@pytest.mark.parametrize(("size", "after_ns"), [(SIZE // 2, 0), (2 * SIZE, 0), (SIZE, 60_000), (SIZE, -400_000)])
def test_other_sizes_and_times_do_not_count(size: int, after_ns: int) -> None:
    changes = [(at + after_ns, change) for at, change in fresh(8, size=size)]
    assert standing_buffer_bytes(posts(8), log(changes), []) == 8 * SIZE


@pytest.mark.parametrize(("found", "expected"), [(1, 8 * SIZE), (2, 0), (7, 0)])
def test_a_chance_allocation_does_not_make_them_fresh(found: int, expected: int) -> None:
    """Up to one in five."""
    assert standing_buffer_bytes(posts(8), log(fresh(found)), LAUNCHES) == expected


def test_what_cannot_be_told_is_unknown() -> None:
    assert standing_buffer_bytes(posts(8), None, LAUNCHES) is None
    assert standing_buffer_bytes(posts(8), log(fresh(8), is_samples=True), LAUNCHES) is None
    assert standing_buffer_bytes(posts(8, size=None), log(fresh(8)), LAUNCHES) is None


def test_a_rank_that_receives_nothing_has_none() -> None:
    sends = [op for op in posts(8) if op.is_send]
    assert standing_buffer_bytes(sends, log(fresh(8)), LAUNCHES) == 0


def test_torchs_schedules_keep_standing_ones() -> None:
    """``PipelineStage._prepare_forward_infra`` makes one per microbatch and direction: 8 activations and 8 gradients
    of 16 MiB on ranks with two neighbours."""
    ranks = rebuilt("1f1b_m8_mem").pipeline.ranks
    assert [rank.receive_buffer_bytes for rank in ranks] == [8 * SIZE, 16 * SIZE, 16 * SIZE, 8 * SIZE]
    # Without profile_memory there is nothing to tell it by.
    assert {rank.receive_buffer_bytes for rank in rebuilt("rt1f1b_m8").pipeline.ranks} == {None}


def test_standing_buffers_are_told() -> None:
    """torch's pipelining keeps one of 16 MiB per message: 8 of gradients on rank 0, of both on ranks 1 and 2."""
    (found,) = (f for f in rebuilt("1f1b_m8_mem").findings if f.fact == "receive buffers")
    assert "rank 0 128.00 MiB, rank 1 256.00 MiB, rank 2 256.00 MiB, rank 3 128.00 MiB" in found.value
    assert not [f for f in rebuilt("1f1b_m8").findings if f.fact == "receive buffers"]
