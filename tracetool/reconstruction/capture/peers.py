"""Who exchanges a message with whom, where traces name no peers (Nsight Systems without NCCL's payloads).

A receive ends as soon as both sides are ready and the bytes are over, so of most receives only one send began at the
right time. What a rank computed last before a send says what it hands on, and results of one kind all go to one rank:
single sends that can be told tell the rest. Each receiver then takes messages of each sender in the order of their
sends. What that leaves open, or does not fit, keeps no peer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reconstruction.capture.collectives import rough_differences
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.store.run import Run

_TOGETHER_NS = 100_000
"""Kernels of one message end within this of each other; on H100 they did within 17 us, batches within 82 us."""

_LEAST_WAIT_NS = 300_000
"""A receive that lasts longer waited for its sender; on H100 bytes were over 60 to 275 us after both sides began."""

_LEAST_VOTES = 2
_LEAST_SHARE = 0.6
_MOST_STATES = 64
_SKIPPED = 5.0
_UNLIKELY = 10.0

_SQL = """
SELECT rank, position, operation = 'send' AS is_send, payload_bytes, communicator, batch, thread, posted_ns, start_ns,
       end_ns, count(*) OVER (PARTITION BY rank, batch) AS together
FROM comms
WHERE list_contains($ranks, rank) AND operation IN ('send', 'recv') AND peer IS NULL AND start_ns IS NOT NULL
ORDER BY rank, position
"""
_LAUNCHES_SQL = """
SELECT l.start_ns, k.name, l.thread FROM events AS k
JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
WHERE k.rank = ? AND k.category = 'kernel' AND NOT regexp_matches(lower(k.name), '^(nccl|rccl|mscclpp)')
ORDER BY 1
"""


class Nameless(NamedTuple):
    """A send or receive without a peer.

    Attributes:
        rank: Global rank.
        position: Order of posting on the rank.
        is_send: Whether it sends.
        payload_bytes: Its size, where known.
        communicator: Its communicator, where known.
        is_alone: Whether its kernel does nothing else.
        start_ns: Start of its kernel, on the clock of all ranks.
        end_ns: End of it.
        follows: What the rank launched last before it was posted.
    """

    rank: int
    position: int
    is_send: bool
    payload_bytes: int | None
    communicator: str | None
    is_alone: bool
    start_ns: int
    end_ns: int
    follows: tuple[object, ...]


def infer_peers(run: Run, collectives: Sequence[Collective], account: Account) -> Run:
    """The Run with a peer for every send and receive that can be told; the same one if none lacks it.

    Args:
        run: The Run.
        collectives: They tell how far clocks are apart.
        account: Gets a finding.
    """
    # Other formats name peers wherever they know them: where those do not, the records themselves are in doubt.
    ranks = [source["rank"] for source in run.manifest.get("sources", ()) if source["reader"] == "nsys"]
    ops = _nameless(run, ranks, rough_differences(collectives)) if ranks else []
    if not ops:
        return run
    peers = peers_of(ops, run.manifest.get("world_size") or 0)
    if not peers:
        account.find("messages", "all", "who exchanges messages with whom is unknown", "assumed", 0.0,
                     "kernels of sends and receives do not begin and end together on any two ranks")  # fmt: skip
        return run
    account.find(
        "messages", "all",
        f"peers of {len(peers):,} of {format_count(len(ops), 'send')} and receives are told by when their kernels ran",
        "inferred", len(peers) / len(ops), "traces name no peers",
    )  # fmt: skip
    listed = ", ".join(f"({rank}, {position}, {peer})" for (rank, position), peer in sorted(peers.items()))
    evidence = "CASE WHEN i.peer IS NULL OR c.evidence = 'stated' THEN c.evidence ELSE 'inferred' END"
    named = f"coalesce(c.peer, i.peer) AS peer, {evidence} AS evidence"
    query = (
        f"SELECT c.* REPLACE ({named}) FROM {{recorded}} AS c "
        f"LEFT JOIN (VALUES {listed}) AS i(rank, position, peer) ON i.rank = c.rank AND i.position = c.position"
    )
    return run.overlay({"comms": query})


def peers_of(ops: Sequence[Nameless], world: int) -> dict[tuple[int, int], int]:
    """The peer of each operation that can be told, by rank and position."""
    ranks = sorted({op.rank for op in ops})
    if len(ranks) == 2 and world <= 2:
        return {(op.rank, op.position): ranks[1 - ranks.index(op.rank)] for op in ops}
    goes_to = _destinations(ops)
    sent: dict[tuple[int, int], list[Nameless]] = defaultdict(list)
    for op in ops:
        peer = goes_to.get((op.rank, op.communicator, *op.follows)) if op.is_send else None
        if peer is not None:
            sent[op.rank, peer].append(op)
    peers: dict[tuple[int, int], int] = {}
    least = _least_ns(ops)
    for rank in ranks:
        receives = [op for op in ops if op.rank == rank and not op.is_send]
        sources = [queue for (_, peer), queue in sorted(sent.items()) if peer == rank]
        for receive, send in _Merge(receives, sources, least).pairs():
            peers[rank, receive.position] = send.rank
            peers[send.rank, send.position] = rank
    return peers


def _nameless(run: Run, ranks: Sequence[int], differences: Mapping[tuple[int, int], int]) -> list[Nameless]:
    nameless = []
    launches: dict[int, list[tuple[int, str, int]]] = {}
    ahead = _ahead(differences)
    for row in run.records(_SQL, {"ranks": ranks}):
        rank = row["rank"]
        if rank not in launches:
            launches[rank] = [(at, name, thread) for at, name, thread in run.rows(_LAUNCHES_SQL, [rank])]
        before = bisect_left(launches[rank], (row["posted_ns"],)) - 1
        shift = ahead.get(rank, 0)
        nameless.append(
            Nameless(
                rank=rank, position=row["position"], is_send=row["is_send"], payload_bytes=row["payload_bytes"],
                communicator=row["communicator"], is_alone=row["together"] == 1, start_ns=row["start_ns"] - shift,
                end_ns=row["end_ns"] - shift, follows=launches[rank][before][1:] if before >= 0 else (),
            )
        )  # fmt: skip
    return nameless


def _ahead(differences: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """How far each rank's clock is ahead of the lowest one that it is compared with."""
    ahead: dict[int, int] = {}
    for (one, other), difference in sorted(differences.items()):
        ahead.setdefault(one, 0)
        ahead.setdefault(other, ahead[one] + difference)
    return ahead


