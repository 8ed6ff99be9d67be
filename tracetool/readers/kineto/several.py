"""Splits a Kineto file that holds the traces of several ranks, where its events tell whose they are; else refuses it.

Merged traces keep the processes apart in one of a few ways: the events say their rank (``args.rank``), numbers or
names of processes speak of ranks, all events of a rank have one process, or the lists of events were put one
behind the other. Where none of them holds, kernels still follow the launches that they are correlated with.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import MalformedTrace
from tracetool.readers.chrome import NO_CODE, filled
from tracetool.readers.kineto.census import (
    ABSENT,
    LAUNCH,
    Census,
    CensusRows,
    RankEvidence,
    assign,
    codes,
    launched_twice,
)
from tracetool.readers.kineto.comms import parse_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import Group

_RECORD = "record_param_comms"
_MOST_RECORDS = 1 << 19
_MOST_PARTS = 4096
_OWN_SHARE = 0.99
_FOREIGN_SHARE = 0.9
HINT = "give each rank's own trace, or merge them with the rank in the events (args.rank) or in the names of processes"


class RankEvents(NamedTuple):
    """Which events of a file are one rank's.

    Attributes:
        by: ``rank`` (in the events' arguments), ``process`` or ``run`` (what lies beside events of a process).
        keys: The rank, the processes, or the process and after it all that are told apart.
    """

    by: str
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"rank {self.keys[0]}" if self.by == "rank" else f"process {self.keys[0]}"


class Chooser:
    """Takes the events of one rank out of batches of a file.

    Args:
        choice: Whose they are.
    """

    def __init__(self, choice: RankEvents) -> None:
        self._choice = choice
        self._run = choice.keys[1] if choice.by == "run" else ""

    def chosen(self, table: pa.Table) -> pa.Table:
        """The rows of a batch that are the rank's."""
        import numpy as np
        import pyarrow as pa

        by, keys = self._choice
        if by == "run":
            owners = self._owners(table)
            mask = owners == 0
        else:
            texts, code = codes(table, "rank" if by == "rank" else "pid")
            mask = np.isin(code, [n for n, text in enumerate(texts) if text in keys])
        return table.filter(pa.array(mask))

    def _owners(self, table: pa.Table) -> NDArray[np.int64]:
        """Which of the processes each row lies beside: the last one that was met before it."""
        owners, self._run = run_owners(table, self._choice.keys[1:], self._run)
        wanted = self._choice.keys[1:].index(self._choice.keys[0])
        return owners - wanted


def run_owners(table: pa.Table, hosts: tuple[str, ...], before: str) -> tuple[NDArray[np.int64], str]:
    """Which host process each row lies beside, and that of the last row."""
    import numpy as np

    pids, pid = codes(table, "pid")
    places = {name: n for n, name in enumerate(hosts)}
    known = np.array([places.get(name, NO_CODE) for name in pids] + [NO_CODE], np.int64)[pid]
    rows = np.where(known >= 0, np.arange(len(known)), -1)
    last = np.maximum.accumulate(rows) if len(rows) else rows
    owners = np.where(last >= 0, known[np.maximum(last, 0)], places[before])
    return owners, hosts[int(owners[-1])] if len(owners) else before


class FileSurvey:
    """What is needed to tell the parts of a file apart, taken from its batches.

    Args:
        groups: Process groups named outside the events.
    """

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.census = Census()
        self._groups = groups
        self._pids: dict[str, int] = {}
        self._runs: list[int] = []
        self._last = NO_CODE
        self._records: list[tuple[str, str, dict[str, Any]]] = []
        self._launches: list[NDArray[np.int64]] = []
        self._kernels: list[NDArray[np.int64]] = []

    def take(self, table: pa.Table) -> None:
        """Learn from a batch of events."""
        import numpy as np

        rows = self.census.take(table)
        pid = np.array([self._pids.setdefault(p, len(self._pids)) for p in rows.pids] + [NO_CODE], np.int64)[rows.pid]
        hosts = pid[rows.is_host]
        turns = hosts[np.flatnonzero(np.diff(hosts, prepend=self._runs[-1] if self._runs else -2))].tolist()
        self._runs += turns
        cats, cat = codes(table, "cat")
        is_launch = rows.is_host & np.isin(cat, [n for n, name in enumerate(cats) if name in LAUNCH])
        correlation, start = (filled(table.column(key), ABSENT) for key in ("correlation", "ts"))
        there = correlation != ABSENT
        owner = self._beside(np.where(rows.is_host, pid, NO_CODE))
        for kept, which in ((self._launches, is_launch & there), (self._kernels, rows.is_kernel & there)):
            kept.append(np.stack([pid[which], correlation[which], start[which], owner[which]]))
        self._take_records(table, rows)

    def _beside(self, host: NDArray[np.int64]) -> NDArray[np.int64]:
        """The host process that each row lies beside: the last one that was met before it."""
        import numpy as np

        last = np.maximum.accumulate(np.where(host >= 0, np.arange(len(host)), -1)) if len(host) else host
        beside = np.where(last >= 0, host[np.maximum(last, 0)], self._last) if len(host) else host
        self._last = int(beside[-1]) if len(beside) else self._last
        return beside

    def _take_records(self, table: pa.Table, rows: CensusRows) -> None:
        import numpy as np

        names, name = codes(table, "name")
        hits = np.flatnonzero(rows.is_host & np.isin(name, [n for n, text in enumerate(names) if text == _RECORD]))
        hits = hits[: max(0, _MOST_RECORDS - len(self._records))]
        for row, args in zip(hits.tolist(), table.take(hits).to_pylist() if len(hits) else (), strict=True):
            pid = rows.pids[rows.pid[row]] if rows.pid[row] >= 0 else ""
            rank = rows.ranks[rows.rank[row]] if rows.rank[row] >= 0 else ""
            self._records.append((pid, rank, {k: v for k, v in args.items() if v is not None}))

    def choices(self, name: str) -> list[RankEvents]:
        """How the events are told apart; empty if they are all of one rank.

        Args:
            name: What to call the file.

        Raises:
            MalformedTrace: If they are of several ranks and nothing tells whose each is.
        """
        import numpy as np

        launches = np.concatenate(self._launches, axis=1) if self._launches else np.zeros((4, 0), np.int64)
        kernels = np.concatenate(self._kernels, axis=1) if self._kernels else launches
        why = self.census.several() or self._contradiction() or launched_twice(launches[1], launches[2])
        if why is None:
            return []
        choices = (
            self._by_rank() or self._by_label() or self._by_process(launches, kernels)
            or self._by_run(launches, kernels) or self._by_launch(launches, kernels)
        )  # fmt: skip
        if not choices or len(choices) > _MOST_PARTS:
            raise MalformedTrace(
                f"{name} holds the events of several ranks ({why}), and nothing tells them apart.", hint=HINT
            )
        return choices

    def _by_rank(self) -> list[RankEvents]:
        ranks = self.census.ranks
        return [RankEvents("rank", (rank,)) for rank in ranks] if len(ranks) > 1 and not self.census.unranked else []

    def _by_label(self) -> list[RankEvents]:
        labels = self.census.labels
        pids = self.census.hosts.keys() | {pid for pid, _ in self.census.kernels}
        if len(set(labels.values())) < 2 or pids - labels.keys():
            return []
        of_label: dict[str, list[str]] = defaultdict(list)
        for pid in sorted(pids, key=lambda pid: (pid not in self.census.hosts, pid)):
            of_label[labels[pid]].append(pid)
        return [RankEvents("process", tuple(members)) for members in of_label.values()]

    def _by_process(self, launches: NDArray[np.int64], kernels: NDArray[np.int64]) -> list[RankEvents]:
        """All events of a rank have one process: its kernels follow its own launches."""
        hosts = self.census.host_processes()
        if len(hosts) < 2 or not {pid for pid, _ in self.census.kernels} <= set(hosts):
            return []
        own = all(_follow(kernels, launches, 0, self._pids[pid]) for pid in hosts)
        return [RankEvents("process", (pid,)) for pid in hosts] if own else []

    def _by_run(self, launches: NDArray[np.int64], kernels: NDArray[np.int64]) -> list[RankEvents]:
        """One list behind the other: the events of each process lie together, its kernels' launches with them."""
        hosts = tuple(self.census.host_processes())
        known = [self._pids[pid] for pid in hosts]
        turns = [pid for pid in self._runs if pid in known]
        distinct = [pid for n, pid in enumerate(turns) if n == 0 or pid != turns[n - 1]]
        if len(hosts) < 2 or len(distinct) != len(hosts):
            return []
        own = all(_follow(kernels, launches, 3, pid) for pid in known)
        return [RankEvents("run", (pid, *hosts)) for pid in hosts] if own else []

    def _by_launch(self, launches: NDArray[np.int64], kernels: NDArray[np.int64]) -> list[RankEvents]:
        """The kernels of a device's process follow the launches of one host process, and of no other."""
        hosts = self.census.host_processes()
        if len(hosts) < 2:
            return []
        owned: dict[str, list[str]] = {host: [host] for host in hosts}
        for pid in dict.fromkeys(pid for pid, _ in self.census.kernels):
            own = kernels[:, kernels[0] == self._pids.get(pid, NO_CODE)]
            shares = {host: _launched(own, launches[:, launches[0] == self._pids[host]]) for host in hosts}
            best, *others = sorted(shares, key=lambda host: -shares[host])
            if pid in owned or shares[best] < _OWN_SHARE or any(shares[host] > _FOREIGN_SHARE for host in others):
                return []
            owned[best].append(pid)
        return [RankEvents("process", tuple(pids)) for pids in owned.values()]

    def ranks(self, choices: list[RankEvents], world: int, name: str) -> list[tuple[int, str]]:
        """The rank of each part, and what it was told by.

        Args:
            choices: The parts.
            world: Ranks in the job, as far as it is known.
            name: What to call the file.

        Raises:
            MalformedTrace: If nothing tells which rank each of them is.
        """
        parts = [self._part(choice) for choice in choices]
        assigned, by = assign(parts, world)
        if assigned is None:
            named = ", ".join(part.name for part in parts[:6])
            raise MalformedTrace(
                f"{name} holds the events of {len(parts)} ranks ({named}), and nothing tells which rank each is.",
                hint=HINT,
            )
        return [(rank, by) for rank in assigned]

    def _part(self, choice: RankEvents) -> RankEvidence:
        labels = [label for pid in choice.keys if choice.by == "process" and (label := self.census.labels.get(pid))]
        label = labels[0] if labels else self.census.labels.get(choice.keys[0], "")
        said = choice.keys[0] if choice.by == "rank" else label.removeprefix("rank ") if label[:5] == "rank " else ""
        part = RankEvidence(choice.name + (f" ({label})" if label else ""), int(said) if said.isdecimal() else None)
        for (pid, device), count in self.census.kernels.items():
            if device is not None and choice.by == "process" and pid in choice.keys:
                part.devices[device] += count
        for record, args in self._records_of(choice):
            part.take(record.operation, record.group_ranks, args.get("Rank"), record.peer)
        return part

    def _contradiction(self) -> str | None:
        whole = RankEvidence("")
        for _, _, args in self._records:
            if (record := parse_record(args, 0, 0, self._groups)) is not None:
                whole.take(record.operation, record.group_ranks, args.get("Rank"), record.peer)
        return whole.contradiction()

    def _records_of(self, choice: RankEvents) -> Iterator[tuple[Any, dict[str, Any]]]:
        keys: Iterable[str] = choice.keys[:1] if choice.by == "run" else choice.keys
        for pid, rank, args in self._records:
            if (rank if choice.by == "rank" else pid) in keys:
                record = parse_record(args, 0, 0, self._groups)
                if record is not None:
                    yield record, args


def _follow(kernels: NDArray[np.int64], launches: NDArray[np.int64], row: int, pid: int) -> bool:
    """Whether the kernels of a process (row 0) or beside one (row 3) follow its launches, as far as they are there."""
    import numpy as np

    own = kernels[:, kernels[row] == pid]
    own = own[:, np.isin(own[1], launches[1])]
    return not own.shape[1] or _launched(own, launches[:, launches[0] == pid]) >= _FOREIGN_SHARE


def _launched(kernels: NDArray[np.int64], launches: NDArray[np.int64]) -> float:
    """Share of kernels that began after a launch of their correlation."""
    import numpy as np

    if not (kernels.shape[1] and launches.shape[1]):
        return 0.0
    order = np.argsort(launches[1], kind="stable")
    correlation, start = launches[1][order], launches[2][order]
    at = np.minimum(np.searchsorted(correlation, kernels[1]), len(correlation) - 1)
    return float(np.mean((correlation[at] == kernels[1]) & (start[at] <= kernels[2])))
