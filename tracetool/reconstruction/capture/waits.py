"""How long each communication operation waited, moved bytes, and kept its rank from computing.

A message: its kernels wait until the last side has started, then bytes move. Where a send was over
before its receive began, its payload was buffered: nobody waited, each kernel's duration is its own copying. On
Ascend an operator goes on with handshakes after both sides have started, so that the shortest operator of the same
link and size is taken as the transfer, the rest as waiting. A kernel that carries messages of several peers waits for
all of them: a message of it is over when the other side's kernel is, and the rest is waiting. A collective: the last
rank to arrive does not wait, so that the shortest duration over its ranks is the transfer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import SubjectKind
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage
    from tracetool.store.run import Run

    Times = int | NDArray[np.int64]

Place = tuple[int, int]
"""Rank and position of an operation."""

_HCCL_READERS = frozenset(("ascend", "msprof", "mindinsight"))


class Wait(NamedTuple):
    """A row of the ``waits`` table; see there."""

    rank: int
    position: int
    operation: str
    pair: int | None
    kernel: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int | None
    upper_bound: bool
    evidence: Evidence


class _Op(NamedTuple):
    """A communication operation that ran, on its rank's own clock."""

    rank: int
    position: int
    operation: str
    start_ns: int
    end_ns: int
    kernel: int


_SQL = """
SELECT rank, position, operation, start_ns, end_ns,
       -- Without a batch, operations on one stream at exactly one time are one kernel.
       min(position) OVER (
           PARTITION BY rank, batch, CASE WHEN batch IS NULL THEN coalesce(stream, -1 - position) END,
           CASE WHEN batch IS NULL THEN start_ns END, CASE WHEN batch IS NULL THEN end_ns END
       ) AS kernel
FROM comms
WHERE start_ns IS NOT NULL AND end_ns IS NOT NULL ORDER BY rank, position
"""

_SPANS_SQL = """
SELECT rank, position, start_ns, end_ns FROM comms
WHERE start_ns IS NOT NULL AND end_ns IS NOT NULL ORDER BY rank
"""

_COMPUTE_SQL = """
SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM events
WHERE category = 'kernel' AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
ORDER BY rank, start_ns
"""


def record_waits(
    waits: Sequence[Wait], ops: Mapping[Place, _Op], with_kernels: Collection[int], account: Account
) -> None:
    """Say for how long each rank communicated, and how much of that was waiting; what overlaps counts once.

    Args:
        waits: How long each operation waited.
        ops: The operations, by rank and position.
        with_kernels: Ranks whose traces hold kernels.
        account: Told of each rank.
    """
    kernels: dict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    met: dict[int, Counter[Evidence]] = defaultdict(Counter)
    for wait in waits:
        _, _, _, start, end, _ = ops[wait.rank, wait.position]
        _, _, known = kernels[wait.rank].get(wait.kernel, (start, end, 0))
        kernels[wait.rank][wait.kernel] = start, end, max(known, wait.wait_ns)
        met[wait.rank][wait.evidence] += not wait.upper_bound
    operations = Counter(wait.rank for wait in waits)
    for rank, mine in sorted(kernels.items()):
        count = operations[rank]
        what = format_count(len(mine), "kernel") if rank in with_kernels else format_count(count, "operation")
        whole = total_ns((start, end) for start, end, _ in mine.values())
        waited = total_ns((start, start + waits_ns) for start, _, waits_ns in mine.values())
        statement = f"{what}, {format_duration(whole)}, "
        good = met[rank].total()
        if good:
            statement += f"of it {format_duration(waited)} waiting"
            detail = f"{format_count(count - good, 'operation')} without all sides: waiting counts as moving"
            ((evidence, _),) = met[rank].most_common(1)
            doubt = detail if good < count else None
            account.find("communication", SubjectKind.RANK(rank), statement, evidence, good / count, doubt)
        else:
            account.find(
                "communication", SubjectKind.RANK(rank), f"{statement}how much of it was waiting is unknown",
                "inferred", 0.0, "no operation has all its sides in these traces",
            )  # fmt: skip