def _least_ns(ops: Iterable[Nameless]) -> int:
    """How long the bytes of a message are under way at least."""
    durations = sorted(op.end_ns - op.start_ns for op in ops)
    return durations[len(durations) // 50] if durations else 0


def _waited(receive: Nameless, least: int) -> bool:
    return receive.is_alone and receive.end_ns - receive.start_ns > max(_LEAST_WAIT_NS, 4 * least)


def _destinations(ops: Sequence[Nameless]) -> dict[tuple[object, ...], int]:
    """Where each rank's results of one kind go, as most of the sends say that one receive alone can have met."""
    least = _least_ns(ops)
    sends = sorted((op for op in ops if op.is_send), key=lambda op: op.start_ns)
    starts = [op.start_ns for op in sends]
    by_end = sorted(sends, key=lambda op: op.end_ns)
    ends = [op.end_ns for op in by_end]
    votes: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for receive in (op for op in ops if not op.is_send):
        ready = receive.end_ns - least // 2
        if _waited(receive, least):
            first = bisect_left(starts, ready - max(_LEAST_WAIT_NS, 4 * least))
            near = sends[first : bisect_right(starts, ready)]
        else:
            first = bisect_left(ends, receive.end_ns - _TOGETHER_NS)
            near = [s for s in by_end[first : bisect_right(ends, receive.end_ns + _TOGETHER_NS)] if s.start_ns <= ready]
        could = [send for send in near if _could_meet(send, receive)]
        if len(could) == 1:
            votes[could[0].rank, could[0].communicator, *could[0].follows][receive.rank] += 1
    destinations: dict[tuple[object, ...], int] = {}
    for key, counts in votes.items():
        (peer, most), *_ = counts.most_common(1)
        if most >= _LEAST_VOTES and most >= _LEAST_SHARE * counts.total():
            destinations[key] = peer
    return destinations


def _could_meet(send: Nameless, receive: Nameless) -> bool:
    same_size = None in (send.payload_bytes, receive.payload_bytes) or send.payload_bytes == receive.payload_bytes
    return send.rank != receive.rank and send.communicator == receive.communicator and same_size


@dataclass(slots=True)
class _State:
    """How far each source is taken, at what cost; ``taken`` links back to the receives before."""

    places: tuple[int, ...]
    cost: float = 0.0
    taken: tuple[int | None, _State] | None = field(default=None, repr=False)


class _Merge:
    """Lays the messages of several senders, each in order, into the order of one rank's receives.

    Args:
        receives: In order of posting.
        sources: Sends to this rank, of one sender each, in order of posting.
        least: How long the bytes of a message are under way at least.
    """

    def __init__(self, receives: Sequence[Nameless], sources: Sequence[Sequence[Nameless]], least: int) -> None:
        self._receives, self._sources, self._least = receives, sources, least

    def pairs(self) -> list[tuple[Nameless, Nameless]]:
        """Receives with their sends, by the cheapest way to lay them; none where no way is half likely."""
        if not self._sources:
            return []
        states = {(0,) * len(self._sources): _State((0,) * len(self._sources))}
        for receive in self._receives:
            following: dict[tuple[int, ...], _State] = {}
            for state in states.values():
                for new in self._after(state, receive):
                    known = following.get(new.places)
                    if known is None or new.cost < known.cost:
                        following[new.places] = new
            cheapest = sorted(following.values(), key=lambda state: state.cost)[:_MOST_STATES]
            states = {state.places: state for state in cheapest}
        left = {
            places: state.cost + _SKIPPED * sum(len(s) - at for s, at in zip(self._sources, places, strict=True))
            for places, state in states.items()
        }
        best = states[min(left, key=lambda places: left[places])]
        if best.cost > _SKIPPED * len(self._receives) / 2:
            return []
        return self._chosen(best)

    def _chosen(self, state: _State) -> list[tuple[Nameless, Nameless]]:
        chosen = []
        for receive in reversed(self._receives):
            if state.taken is None:
                break
            source, before = state.taken
            if source is not None:
                chosen.append((receive, self._sources[source][state.places[source] - 1]))
            state = before
        return chosen[::-1]

    def _after(self, state: _State, receive: Nameless) -> Iterable[_State]:
        yield _State(state.places, state.cost + _SKIPPED, (None, state))
        for number, (source, at) in enumerate(zip(self._sources, state.places, strict=True)):
            for skipped, send in enumerate(source[at : at + 2]):
                cost = self._cost(send, receive)
                places = (*state.places[:number], at + skipped + 1, *state.places[number + 1 :])
                if cost < _UNLIKELY:
                    yield _State(places, state.cost + cost + _SKIPPED * skipped, (number, state))

    def _cost(self, send: Nameless, receive: Nameless) -> float:
        """How unlikely it is that they met: 0 where both ends are as of one message."""
        under_way = receive.end_ns - max(send.start_ns, receive.start_ns)
        if not _could_meet(send, receive) or under_way < self._least // 2:
            return _UNLIKELY
        if send.is_alone and send.end_ns > receive.end_ns + _TOGETHER_NS:
            return _UNLIKELY
        if _waited(receive, self._least) and under_way > max(_LEAST_WAIT_NS, 4 * self._least):
            return _UNLIKELY / 2
        return 0.0 if abs(send.end_ns - receive.end_ns) <= _TOGETHER_NS else 0.5
