"""Messages that are no pipeline's: ranks that hold parts of one sequence hand them round inside an action.

Ring attention (context parallelism) sends and receives like a pipeline does, so what tells them apart is the group that
carries them, where its description says what it is for. Where none does: round a ring every rank sends as it receives,
whatever it computed last, while a pipeline's first rank begins with a send and its last one with a receive; and the
host posts such messages inside an op or an autograd node, not between two actions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.stage_order import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.capture.process_groups import ProcessGroup
    from tracetool.store.run import Run

EXCHANGE = "exchange"
"""What ``comms.operation`` shows for such a message while a pipeline is reconstructed: no send and no receive."""

_OF_PIPELINES = frozenset(("pp", "pipe", "pipeline"))
_OF_ACTIONS = frozenset(
    ("cp", "context", "tp", "tensor", "ep", "exp", "expert", "dp", "data", "fsdp", "sp", "sequence", "ring", "ulysses")
)
_SPLIT = re.compile(r"[^a-z]+")


class Ring(NamedTuple):
    """Ranks of one stage whose messages on one group are part of their actions.

    Attributes:
        group: Name of the process group.
        ranks: Global ranks; in the order in which messages go round where ``description`` is empty.
        description: What the trace says the group is for; empty if who sends to whom tells it.
        messages: How many sends and receives they post.
    """

    group: str
    ranks: tuple[int, ...]
    description: str
    messages: int


def is_of_actions(description: str) -> bool:
    """Whether a group's description names a dimension whose messages belong to actions.

    Beyond single dimensions (``mesh_cp``, ``CONTEXT_PARALLEL_GROUP``) names of parts or products of them count, such as
    Megatron's ``HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0`` or MindSpeed's ``cp_ring_intra``; no group over pipelines is
    one.
    """
    words = _words(description)
    return bool(words & _OF_ACTIONS) and not words & _OF_PIPELINES


def _words(description: str) -> set[str]:
    return set(_SPLIT.split(description.lower()))


def find_rings(run: Run, p2p: Mapping[int, Sequence[P2POp]], groups: Sequence[ProcessGroup]) -> list[Ring]:
    """Rings of a capture, those that descriptions tell first.

    Args:
        run: The Run.
        p2p: All of its sends and receives.
        groups: All process groups.
    """
    said = {(group.name, rank): group.description for group in groups if group.description for rank in group.ranks}
    members = {(group.name, rank): group.ranks for group in groups for rank in group.ranks}
    posted = Counter((op.group, op.rank) for ops in p2p.values() for op in ops)
    named: dict[tuple[str, tuple[int, ...], str], int] = defaultdict(int)
    for (group, rank), count in posted.items():
        description = said.get((group, rank), "")
        if is_of_actions(description):
            named[group, members.get((group, rank), (rank,)), description] += count
    rings = [Ring(*key, messages) for key, messages in sorted(named.items())]
    rest = {
        rank: [op for op in ops if not _words(said.get((op.group, rank), "")) & _OF_PIPELINES]
        for rank, ops in without_rings(p2p, rings).items()
    }
    unnamed = _unnamed(run, rest)
    others = without_rings(p2p, [*rings, *unnamed])
    return [*rings, *(ring for ring in unnamed if _are_apart(ring.ranks, others))]


def without_rings(p2p: Mapping[int, Sequence[P2POp]], rings: Sequence[Ring]) -> dict[int, list[P2POp]]:
    """The sends and receives that are a pipeline's."""
    places = {(ring.group, rank): frozenset(ring.ranks) for ring in rings for rank in ring.ranks}
    return {
        rank: [op for op in ops if op.peer not in places.get((op.group, rank), ())] for rank, ops in p2p.items()
    }  # fmt: skip


def overlay_exchanges(run: Run, rings: Sequence[Ring]) -> Run:
    """The Run with messages of rings as ``exchange``: what asks for sends and receives gets those of pipelines."""
    if not rings:
        return run
    chosen = " OR ".join(
        f"(\"group\" = '{ring.group.replace(chr(39), 2 * chr(39))}' AND list_contains({list(ring.ranks)}, rank) "
        f"AND list_contains({list(ring.ranks)}, peer))"
        for ring in rings
    )
    operation = f"CASE WHEN operation IN ('send', 'recv') AND ({chosen}) THEN '{EXCHANGE}' ELSE operation END"
    return run.overlay({"comms": f"SELECT * REPLACE ({operation} AS operation) FROM {{recorded}}"})


def record_rings(rings: Sequence[Ring], account: Account) -> None:
    """Say which messages count as part of actions."""
    for ring in rings:
        listed = ", ".join(map(str, ring.ranks))
        moved = f"{ring.messages:,} sends and receives among ranks {listed}"
        if ring.description:
            account.find("exchanges", f"ranks {listed}", f"{moved} are part of actions: group {ring.description!r}",
                         "metadata")  # fmt: skip
        else:
            account.find(
                "exchanges", f"ranks {listed}", f"{moved} are part of actions: they go round in a ring", "messages",
                1.0,
                "no description says what the group is for; every rank sends as it receives, inside ops",
            )  # fmt: skip
    if rings:
        account.note(
            NoticeCode.MESSAGES_OF_STAGE,
            "messages among ranks of one stage (ring attention) are communication inside actions: their time stays as "
            "recorded, over links between data centres, too",
        )


