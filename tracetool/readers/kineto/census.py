"""Which processes, devices and ranks the events of one Kineto file are of: one rank's, or those of several."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracetool.readers.chrome.columns import NO_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    import numpy as np
    import pyarrow.compute as pc

    cats, cat = codes(table, "cat")
    phases, phase = codes(table, "ph")
    pids, pid = codes(table, "pid")
    ranks, rank = codes(table, "rank")
    is_span = np.isin(phase, [n for n, name in enumerate(phases) if name == "X"])
    device = pc.fill_null(table.column("device"), ABSENT).to_numpy()
    is_host, is_kernel = (
        is_span & np.isin(cat, [n for n, name in enumerate(cats) if name in known]) for known in (HOST, KERNEL)
    )
    return CensusRows(pids=pids, pid=pid, ranks=ranks, rank=rank, is_host=is_host, is_kernel=is_kernel, device=device)


def codes(table: pa.Table, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts of a column, and which of them each row has; NO_CODE where it has none."""
    import numpy as np
    import pyarrow.compute as pc

    column = table.column(name)
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    indices = pc.fill_null(whole.indices, NO_CODE).to_numpy(zero_copy_only=False)
    return whole.dictionary.to_pylist(), indices.astype(np.int64, copy=False)


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
        for code, count in zip(*np.unique(rows.pid[rows.is_host], return_counts=True), strict=True):
            if code >= 0 and _is_process(rows.pids[code]):
                self.hosts[rows.pids[code]] += int(count)
        pairs = np.stack([rows.pid[rows.is_kernel], rows.device[rows.is_kernel]])
        for (code, device), count in zip(*_distinct(pairs), strict=True):
            self.kernels[rows.pids[code] if code >= 0 else "", None if device == ABSENT else int(device)] += int(count)
        own = rows.rank[rows.is_host | rows.is_kernel]
        for code, count in zip(*np.unique(own[own >= 0], return_counts=True), strict=True):
            self.ranks[rows.ranks[code]] += int(count)
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


def _distinct(pairs: NDArray[np.int64]) -> tuple[list[list[int]], list[int]]:
    import numpy as np

    distinct, counts = np.unique(pairs, axis=1, return_counts=True)
    return distinct.T.tolist(), counts.tolist()


def launched_twice(correlation: NDArray[np.int64], start: NDArray[np.int64]) -> str | None:
    """Why launches are of several processes: they share correlations, of which a process gives each launch its own.

    Those that come again later, and not in turn with the first, are repeats of one process.
    """
    import numpy as np

    pairs = np.unique(np.stack([correlation, start]), axis=1)
    launches, counts = np.unique(pairs[0][pairs[0] != 0], return_counts=True)
    shared = int(np.count_nonzero(counts > 1))
    if len(launches) < _LEAST_LAUNCHES or shared < _SHARED_LAUNCHES * len(launches):
        return None
    falls = int(np.count_nonzero(np.diff(correlation[np.argsort(start, kind="stable")]) < 0))
    if falls < _TURNS * len(correlation):
        return None
    return f"{shared:,} of {len(launches):,} launches share their correlation with others of their process"
