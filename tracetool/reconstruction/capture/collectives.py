"""Collectives matched across ranks: the n-th operation of a process group on each of its ranks is one collective."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.shifts import MOST_TRIED, STEADY_RATIO, agrees, is_steady, scatter, side_of
from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.shifts import RankOperations
    from tracetool.store.run import Run

_AGREEING_NS = 500_000
_PROMPT_NS = 50_000
_LEAST_AGREEING = 3
_MOST_BEYOND = 128
_SIZE_RATIO = 2


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
        may_lack: Whether the group has members beyond ``group_ranks``, or may have.
    """

    group: str
    group_ranks: tuple[int, ...]
    ops: tuple[CollectiveOp, ...]
    evidence: Evidence
    may_lack: bool = False

    @property
    def own_ns(self) -> int:
        """Its shortest duration over the ranks: the last one to arrive does not wait."""
        return min(op.end_ns - op.start_ns for op in self.ops)

    @property
    def payload_bytes(self) -> int | None:
        """The largest size that one of its ranks tells; None if none does."""
        return max((op.payload_bytes for op in self.ops if op.payload_bytes is not None), default=None)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the group were recorded."""
        return not self.may_lack and {op.rank for op in self.ops} == set(self.group_ranks)


# A group lists its ranks in each of its operations, as many as the job may have: they are read once.
COLLECTIVES_SQL = """
SELECT "group", group_ranks, list(rank ORDER BY rank, position), list(position ORDER BY rank, position),
       list(operation ORDER BY rank, position), list(payload_bytes ORDER BY rank, position),
       list(start_ns ORDER BY rank, position), list(end_ns ORDER BY rank, position)
