"""Interleaved stages in Megatron's blocking batches, against its calls written down one by one and run here.

The calls are those of ``forward_backward_pipelining_with_interleaving`` without ``overlap_p2p_comm``; a batch ends when
all of its transfers have, and a transfer begins when both of its sides are in their batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from helpers.synthetic import equal_stages, scenario

from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule

F_NS, B_NS, MESSAGE_NS = 1_000, 2_000, 70

Message = tuple[str, int, int]
"""F or B, the stage that sends it, microbatch."""


class Batch(NamedTuple):
    """What a call sends and receives."""

    sends: list[Message]
    recvs: list[Message]


class Numbers(NamedTuple):
    """Megatron's virtual microbatches on a rank."""

    rank: int
    p: int
    v: int
    m: int

    def forward(self, k: int) -> tuple[int, int]:
        """Stage and microbatch of the k-th forward."""
        p, v = self.p, self.v
        return k % (p * v) // p * p + self.rank, k // (p * v) * p + k % p

    def backward(self, k: int) -> tuple[int, int]:
        """Stage and microbatch of the k-th backward."""
        p, v = self.p, self.v
        return (v - 1 - k % (p * v) // p) * p + self.rank, k // (p * v) * p + k % p

    def sent(self, kind: str, k: int) -> list[Message]:
        """What the k-th forward or backward sends: nothing at the ends of the model."""
        stage, microbatch = (self.forward if kind == "F" else self.backward)(k)
        return [] if stage == (self.p * self.v - 1 if kind == "F" else 0) else [(kind, stage, microbatch)]

    def received(self, kind: str, k: int) -> list[Message]:
        """What the k-th forward or backward needs."""
        if k >= self.m * self.v:
            return []
        stage, microbatch = (self.forward if kind == "F" else self.backward)(k)
        at_end = stage == (0 if kind == "F" else self.p * self.v - 1)
        return [] if at_end else [(kind, stage + (-1 if kind == "F" else 1), microbatch)]


def calls(rank: int, p: int, v: int, m: int) -> list[str | Batch]:
    """Computes of a rank, F or B, and its batches."""
    of, total = Numbers(rank, p, v, m), m * v
    warm_up = min(total, 2 * (p - rank - 1) + (v - 1) * p)
    done: list[str | Batch] = [Batch([], of.received("F", 0))]
    for k in range(warm_up):
        first_backward = of.received("B", 0) if k == warm_up - 1 and warm_up < total else []
        done += ["F", Batch(of.sent("F", k), of.received("F", k + 1) + first_backward)]
    for k in range(total - warm_up):
        ahead = of.received("F", warm_up + k + 1)
        sends = of.sent("F", warm_up + k) + of.sent("B", k)
        done += ["F", "B", Batch(sends, ahead + of.received("B", k + 1))]
    if warm_up == total:
        done.append(Batch([], of.received("B", 0)))
    for k in range(total - warm_up, total):
        done += ["B", Batch(of.sent("B", k), of.received("B", k + 1))]
    return done


def window_ns(p: int, v: int, m: int) -> int:
    """From the first forward to the last backward, rank by rank until all are through."""
    left = [calls(rank, p, v, m) for rank in range(p)]
    now, at = [0] * p, [0] * p
    entered: dict[tuple[Message, bool], int] = {}  # per message and side, when its batch was entered
    ended = 0
    while any(at[rank] < len(left[rank]) for rank in range(p)):
        moved = False
        for rank in range(p):
            while at[rank] < len(left[rank]):
                call = left[rank][at[rank]]
                if isinstance(call, str):
                    now[rank] += F_NS if call == "F" else B_NS
                    ended = max(ended, now[rank])
                else:
                    mine = [(message, True) for message in call.sends] + [(message, False) for message in call.recvs]
                    moved |= any(side not in entered for side in mine)
                    for side in mine:
                        entered.setdefault(side, now[rank])
                    if any((message, not is_send) not in entered for message, is_send in mine):
                        break
                    begins = [max(entered[message, True], entered[message, False]) for message, _ in mine]
                    now[rank] = max([now[rank], *(begin + MESSAGE_NS for begin in begins)])
                at[rank] += 1
                moved = True
        assert moved, "every rank waits"
    return ended


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 2), (2, 2, 8), (2, 3, 6), (3, 2, 9), (4, 2, 4), (4, 2, 8), (4, 3, 12), (8, 3, 16)]
)
def test_a_step_is_what_megatrons_calls_make_it(p: int, v: int, m: int) -> None:
    shape = PipelineShape(p, m, v)
    made = equal_stages(
        build_schedule("interleaved", shape), {ActionKind.FORWARD: F_NS, ActionKind.BACKWARD: B_NS}, payload_bytes=1
    )
    stages = tuple(
        replace(stage, forward_transfer_ns=MESSAGE_NS, backward_transfer_ns=MESSAGE_NS) for stage in made.stages
    )
    made = replace(made, stages=stages)
    done = replay(made, made.observed, scenario(p2p="grouped"))
    assert measure(done.timeline).window_ns == window_ns(p, v, m)


def test_the_calls_written_down_here_compute_what_the_schedule_does() -> None:
    for p, v, m in ((2, 2, 8), (4, 3, 12), (4, 2, 4)):
        orders = build_schedule("interleaved", PipelineShape(p, m, v)).orders
        for rank, order in enumerate(orders):
            assert [call for call in calls(rank, p, v, m) if isinstance(call, str)] == [a.kind.value for a in order]