def total_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals (start, end)."""
    in_order = sorted(spans)
    total, until = 0, in_order[0][0] if in_order else 0
    for start, end in in_order:
        # Of each kernel of an action: max() takes as long as all the rest of it.
        begin = start if start > until else until
        if end > begin:
            total += end - begin
            until = end
    return total


def read_ops(run: Run) -> dict[Place, _Op]:
    """Every communication operation that ran, by rank and position."""
    return {(op.rank, op.position): op for op in map(_Op._make, run.rows(_SQL))}


def find_waits(
    run: Run,
    ops: Mapping[Place, _Op],
    messages: Sequence[PairedMessage],
    collectives: Sequence[Collective],
    clocks: Clocks,
) -> list[Wait]:
    """Split every operation of the capture that ran; :func:`with_exposed` says what of it was exposed.

    Args:
        run: The ingested traces.
        ops: Their operations.
        messages: Matched messages.
        collectives: Matched collectives.
        clocks: Times of different ranks are compared after aligning them.
    """
    readers = {s["rank"]: s["reader"] for s in run.manifest.get("sources", ())}
    hccl = {rank for rank, reader in readers.items() if reader in _HCCL_READERS}
    split: dict[Place, tuple[int, int, Evidence, bool]] = {}
    pair: dict[Place, int] = {}
    _split_messages(messages, hccl, clocks, split, pair)
    _split_collectives(collectives, split, pair)
    waits = []
    for key, op in ops.items():
        duration = op.end_ns - op.start_ns
        wait, transfer, evidence, bound = split.get(key, (0, duration, "inferred", True))
        waits.append(
            Wait(
                rank=op.rank, position=op.position, operation=op.operation, pair=pair.get(key), kernel=op.kernel,
                wait_ns=wait, transfer_ns=transfer, exposed_ns=None, upper_bound=bound,
                evidence=evidence,
            )
        )  # fmt: skip
    return waits


def _split_messages(
    messages: Sequence[PairedMessage],
    hccl: set[int],
    clocks: Clocks,
    split: dict[Place, tuple[int, int, Evidence, bool]],
    pair: dict[Place, int],
) -> None:
    least = _least(m for m in messages if m.send.rank in hccl)
    peers: dict[tuple[int, int | None], set[int]] = defaultdict(set)
    for op in (op for message in messages for op in message if op.batch is not None):
        peers[op.rank, op.batch].add(op.peer)
    for number, message in enumerate(messages):
        send, recv = message
        if send.start_ns is None or recv.start_ns is None:
            continue
        for own, other in ((send, recv), (recv, send)):
            pair[own.rank, own.position] = number
            duration = _duration(own)
            if own.rank in hccl:
                transfer = min(duration, least[_link(message)])
                wait = duration - transfer
            else:
                shared = own.batch is not None and len(peers[own.rank, own.batch]) > 1
                wait = _wait(own, other, clocks) + (_waits_after(own, other, clocks) if shared else 0)
                transfer = duration - wait
            split[own.rank, own.position] = wait, transfer, "messages", False


def _wait(own: P2POp, other: P2POp, clocks: Clocks) -> int:
    """Time until the other side started, within the operation; 0 if a send was over before its receive began.

    A receive that ends before its send begins cannot be: clocks differ, and all of it counts as waiting.
    """
    start, end = clocks.aligned_ns(own.rank, own.start_ns or 0), clocks.aligned_ns(own.rank, own.end_ns or 0)
    theirs = clocks.aligned_ns(other.rank, other.start_ns or 0)
    until = clocks.aligned_ns(other.rank, other.end_ns or 0)
    if until <= start or (own.is_send and end <= theirs):
        return 0
    return min(max(theirs - start, 0), _duration(own))


def _waits_after(own: P2POp, other: P2POp, clocks: Clocks) -> int:
    """Time that the operation runs on after the other side's kernel, which ends when the message has come over."""
    start, end = clocks.aligned_ns(own.rank, own.start_ns or 0), clocks.aligned_ns(own.rank, own.end_ns or 0)
    theirs = clocks.aligned_ns(other.rank, other.start_ns or 0)
    until = clocks.aligned_ns(other.rank, other.end_ns or 0)
    return max(end - until, 0) if until > start and end > theirs else 0


def _least(messages: Iterable[PairedMessage]) -> dict[tuple[int, int, int | None], int]:
    """The shortest operator of each link and size."""
    least: dict[tuple[int, int, int | None], int] = {}
    for message in messages:
        shortest = min(_duration(op) for op in message)
        key = _link(message)
        least[key] = min(least.get(key, shortest), shortest)
    return least


def _link(message: PairedMessage) -> tuple[int, int, int | None]:
    return message.send.rank, message.recv.rank, message.send.payload_bytes


def _duration(op: P2POp) -> int:
    return (op.end_ns or 0) - (op.start_ns or 0)


def _split_collectives(
    collectives: Sequence[Collective],
    split: dict[Place, tuple[int, int, Evidence, bool]],
    pair: dict[Place, int],
) -> None:
    first = 1 + max(pair.values(), default=-1)
    for number, collective in enumerate(collectives, first):
        own = collective.own_ns
        for op in collective.ops:
            pair[op.rank, op.position] = number
            duration = op.end_ns - op.start_ns
            split[op.rank, op.position] = duration - own, own, collective.evidence, not collective.is_whole


def with_exposed(run: Run, waits: Sequence[Wait]) -> list[Wait]:
    """The same with the time during which the rank of each ran no compute kernel; none for ranks without kernels."""
    import numpy as np

    kernels = run.arrow(_COMPUTE_SQL)
    ranks, starts, ends = (kernels[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    ops = run.arrow(_SPANS_SQL)
    of_ranks, positions, begun, over = (ops[name].to_numpy() for name in ("rank", "position", "start_ns", "end_ns"))
    exposed: dict[Place, int] = {}
    for rank in np.unique(of_ranks).tolist():
        computing = slice(*np.searchsorted(ranks, [rank, rank + 1]))
        if computing.start == computing.stop:
            continue
        mine = slice(*np.searchsorted(of_ranks, [rank, rank + 1]))
        computed = Union(starts[computing], ends[computing]).within(begun[mine], over[mine])
        left = over[mine] - begun[mine] - computed
        exposed.update(zip(zip(repeat(rank), positions[mine].tolist()), left.tolist(), strict=True))
    return [wait._replace(exposed_ns=exposed.get((wait.rank, wait.position))) for wait in waits]


class Union:
    """The union of intervals, ready to tell how much of it lies in another one."""

    def __init__(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        import numpy as np

        covered = np.maximum.accumulate(ends)
        fresh = np.flatnonzero(np.concatenate(([True], starts[1:] > covered[:-1])))
        self._starts = starts[fresh]
        self._ends = covered[np.concatenate((fresh[1:] - 1, [len(starts) - 1]))]
        self._before = np.concatenate(([0], np.cumsum(self._ends - self._starts)))

    def within(self, starts: Times, ends: Times) -> NDArray[np.int64]:
        """Length of the union inside each [start, end)."""
        return self._until(ends) - self._until(starts)

    def _until(self, times: Times) -> NDArray[np.int64]:
        import numpy as np

        at = np.searchsorted(self._starts, times, side="right")
        last = np.maximum(at - 1, 0)
        inside = np.minimum(times, self._ends[last]) - self._starts[last]
        return np.where(at == 0, 0, self._before[last] + inside)