FROM comms
WHERE operation NOT IN ('send', 'recv', 'exchange') AND start_ns IS NOT NULL AND end_ns IS NOT NULL
GROUP BY "group", group_ranks
"""


def find_collectives(run: Run, account: Account) -> list[Collective]:
    """Match collectives over the whole capture; what cannot be matched is told.

    Where a rank recorded more of a group's operations than another (its capture began earlier or ended later),
    the shift is searched at which operations, sizes and ends agree; more than one such shift is no match.
    """
    sides: dict[tuple[str, tuple[int, ...]], dict[int, list[CollectiveOp]]] = defaultdict(lambda: defaultdict(list))
    for group, group_ranks, *columns in run.rows(COLLECTIVES_SQL):
        of_rank = sides[group, tuple(group_ranks)]
        for op in map(CollectiveOp._make, zip(*columns, strict=True)):
            of_rank[op.rank].append(op)
    collectives: list[Collective] = []
    sizes: dict[str, int] = run.manifest.get("group_sizes", {})
    some_missing = bool(run.manifest.get("missing_ranks"))
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
        may_lack = not known and (sizes[group] > len(members) if group in sizes else some_missing)
        collectives += [Collective(group, members, row, "metadata" if known else "order", may_lack) for row in rows]
    for (group, group_ranks), count in lost.items():
        who = f"group {group!r} of {format_ranks(group_ranks)}" if group_ranks else "groups without a name"
        account.note(
            NoticeCode.COLLECTIVES_UNMATCHED,
            f"{format_count(count, 'collective')} of {who} match no other rank: counts, kinds or ends differ",
        )
    return collectives


def rough_differences(collectives: Sequence[Collective]) -> dict[tuple[int, int], int]:
    """How far the second rank's clock of each pair is ahead, by the middle one of its collectives' ends.

    Only from collectives that agree on it: a few that were paired wrongly must not move everything else.
    """
    apart: dict[tuple[int, int], list[int]] = defaultdict(list)
    for collective in collectives:
        first = collective.ops[0]
        for op in collective.ops[1:]:
            apart[first.rank, op.rank].append(op.end_ns - first.end_ns)
    by_pair = {}
    for pair, differences in sorted(apart.items()):
        middle = median(differences)
        near = sum(abs(d - middle) <= _AGREEING_NS for d in differences)
        if near >= _LEAST_AGREEING and 2 * near > len(differences):
            by_pair[pair] = round(middle)
    return by_pair


def _aligned(
    by_rank: Mapping[int, Sequence[CollectiveOp]], *, needs_agreement: bool
) -> list[tuple[CollectiveOp, ...]] | None:
    """The operations of each rank side by side; None if they do not fit."""
    ranks = sorted(by_rank)
    numbers = {name: n for n, name in enumerate(sorted({op.operation for ops in by_rank.values() for op in ops}))}
    sides = {rank: _side(ops, numbers) for rank, ops in by_rank.items()}
    least = min(ranks, key=lambda rank: (len(by_rank[rank]), rank))
    shifts = {}
    for rank in ranks:
        shift = _shift(sides[least], sides[rank])
        if shift is None:
            return None
        shifts[rank] = shift
    first = max(0, -min(shifts.values()))
    count = min(len(by_rank[rank]) - shifts[rank] for rank in ranks)
    rows = [tuple(by_rank[rank][n + shifts[rank]] for rank in ranks) for n in range(first, count)]
    if not rows or (needs_agreement and not _ends_agree(rows)):
        return None
    return rows


def _side(ops: Sequence[CollectiveOp], numbers: Mapping[str, int]) -> RankOperations:
    return side_of(
        [numbers[op.operation] for op in ops],
        [op.payload_bytes for op in ops],
        [(op.start_ns, op.end_ns) for op in ops],
    )


def _shift(base: RankOperations, other: RankOperations) -> int | None:
    """Which operation of the other rank the first one of the base is; None where several may be it.

    Kinds and sizes must agree. Where they do at several shifts, the ends of one of them must agree far better.
    """
    extra = len(other.kinds) - len(base.kinds)
    usual = 0 if extra == 0 and _agree(base, other, 0) else None
    if len(base.kinds) < _LEAST_AGREEING or base.ends is None:
        fitting = [shift for shift in range(extra + 1) if _agree(base, other, shift)]
        return fitting[0] if len(fitting) == 1 else None
    if usual is not None and (scatter(base, other, 0) or 0.0) <= _PROMPT_NS:
        return usual
    beyond = min(len(base.kinds) // 2, _MOST_BEYOND)
    candidates = sorted(
        (scatter(base, other, -shift, MOST_TRIED) or 0.0, shift)
        for shift in range(-beyond, extra + beyond + 1)
        if agrees(base, other, -shift, _SIZE_RATIO, MOST_TRIED) and _agree(base, other, shift)
    )
    if not candidates:
        return None
    clear = len(candidates) == 1 or 2 * candidates[0][0] < candidates[1][0]
    return candidates[0][1] if clear and is_steady(base, other, -candidates[0][1]) else usual


def _agree(base: RankOperations, other: RankOperations, shift: int) -> bool:
    # Ascend's sizes of one collective differ between ranks by padding, so that only another magnitude tells.
    return agrees(base, other, -shift, _SIZE_RATIO)


def _ends_agree(rows: Sequence[Sequence[CollectiveOp]]) -> bool:
    """Whether ends of supposed collectives are much nearer to each other than one collective is to the next."""
    first = [op for op, *_ in rows]
    if len(first) < 3:
        return False
    usual = median(b.end_ns - a.end_ns for a, b in itertools.pairwise(first))
    return all(_spread(first, [row[n] for row in rows]) <= STEADY_RATIO * usual for n in range(1, len(rows[0])))


def _spread(base: Sequence[CollectiveOp], other: Sequence[CollectiveOp]) -> float:
    """How far end differences scatter around their median, ns."""
    differences = [b.end_ns - a.end_ns for a, b in zip(base, other, strict=True)]
    middle = median(differences)
    return float(median(abs(d - middle) for d in differences))
