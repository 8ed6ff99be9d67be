"""Which processes, devices and ranks the events of one Kineto file are of: one rank's, or those of several.

Which rank each of several parts of a file is: from labels, else from who exchanged messages with whom.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracetool.readers.chrome import NO_CODE, codes_of, filled, in_one_piece, rows_of_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

LAUNCH = ("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "privateuse1_runtime")
HOST = ("cpu_op", "Operator", *LAUNCH)
"""Categories of what a rank's own process does."""
KERNEL = ("kernel", "Kernel")
ABSENT = -(2**63)

_SHARE = 0.01
"""A process or device with less than this share of the most frequent one's events is no rank of its own."""
_LEAST_EVENTS = 4
_PROCESS = re.compile(r"\d{1,19}|[A-Za-z_].*\d.*")
_LEAST_LAUNCHES = 8
_TURNS = 0.05
_SHARED_LAUNCHES = 0.5
_RANK = re.compile(r"(?:\b|\bglobal_)rank[\s_:#=-]*(\d{1,7})(?!\d)", re.IGNORECASE)
_PLACE = re.compile(r"\[((?:(?:TP|DP|PP|EP|CP)[-_ ]?\d+[-_, ]*)+)\]", re.IGNORECASE)
_MOST_LABELS = 1 << 16


def label_of(text: str) -> str | None:
    """The rank, or the place in the job, that a name of a process speaks of: ``rank 3``, ``TP0-PP1``."""
    if match := _RANK.search(text):
        return f"rank {int(match[1])}"
    match = _PLACE.search(text)
    return match[1].upper() if match else None


_Key = TypeVar("_Key")


class CensusRows(NamedTuple):
    """A batch of events by what matters here; codes of pids point into ``pids``, NO_CODE where absent."""

    pids: list[str]
    pid: NDArray[np.int64]
    ranks: list[str]
    rank: NDArray[np.int64]
    is_host: NDArray[np.bool_]
    is_kernel: NDArray[np.bool_]
    device: NDArray[np.int64]


def rows_of(table: pa.Table) -> CensusRows:
    """The same table as a scanner made it, by process, device and rank."""
    cats, cat = codes(table, "cat")
    phases, phase = codes(table, "ph")
    pids, pid = codes(table, "pid")
    ranks, rank = codes(table, "rank")
    is_span = rows_of_texts(phases, phase, "X".__eq__)
    device = filled(table.column("device"), ABSENT)
    is_host, is_kernel = (is_span & rows_of_texts(cats, cat, known.__contains__) for known in (HOST, KERNEL))
    return CensusRows(pids=pids, pid=pid, ranks=ranks, rank=rank, is_host=is_host, is_kernel=is_kernel, device=device)


