"""Whether sends wait for their receive, from messages with known times, and as NCCL does it in the recordings."""

from __future__ import annotations

import pytest
from helpers.recorded import data, looked_at, rebuilt, run_of
from helpers.thorough import spread

from tracetool.reconstruction.actions.transfers import buffers_sends
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import Clock, Clocks
from tracetool.reconstruction.capture.messages import P2POp, PairedMessage

MS = 10**6


def op(start: int | None, end: int | None, *, is_send: bool, number: int, stream: int | None = 7) -> P2POp:
    return P2POp(
        rank=0 if is_send else 1, position=number, peer=1 if is_send else 0, is_send=is_send, payload_bytes=1,
        group="pp", batch=None, stream=stream, thread=None, posted_ns=0, start_ns=start, end_ns=end, label=None,
    )  # fmt: skip


def message(sent: tuple[int, int], received: tuple[int, int], number: int = 0, stream: int | None = 7) -> PairedMessage:
    """A message by start and end of its send and of its receive."""
    return PairedMessage(
        op(*sent, is_send=True, number=number, stream=stream),
        op(*received, is_send=False, number=number, stream=stream),
    )


ENDED = message((0, 1 * MS), (5 * MS, 6 * MS))
WAITED = message((0, 6 * MS), (5 * MS, 6 * MS))
EARLY = message((5 * MS, 6 * MS), (0, 6 * MS))
ASSUMED = "sends are taken not to wait for their receives: none that came late tells"
CLOSE = message((0, 100_000), (200_000, 300_000))


@pytest.mark.parametrize(
    ("messages", "buffered", "told"),
    [
        ([ENDED], True, "1 of 1 sends whose receive came late did not wait for it"),
        ([WAITED], False, "0 of 1 sends whose receive came late did not wait for it"),
        ([ENDED, WAITED], False, "1 of 2 sends whose receive came late did not wait for it"),  # as many each way
        # Only receives that come clearly later tell.
        ([ENDED, EARLY, EARLY, CLOSE], True, "1 of 1 sends whose receive came late did not wait for it"),
        ([EARLY, CLOSE], True, ASSUMED),
        ([], True, None),
        ([message((0, 1 * MS), (5 * MS, 6 * MS), stream=None)], True, ASSUMED),  # gloo: no kernel that could wait
    ],
)
def test_a_send_that_is_over_before_its_receive_starts_was_buffered(
    messages: list[PairedMessage], told: str | None, *, buffered: bool
) -> None:
    account = Account()
    laters = [100 * MS * n for n in range(len(messages))]
    placed = [
        PairedMessage(*(o._replace(start_ns=(o.start_ns or 0) + later, end_ns=(o.end_ns or 0) + later) for o in each))
        for later, each in zip(laters, messages, strict=True)
    ]
    assert buffers_sends(placed, Clocks(), account) is buffered
    found = [f.value for f in account.findings]
    assert found == ([] if told is None else [told])


def test_kernels_that_receive_as_well_do_not_tell() -> None:
    """A batch is one kernel: its start and stream are those of each of its operations."""
    batch = [message((0, 6 * MS), (5 * MS, 6 * MS), n) for n in range(2)]
    account = Account()
    assert buffers_sends(batch, Clocks(), account)
    assert [(f.value, f.confidence) for f in account.findings] == [(ASSUMED, 0.5)]


def test_times_are_compared_on_one_clock() -> None:
    """Rank 1's clock is 10 ms ahead, so a send that looks waited for is one that was over."""
    clocks = Clocks({1: Clock(0, 0, -10 * MS, None, None, 9, applied=True)})
    looks_late = message((0, 1 * MS), (12 * MS, 13 * MS))
    assert buffers_sends([looks_late], clocks, Account())
    looks_waited = message((0, 4 * MS), (13 * MS, 14 * MS))
    assert not buffers_sends([looks_waited], clocks, Account())
    account = Account()
    looks_over = message((0, 1 * MS), (10 * MS + 150_000, 13 * MS))  # really 0.15 ms after its start
    assert buffers_sends([looks_over], clocks, account)
    assert [f.value for f in account.findings] == [ASSUMED]


# Zero bubble, and several stages per rank: the other orders show it by other sends.
# Made messages are by default (above); here NCCL's are.
@pytest.mark.thorough
@spread("name", ["rt1f1b_m8", "zbh1_m8", "gpipe_m8", "interleaved_m8"], 1)
def test_nccl_buffers_single_sends_over_nvlink(name: str) -> None:
    assert rebuilt(name).pipeline.buffered


# Ascend's transfers and gloo's, which have no kernel, are another reader's.
@spread("name", ["h100-pp4/traces/1f1b_m8", "ascend/Ascend+msinsight/test/st/level2",
                 "cpu-gloo-pp4/ScheduleZBVZeroBubble"], 1)  # fmt: skip
def test_blocking_batches_show_none_and_are_taken_to_buffer(name: str) -> None:
    assert looked_at(run_of(data(*name.split("/")))).pipeline.buffered
