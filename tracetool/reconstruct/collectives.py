"""Collectives matched across ranks: the n-th operation of a process group on each of its ranks is one collective."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account, Evidence
    from tracetool.store import Run

_END_SPREAD_RATIO = 0.2
"""Ends of one collective agree far better than this share of the usual time from one to the next."""


class CollectiveOp(NamedTuple):
    """One rank's side of a collective, on its own clock.

    Attributes:
        rank: Global rank.
        position: Order of posting on the rank (``comms.position``).
        operation: allreduce, allgather ...
        payload_bytes: Bytes; None if unknown.
        start_ns: Start of its kernel.
        end_ns: End of its kernel.
    """

    rank: int
    position: int
    operation: str
    payload_bytes: int | None
    start_ns: int
    end_ns: int


class Collective(NamedTuple):
    """One collective on all of its recorded ranks.

    Attributes:
        group: Name of the process group; empty if unknown.
        group_ranks: Its ranks; those that take part if unknown.
        ops: One per recorded rank, by rank.
        evidence: metadata, or order where the trace names no group.
    """

    group: str
    group_ranks: tuple[int, ...]
    ops: tuple[CollectiveOp, ...]
    evidence: Evidence

    @property
    def own_ns(self) -> int:
        """Its shortest duration over the ranks: the last one to arrive does not wait."""
        return min(op.end_ns - op.start_ns for op in self.ops)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the group were recorded."""
        return {op.rank for op in self.ops} == set(self.group_ranks)


_SQL = """
SELECT rank, position, operation, payload_bytes, start_ns, end_ns, "group", group_ranks
FROM comms
WHERE operation NOT IN ('send', 'recv') AND start_ns IS NOT NULL AND end_ns IS NOT NULL
ORDER BY rank, position
"""


def find_collectives(run: Run, account: Account) -> list[Collective]:
    """Match collectives over the whole capture; what cannot be matched is told.

    Where a rank recorded more of a group's operations than another (its capture began earlier or ended later),
    the shift is searched at which operations, sizes and ends agree; more than one such shift is no match.
    """
    sides: dict[tuple[str, tuple[int, ...]], dict[int, list[CollectiveOp]]] = defaultdict(lambda: defaultdict(list))
    for *op, group, group_ranks in run.rows(_SQL):
        sides[group, tuple(group_ranks)][op[0]].append(CollectiveOp(*op))
    found: list[Collective] = []
    lost: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for (group, group_ranks), by_rank in sorted(sides.items()):
        known = bool(group_ranks)
        if not known and len(by_rank) == 1:
            continue
        rows = _aligned(by_rank, needs_agreement=not known)
        if rows is None:
            lost[group, group_ranks] += sum(map(len, by_rank.values()))
            continue
        members = group_ranks if known else tuple(sorted(by_rank))
        found += [Collective(group, members, row, "metadata" if known else "order") for row in rows]
    for (group, group_ranks), count in lost.items():
        who = f"group {group!r} of {format_ranks(group_ranks)}" if group_ranks else "groups without a name"
        account.note(f"{format_count(count, 'collective')} of {who} match no other rank: counts, kinds or ends differ")
    return found


def _aligned(
    by_rank: Mapping[int, Sequence[CollectiveOp]], *, needs_agreement: bool
) -> list[tuple[CollectiveOp, ...]] | None:
    """The operations of each rank side by side; None if they do not fit."""
    ranks = sorted(by_rank)
    least = min(ranks, key=lambda rank: (len(by_rank[rank]), rank))
    base = by_rank[least]
    columns = {}
    for rank in ranks:
        shifts = _shifts(base, by_rank[rank])
        if len(shifts) != 1:
            return None
        columns[rank] = by_rank[rank][shifts[0] : shifts[0] + len(base)]
    rows = list(zip(*(columns[rank] for rank in ranks), strict=True))
    if needs_agreement and not _ends_agree(rows):
        return None
    return rows


def _shifts(base: Sequence[CollectiveOp], other: Sequence[CollectiveOp]) -> list[int]:
    """Shifts of the longer list at which kinds and sizes agree; where several do, those whose ends agree best."""
    extra = len(other) - len(base)
    kinds = [op.operation for op in base]
    fitting = [
        shift
        for shift in range(extra + 1)
        if [op.operation for op in other[shift : shift + len(base)]] == kinds
        and all(_same_size(a, b) for a, b in zip(base, other[shift:], strict=False))
    ]
    if len(fitting) < 2:
        return fitting
    spread = {shift: _spread(base, other[shift : shift + len(base)]) for shift in fitting}
    best, second = sorted(fitting, key=lambda shift: spread[shift])[:2]
    return [best] if 2 * spread[best] < spread[second] else fitting


def _same_size(one: CollectiveOp, other: CollectiveOp) -> bool:
    # Ascend's sizes of one collective differ between ranks by padding, so that only another magnitude tells.
    if one.payload_bytes is None or other.payload_bytes is None:
        return True
    return one.payload_bytes <= 2 * other.payload_bytes and other.payload_bytes <= 2 * one.payload_bytes


def _spread(base: Sequence[CollectiveOp], other: Sequence[CollectiveOp]) -> float:
    """How far end differences scatter around their median, ns."""
    differences = [b.end_ns - a.end_ns for a, b in zip(base, other, strict=True)]
    middle = median(differences)
    return float(median(abs(d - middle) for d in differences))


def _ends_agree(rows: Sequence[Sequence[CollectiveOp]]) -> bool:
    """Whether ends of supposed collectives are much nearer to each other than one collective is to the next."""
    first = [row[0] for row in rows]
    if len(first) < 3:
        return False
    usual = median(b.end_ns - a.end_ns for a, b in itertools.pairwise(first))
    return all(_spread(first, [row[n] for row in rows]) <= _END_SPREAD_RATIO * usual for n in range(1, len(rows[0])))