def codes(table: pa.Table, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts of a column, and which of them each row has; NO_CODE where it has none."""
    import numpy as np

    whole = in_one_piece(table.column(name))
    return whole.dictionary.to_pylist(), codes_of(whole).astype(np.int64, copy=False)


class Census:
    """Counts the events of a file by process and device.

    Attributes:
        hosts: Events of the host by process, in the order they were met.
        kernels: Kernels by process and device (None: not said).
        ranks: Events of host and device by the rank in their own arguments, if any of them says one.
        unranked: Those that say none.
        labels: Process to the rank or place that its name or number speaks of.
    """

    def __init__(self) -> None:
        self.hosts: Counter[str] = Counter()
        self.kernels: Counter[tuple[str, int | None]] = Counter()
        self.ranks: Counter[str] = Counter()
        self.unranked = 0
        self._named: dict[str, str] = {}

    @property
    def labels(self) -> dict[str, str]:
        """Process to the rank or place that its name or number speaks of."""
        pids = self.hosts.keys() | {pid for pid, _ in self.kernels}
        own = {pid: label for pid in pids if (label := label_of(pid)) is not None}
        return own | {pid: label for pid, label in self._named.items() if pid in pids}

    def take(self, table: pa.Table) -> CensusRows:
        """Count a batch."""
        import numpy as np

        rows = rows_of(table)
        for code, count in _counted(rows.pid[rows.is_host]):
            if code >= 0 and _is_process(rows.pids[code]):
                self.hosts[rows.pids[code]] += count
        devices, device = np.unique(rows.device[rows.is_kernel], return_inverse=True)
        pairs, counts = np.unique(rows.pid[rows.is_kernel] * len(devices) + device, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            code, place = divmod(pair, len(devices))
            on = int(devices[place])
            self.kernels[rows.pids[code] if code >= 0 else "", None if on == ABSENT else on] += count
        own = rows.rank[rows.is_host | rows.is_kernel]
        for code, count in _counted(own[own >= 0]):
            self.ranks[rows.ranks[code]] += count
        self.unranked += int(np.count_nonzero(own < 0))
        self._take_names(table, rows)
        return rows

    def _take_names(self, table: pa.Table, rows: CensusRows) -> None:
        import numpy as np

        names, name = codes(table, "name")
        hits = [n for n, text in enumerate(names) if text in ("process_name", "process_labels")]
        for column in ("process", "labels") if hits else ():
            texts, text = codes(table, column)
            for row in np.flatnonzero(np.isin(name, hits) & (text >= 0) & (rows.pid >= 0)).tolist():
                label = label_of(texts[text[row]])
                if label is not None and len(self._named) < _MOST_LABELS:
                    self._named.setdefault(rows.pids[rows.pid[row]], label)

    def several(self) -> str | None:
        """What shows that the events are of more than one rank, or None."""
        if len(self.ranks) > 1:
            return f"events say that they are of ranks {_listed(self.ranks)}"
        labels = sorted(set(self.labels.values()))
        if len(labels) > 1:
            return f"names of processes speak of {_listed(labels)}"
        if len(hosts := _frequent(self.hosts)) > 1:
            return f"processes {_listed(hosts)} run host operations"
        by_device: Counter[int] = Counter()
        for (_, device), count in self.kernels.items():
            if device is not None:  # not said is not another one
                by_device[device] += count
        if len(devices := _frequent(by_device)) > 1:
            return f"kernels run on devices {_listed(devices)}"
        return None

    def host_processes(self) -> list[str]:
        """Processes with more than a few events of the host, in the order they were met."""
        return _frequent(self.hosts)


def _is_process(pid: str) -> bool:
    """Whether it is a number of a process, or a text made of one."""
    return _PROCESS.fullmatch(pid) is not None or label_of(pid) is not None


def _frequent(counts: Counter[_Key]) -> list[_Key]:
    most = max(counts.values(), default=0)
    return [key for key, count in counts.items() if count >= max(_LEAST_EVENTS, _SHARE * most)]


def _listed(names: Iterable[object]) -> str:
    some = [str(name) for name in names]
    return ", ".join(some[:6]) + (f" and {len(some) - 6} more" if len(some) > 6 else "")


def _counted(codes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Each code that there is, in order, and of how many rows."""
    import numpy as np

    counts = np.bincount(codes - NO_CODE)
    for place in np.flatnonzero(counts).tolist():
        yield place + NO_CODE, int(counts[place])


def launched_twice(correlation: NDArray[np.int64], start: NDArray[np.int64]) -> str | None:
    """Why launches are of several processes: they share correlations, of which a process gives each launch its own.

    Those that come again later, and not in turn with the first, are repeats of one process.
    """
    import numpy as np

    # Most files repeat none: to know that takes less than to leave out what comes twice.
    ordered = np.sort(correlation[correlation != 0])
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(np.unique(again)) < _SHARED_LAUNCHES * (len(ordered) - len(again)):
        return None
    pairs = np.unique(np.stack([correlation, start]), axis=1)
    launches, counts = np.unique(pairs[0][pairs[0] != 0], return_counts=True)
    shared = int(np.count_nonzero(counts > 1))
    if len(launches) < _LEAST_LAUNCHES or shared < _SHARED_LAUNCHES * len(launches):
        return None
    falls = int(np.count_nonzero(np.diff(correlation[np.argsort(start, kind="stable")]) < 0))
    if falls < _TURNS * len(correlation):
        return None
    return f"{shared:,} of {len(launches):,} launches share their correlation with others of their process"


_MOST_TRIALS = 200_000
_SHARE_OF_OWN = 0.1
_OWN = frozenset({
    "allreduce", "all_reduce", "allgather", "all_gather", "_allgather_base", "allgather_into_tensor_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "all_to_all", "all_to_allv", "alltoall", "barrier", "allreduce_coalesced",
})  # fmt: skip
"""Operations whose ``Rank`` is the rank that posts them; of sends it is the peer, of broadcasts the root."""


@dataclass(slots=True)
class RankEvidence:
    """What the events of one part tell about its rank.

    Attributes:
        name: What to call it in messages.
        said: The rank that labels say.
        own: Ranks that its collectives say it is, with how many of them do.
        members: Ranks that all its process groups have in common; None if none is listed.
        messages: (operation, peer) to number of sends and receives.
        devices: Devices to number of kernels.
    """

    name: str
    said: int | None = None
    own: Counter[int] = field(default_factory=Counter)
    members: set[int] | None = None
    messages: Counter[tuple[str, int]] = field(default_factory=Counter)
    devices: Counter[int] = field(default_factory=Counter)

    def take(self, operation: str, ranks: tuple[int, ...], rank: object, peer: int | None) -> None:
        """Learn from one record of a communication operation."""
        if ranks:
            self.members = set(ranks) if self.members is None else self.members & set(ranks)
        if operation in ("send", "recv") and peer is not None:
            self.messages[operation, peer] += 1
        elif operation in _OWN and isinstance(rank, int) and 0 <= rank < len(ranks):
            self.own[ranks[rank]] += 1

    def contradiction(self) -> str | None:
        """Why these records cannot be those of one rank, or None."""
        most = max(self.own.values(), default=0)
        own = sorted(rank for rank, count in self.own.items() if count >= _SHARE_OF_OWN * most)
        if len(own) > 1:
            return f"collectives say that they are posted by ranks {', '.join(map(str, own[:6]))}"
        peers = {peer for _, peer in self.messages}
        if self.members and self.members <= peers:
            return f"each of ranks {', '.join(map(str, sorted(self.members)[:6]))} sends to or receives from another"
        return None

    def candidates(self, world: int) -> list[int]:
        """Ranks that it may be."""
        if self.said is not None:
            return [self.said]
        if self.own:
            return [self.own.most_common(1)[0][0]]
        peers = {peer for _, peer in self.messages}
        return sorted((set(range(world)) if self.members is None else self.members) - peers)


def most_frequent(devices: Counter[int]) -> int | None:
    """The device that most events are of, the lowest of several; None without any."""
    return min(devices, key=lambda device: (-devices[device], device), default=None)


def assign(parts: Sequence[RankEvidence], world: int) -> tuple[list[int] | None, str]:
    """The rank of each part if the evidence leaves no other, and what it was told by.

    Every send of one part must be a receive of the other, so that those who exchange messages are told by it.

    Args:
        parts: All parts.
        world: Ranks in the job, as far as it is known.
    """
    if all(part.said is not None for part in parts):
        ranks = [part.said for part in parts if part.said is not None]
        return (ranks if len(set(ranks)) == len(ranks) else None), "labels of its events"
    candidates: list[list[int]] = []
    for ranks in _assignments(parts, [part.candidates(max(world, len(parts))) for part in parts]):
        candidates.append(ranks)
        if len(candidates) > 1:
            break
    if len(candidates) == 1:
        return candidates[0], "its communication"
    devices = [-1 if (device := most_frequent(part.devices)) is None else device for part in parts]
    if candidates and sorted(devices) == list(range(world)) and _fits(parts, devices):
        return devices, "its device"
    return None, ""


def _assignments(parts: Sequence[RankEvidence], candidates: list[list[int]]) -> Iterator[list[int]]:
    """Ranks for all parts, no two alike, that agree with their messages."""
    order = sorted(range(len(parts)), key=lambda n: len(candidates[n]))
    chosen: dict[int, int] = {}
    trials = 0

    def extend(depth: int) -> Iterator[list[int]]:
        nonlocal trials
        if depth == len(order):
            yield [chosen[n] for n in range(len(parts))]
            return
        here = order[depth]
        for rank in candidates[here]:
            trials += 1
            if trials > _MOST_TRIALS:
                return
            if rank not in chosen.values() and all(
                _agree(parts[here], rank, parts[other], known) for other, known in chosen.items()
            ):
                chosen[here] = rank
                yield from extend(depth + 1)
                del chosen[here]

    return extend(0)


def _agree(one: RankEvidence, rank: int, two: RankEvidence, other: int) -> bool:
    return all(
        bool(a.messages[operation, at_b]) == bool(b.messages[answer, at_a])
        for a, at_a, b, at_b in ((one, rank, two, other), (two, other, one, rank))
        for operation, answer in (("send", "recv"), ("recv", "send"))
    )


def _fits(parts: Sequence[RankEvidence], ranks: list[int]) -> bool:
    pairs = list(zip(parts, ranks, strict=True))
    return all(rank in part.candidates(len(parts)) for part, rank in pairs) and all(
        _agree(*pairs[a], *pairs[b]) for a in range(len(pairs)) for b in range(a)
    )