def _unnamed(run: Run, rest: Mapping[int, Sequence[P2POp]]) -> list[Ring]:
    """What goes round in rings on groups that no description tells."""
    by_group: dict[str, dict[int, list[P2POp]]] = defaultdict(lambda: defaultdict(list))
    for rank, ops in rest.items():
        for op in ops:
            by_group[op.group][rank].append(op)
    launches = _Launches(run)
    rings = []
    for group, by_rank in sorted(by_group.items()):
        onward = {rank: _onward(ops, launches) for rank, ops in by_rank.items()}
        for ranks in _circles(onward):
            members = [op for rank in ranks for op in by_rank[rank] if op.peer in ranks]
            if 2 * sum(map(launches.is_inside, members)) > len(members):
                rings.append(Ring(group, ranks, "", len(members)))
    return rings


def _onward(ops: Sequence[P2POp], launches: _Launches) -> list[tuple[int, int]]:
    """Pairs (receives from, sends to) of a rank such that it always sends as often as it receives.

    That is: between any two launches of computes.
    """
    sends = Counter(op.peer for op in ops if op.is_send)
    recvs = Counter(op.peer for op in ops if not op.is_send)
    pairs = [(source, target) for source, n in recvs.items() for target, many in sends.items() if n == many]
    return [
        (source, target)
        for source, target in pairs
        if launches.are_balanced([op for op in ops if op.peer == (target if op.is_send else source)])
    ]


def _circles(onward: Mapping[int, Sequence[tuple[int, int]]]) -> list[tuple[int, ...]]:
    """Ranks round each ring, from the lowest one on; the longest of those that share ranks."""
    longest_ones: list[tuple[int, ...]] = []
    for first in sorted(onward):
        circles = (_circle(first, source, target, onward) for source, target in onward[first])
        longest = max((circle for circle in circles if circle), key=len, default=())
        if longest and first == min(longest) and not any(set(longest) & set(other) for other in longest_ones):
            longest_ones.append(longest)
    return longest_ones


def _circle(
    first: int, source: int, target: int, onward: Mapping[int, Sequence[tuple[int, int]]]
) -> tuple[int, ...] | None:
    """The ring along which a rank hands on to ``target`` what comes back from ``source``; None if it does not close."""
    ranks, before, here = [first], first, target
    while here not in ranks:
        ways = [to for since, to in onward.get(here, ()) if since == before]
        if not ways:
            return None
        ranks.append(here)
        # Where messages go round both ways, going back is no way on.
        before, here = here, min(ways, key=lambda to: to == before)
    return tuple(ranks) if here == first and before == source else None


def _are_apart(ranks: Sequence[int], p2p: Mapping[int, Sequence[P2POp]]) -> bool:
    """Whether no other messages join the ranks: they hold one stage of different pipelines."""
    peers: dict[int, set[int]] = defaultdict(set)
    for rank, ops in p2p.items():
        for op in ops:
            peers[rank].add(op.peer)
            peers[op.peer].add(rank)
    return not any(reach(rank, peers) & (set(ranks) - {rank}) for rank in ranks)


_LAUNCHES_SQL = """
SELECT DISTINCT l.start_ns FROM events AS k
JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
WHERE k.rank = $rank AND k.category = 'kernel' AND NOT regexp_matches(lower(k.name), '^(nccl|rccl|mscclpp|hcom_)')
ORDER BY 1
"""

_AROUND_SQL = """
SELECT DISTINCT c.position FROM comms AS c
JOIN events AS o ON o.rank = c.rank AND o.category = 'op' AND o.thread = c.thread
    AND o.start_ns < c.posted_ns AND o.start_ns + o.duration_ns > c.posted_ns
WHERE c.rank = $rank AND c.operation IN ('send', 'recv')
  AND NOT regexp_matches(o.name, '^(c10d|nccl|record_param_comms|torch.distributed)')
"""


class _Launches:
    """When each rank launched computes, and which of its messages were posted inside an op; read when asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._times: dict[int, list[int]] = {}
        self._inside: dict[int, frozenset[int]] = {}

    def are_balanced(self, ops: Sequence[P2POp]) -> bool:
        """Whether a rank posted as many of them to send as to receive between any two launches."""
        if not ops:
            return False
        rank = ops[0].rank
        if rank not in self._times:
            self._times[rank] = [time for (time,) in self._run.rows(_LAUNCHES_SQL, {"rank": rank})]
        level: Counter[int] = Counter()
        for op in ops:
            level[bisect_left(self._times[rank], op.posted_ns)] += 1 if op.is_send else -1
        return bool(self._times[rank]) and not any(level.values())

    def is_inside(self, op: P2POp) -> bool:
        """Whether it was posted inside an op or an autograd node."""
        if op.rank not in self._inside:
            rows = self._run.rows(_AROUND_SQL, {"rank": op.rank})
            self._inside[op.rank] = frozenset(position for (position,) in rows)
        return op.position in self._inside[op.rank]
