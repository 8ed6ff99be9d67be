"""In which order the ranks of a pipeline hold its stages.

Whatever the schedule, the first message between two neighbours in a step carries an activation downstream and
the last one a gradient upstream; only the rank of the first stage begins a step with a send and ends it with a
receive. Each such observation is a vote; an order is as sure as the share of the votes that it explains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.store.run import Run


class Vote(NamedTuple):
    """Something seen at the begin or end of a step.

    Attributes:
        rank: Who saw it.
        peer: The neighbour that it is about; None if it is about all of them.
        upstream: Whether it says that the rank comes before the peer, or holds the first stage.
    """

    rank: int
    peer: int | None
    upstream: bool


class Votes(NamedTuple):
    """What the steps' first and last messages say, and who talks to whom."""

    votes: tuple[Vote, ...]
    peers: Mapping[int, frozenset[int]]


def votes_of(run: Run, p2p: Mapping[int, Sequence[P2POp]]) -> Votes:
    """Votes of every step; without marked steps the whole capture counts as one."""
    marks: dict[int, list[int]] = defaultdict(list)
    for rank, start in run.rows("SELECT rank, start_ns FROM steps ORDER BY rank, start_ns"):
        marks[rank].append(start)
    peers: dict[int, set[int]] = defaultdict(set)
    votes: list[Vote] = []
    for rank, ops in sorted(p2p.items()):
        steps: dict[int, list[P2POp]] = defaultdict(list)
        for op in ops:
            peers[rank].add(op.peer)
            peers[op.peer].add(rank)
            steps[bisect_right(marks[rank], op.posted_ns)].append(op)
        for of_step in steps.values():
            votes += _of_step(rank, of_step)
    return Votes(tuple(votes), {rank: frozenset(others) for rank, others in peers.items()})


def _of_step(rank: int, ops: Sequence[P2POp]) -> Iterable[Vote]:
    by_peer: dict[int | None, list[P2POp]] = defaultdict(list)
    for op in ops:
        by_peer[op.peer].append(op)
        by_peer[None].append(op)
    for peer, mine in by_peer.items():
        first, last = _direction(mine), _direction(mine[::-1])
        if first is not None:
            yield Vote(rank, peer, first)
        # Without any message back there are no gradients: the last message says nothing.
        if last is not None and len({op.is_send for op in mine}) == 2:
            yield Vote(rank, peer, not last)


def _direction(ops: Sequence[P2POp]) -> bool | None:
    """Whether the first operation sends; None if a batch does both."""
    first = ops[0]
    kinds = {first.is_send}
    for op in ops[1:]:
        if op.batch is None or op.batch != first.batch:
            break
        kinds.add(op.is_send)
    return kinds.pop() if len(kinds) == 1 else None


def agreement(order: Sequence[int], votes: Sequence[Vote], *, ring: bool) -> float | None:
    """Share of the votes of its ranks that an order explains; None without any."""
    place = {rank: n for n, rank in enumerate(order)}
    heard = right = 0
    for rank, peer, upstream in votes:
        if rank not in place:
            continue
        if peer is None:
            heard += 1
            right += (place[rank] == 0) == upstream
        elif peer in place:
            apart = place[peer] - place[rank]
            if ring and len(order) > 2:
                apart = (apart + 1) % len(order) - 1
            heard += 1
            right += apart == (1 if upstream else -1)
    return right / heard if heard else None


def best_order(
    candidates: Sequence[tuple[int, ...]], votes: Sequence[Vote], *, ring: bool
) -> tuple[tuple[int, ...], float | None]:
    """The candidate that explains most votes, the earlier one of equals, and the share."""
    shares = [agreement(order, votes, ring=ring) for order in candidates]
    best = max(range(len(candidates)), key=lambda n: (shares[n] or 0.0, -n))
    return candidates[best], shares[best]


def line_of(members: Iterable[int], peers: Mapping[int, frozenset[int]]) -> tuple[tuple[int, ...], bool] | None:
    """The ranks along the line or ring that their messages form, and whether it is a ring; None if it is neither."""
    inside = {rank: sorted(peers.get(rank, ())) for rank in members}
    ends = sorted(rank for rank, others in inside.items() if len(others) == 1)
    if any(len(others) not in {1, 2} for others in inside.values()) or len(ends) not in {0, 2}:
        return None
    line = [ends[0] if ends else min(inside)]
    taken = set(line)
    while len(line) < len(inside):
        following = [rank for rank in inside[line[-1]] if rank not in taken]
        if not following:
            return None
        line.append(following[0])
        taken.add(following[0])
    return tuple(line), not ends


def orders_along(line: tuple[int, ...], *, ring: bool) -> list[tuple[int, ...]]:
    """Orders in which stages may lie along a line, or around a ring from any of its ranks."""
    starts = range(len(line)) if ring else range(1)
    turned = [line[n:] + line[:n] for n in starts]
    return [*turned, *(order[::-1] for order in turned)]


def fits(order: Sequence[int], peers: Mapping[int, frozenset[int]]) -> tuple[bool, bool]:
    """Whether all messages of an order's ranks go to neighbours in it, and whether they close a ring."""
    place = {rank: n for n, rank in enumerate(order)}
    last = len(order) - 1
    apart = {abs(place[a] - place[b]) for a in order for b in peers.get(a, ()) if b in place}
    ring = last > 1 and last in apart
    return apart <= ({1, last} if ring else {1}), ring


def reach(start: int, peers: Mapping[int, Collection[int]]) -> set[int]:
    """All ranks that messages join with one, itself among them."""
    reached, queue = {start}, [start]
    while queue:
        fresh = set(peers.get(queue.pop(), ())) - reached
        reached |= fresh
        queue += fresh
    return reached


def skips_of(order: Sequence[int], votes: Votes) -> tuple[tuple[int, int], ...]:
    """Places in an order whose ranks exchange messages past others, where those next to each other do so as well."""
    place = {rank: n for n, rank in enumerate(order)}
    edges = {(place[a], place[b]) for a in order for b in votes.peers.get(a, ()) if b in place and place[a] < place[b]}
    if any((n, n + 1) not in edges for n in range(len(order) - 1)):
        return ()
    past = sorted((a, b) for a, b in edges if b - a > 1)
    if past == [(0, len(order) - 1)]:
        # Looped stages close a ring: there the last rank is the first of the two that sends.
        heard = [vote.upstream for vote in votes.votes if (vote.rank, vote.peer) == (order[0], order[-1])]
        return tuple(past) if 2 * sum(heard) > len(heard) else ()
    return tuple(past)
