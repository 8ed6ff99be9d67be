"""Runs of nothing but messages, made up for tests: who sends what to whom in which step is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.readers import rows_table
from tracetool.store.run import Run, RunWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class Posted:
    """A send or receive of one step, by pipeline ranks."""

    step: int
    is_send: bool
    peer: int


def one_f_one_b(p: int, m: int, steps: int) -> list[list[Posted]]:
    """Messages of 1F1B per pipeline rank: p - 1 - r forwards, then a forward and a backward in turn, then the rest."""
    ranks: list[list[Posted]] = []
    for r in range(p):
        order = ["F"] * min(p - 1 - r, m)
        for i in range(m):
            order += ["F"] if len(order) - i < m and order.count("F") < m else []
            order.append("B")
        ops = []
        for step in range(steps):
            for kind in order:
                source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
                ops += [Posted(step, is_send=False, peer=source)] if 0 <= source < p else []
                ops += [Posted(step, is_send=True, peer=target)] if 0 <= target < p else []
        ranks.append(ops)
    return ranks


def gpipe(p: int, m: int, steps: int) -> list[list[Posted]]:
    """Messages of GPipe per pipeline rank: all forwards, then all backwards."""
    ranks: list[list[Posted]] = []
    for r in range(p):
        ops = []
        for step in range(steps):
            for source, target in ((r - 1, r + 1), (r + 1, r - 1)):
                for _ in range(m):
                    ops += [Posted(step, is_send=False, peer=source)] if 0 <= source < p else []
                    ops += [Posted(step, is_send=True, peer=target)] if 0 <= target < p else []
        ranks.append(ops)
    return ranks


def timed(orders: Sequence[Sequence[Posted]], *, gap_ns: int = 50_000) -> list[list[int]]:
    """When each is posted: after the one before it, a receive not before its message was sent.

    Between two steps every rank pauses for ``gap_ns``.
    """
    times: list[list[int]] = [[] for _ in orders]
    sent: dict[tuple[int, int], list[int]] = {}
    taken: dict[tuple[int, int], int] = {}
    clock = [0] * len(orders)
    while any(len(t) < len(ops) for t, ops in zip(times, orders, strict=True)):
        for rank, ops in enumerate(orders):
            while (done := len(times[rank])) < len(ops):
                op = ops[done]
                at = clock[rank] + 1_000 + (gap_ns if done and ops[done - 1].step != op.step else 0)
                if op.is_send:
                    sent.setdefault((rank, op.peer), []).append(at)
                else:
                    number = taken.get((op.peer, rank), 0)
                    if number >= len(sent.get((op.peer, rank), ())):
                        break
                    at = max(at, sent[op.peer, rank][number])
                    taken[op.peer, rank] = number + 1
                clock[rank] = at
                times[rank].append(at)
    return times


def write_messages(
    path: Path,
    orders: Sequence[Sequence[Posted]],
    times: Sequence[Sequence[int]],
    *,
    names: Sequence[int] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    since_ns: int = -1,
    until_ns: int = 2**62,
) -> Run:
    """A Run without marks of the messages posted between two times.

    Args:
        path: Folder to create.
        orders: Per pipeline rank.
        times: When each was posted.
        names: Global rank of each pipeline rank.
        groups: Process groups by description; the messages are carried by one that no table lists.
        since_ns: What was posted before is lost.
        until_ns: What was posted from then on is lost.
    """
    names = list(names or range(len(orders)))
    comms: list[tuple[object, ...]] = []
    for rank, ops in enumerate(orders):
        kept = [(op, at) for op, at in zip(ops, times[rank], strict=True) if since_ns <= at < until_ns]
        comms += [
            (
                names[rank], n, "send" if op.is_send else "recv", "x", [], names[op.peer], SIZE, at, 1, n, 1,
                at, at + 500, "metadata", None, None,
            )
            for n, (op, at) in enumerate(kept)
        ]  # fmt: skip
    ranks = [(name, 0, len(names), None, None, None, None, None, None, None, None) for name in names]
    listed = [
        (rank, f"{n}", description, list(members))
        for n, (description, members) in enumerate((groups or {}).items())
        for rank in members
    ]
    with RunWriter(path) as writer:
        tables = {
            "comms": rows_table("comms", comms),
            "ranks": rows_table("ranks", ranks),
            "groups": rows_table("groups", listed),
        }
        writer.commit({"digest": "x", "world_size": len(names)}, tables)
    return Run(path)
