"""Tracks of Ascend timelines: which process and thread an event belongs to, and what that makes it.

Names come from metadata events that may stand anywhere in a file, so they are collected first. Process
numbers of new releases hold the device; those of 2023 are small and say nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tracetool.readers.cann import lost_digits, time_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

ABSENT = -(2**63)
"""Stands for null in arrays of int64."""
HOST_DEVICE = 31
"""Device number by which a process number says that it is the host's."""

_KERNEL_TASK = re.compile(
    r"^(KERNEL_)?(AI_?CORE|AI_?VEC(TOR_CORE)?|AI_?CUBE|AI_?CPU|MIX_AI[CV]|AI[CV]|DSA|DVPP)(_SQE)?$"
)
_BIG = re.compile(r"^(?:Group (?P<group>.+) Communication|Communication Kernel)$")
_MODEL = re.compile(r"Model ID:(\d+)")
_STEP_MARK = re.compile(r"^ProfilerStep#(\d+)$")


class Track(Enum):
    """What the events of a thread are."""

    HARDWARE = "Ascend Hardware"
    HOST = "CANN"
    COMMUNICATION = "Communication"
    SUBTASK = "Plane"
    STEP = "Step Trace"
    FRAMEWORK = "Python"
    OTHER = "other"


_PROCESS = {
    "Ascend Hardware": Track.HARDWARE, "Task Scheduler": Track.HARDWARE,
    "CANN": Track.HOST,
    "HCCL": Track.COMMUNICATION, "Communication": Track.COMMUNICATION,
    "Step Trace": Track.STEP,
}  # fmt: skip
PYTHON = "python_function"
_FRAMEWORK_CATEGORIES = ("cpu_op", "user_annotation", PYTHON)


class Thread(NamedTuple):
    """A thread with the category of some of its events."""

    pid: int | None
    tid: int | None
    category: str


@dataclass(slots=True)
class Tracks:
    """Names of processes and threads, how many spans each track has, and how many of them are kernels.

    Attributes:
        processes: Process to name.
        threads: Process and thread to name.
        sort_indices: Process to its place in the order of display.
        numbers: Threads of spans to the numbers that stand for them.
    """

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    sort_indices: dict[int, int] = field(default_factory=dict)
    numbers: dict[Thread, int] = field(default_factory=dict)
    _counts: Counter[tuple[int, bool]] = field(default_factory=Counter)

    def learn(
        self, name: str | None, pid: int | None, tid: int | None, called: str | None, sort_index: int | None
    ) -> None:
        """Take a name from a metadata event."""
        if pid is None:
            return
        if name == "process_name" and called is not None:
            self.processes[pid] = called
        elif name == "thread_name" and tid is not None and called is not None:
            self.threads[pid, tid] = called
        elif name == "process_sort_index" and sort_index is not None:
            self.sort_indices[pid] = sort_index

    def threads_of(
        self, pids: NDArray[np.int64], tids: NDArray[np.int64], categories: NDArray[np.int64], names: Sequence[str]
    ) -> NDArray[np.int32]:
        """Numbers that stand for the threads of spans.

        Args:
            pids: Process of each span; ABSENT for none.
            tids: Thread of each.
            categories: Category of each, as places in ``names``.
            names: Categories; none is empty.
        """
        import numpy as np

        (own_pids, of_pid), (own_tids, of_tid) = (np.unique(some, return_inverse=True) for some in (pids, tids))
        keys, of_key = np.unique((of_pid * len(own_tids) + of_tid) * len(names) + categories, return_inverse=True)
        numbers = []
        for key in keys.tolist():
            pair, category = divmod(key, len(names))
            pid, tid = int(own_pids[pair // len(own_tids)]), int(own_tids[pair % len(own_tids)])
            thread = Thread(None if pid == ABSENT else pid, None if tid == ABSENT else tid, names[category])
            numbers.append(self.numbers.setdefault(thread, len(self.numbers)))
        of_spans: NDArray[np.int32] = np.array(numbers, np.int32)[of_key]
        return of_spans

    def count(self, threads: NDArray[np.int32], kernels: NDArray[np.bool_]) -> None:
        """Count spans by thread, and which of them compute."""
        import numpy as np

        for place, count in enumerate(np.bincount(threads * 2 + kernels).tolist()):
            if count:
                self._counts[place >> 1, bool(place & 1)] += count

    @property
    def spans(self) -> Counter[Track]:
        """Spans by track; right once all names are known."""
        tracks = [self.of(*thread) for thread in self.numbers]
        counts = Counter[Track]()
        for (thread, _), count in self._counts.items():
            counts[tracks[thread]] += count
        return counts

    @property
    def kernels(self) -> int:
        """Kernels among the spans; right once all names are known."""
        tracks = [self.of(*thread) for thread in self.numbers]
        return sum(n for (t, kernel), n in self._counts.items() if kernel and tracks[t] is Track.HARDWARE)

    def of(self, pid: int | None, tid: int | None, category: str) -> Track:
        """The track of an event."""
        if pid is None or tid is None:
            return Track.OTHER
        name = self.processes.get(pid)
        track = _PROCESS.get(name) if name is not None else None
        thread = self.threads.get((pid, tid), "")
        if track is None:
            return Track.FRAMEWORK if category in _FRAMEWORK_CATEGORIES else Track.OTHER
        if track is Track.COMMUNICATION and _BIG.match(thread) is None:
            return Track.SUBTASK if thread.startswith("Plane") else Track.OTHER
        return Track.STEP if track is Track.HARDWARE and thread.startswith("Step Trace") else track

    def called(self, pid: int | None) -> str:
        """What spans of a process are counted as where they are of no use."""
        return f"track {self.processes.get(pid, 'without a name') if pid is not None else 'without a number'}"

    def communicator(self, pid: int, tid: int) -> str:
        """The communicator that a thread of communication operations is named after; empty if it is not."""
        match = _BIG.match(self.threads.get((pid, tid), ""))
        return (match["group"] or "") if match is not None else ""

    def model(self, pid: int, tid: int) -> int | None:
        """The model that a thread of step traces is named after."""
        match = _MODEL.search(self.threads.get((pid, tid), ""))
        return int(match[1]) if match is not None else None

    def device(self, pid: int | None) -> int | None:
        """The device that a process number holds; None for the host and for numbers without one."""
        if pid is None or not self._holds_device(pid):
            return None
        # Other numbers may look like one by chance: where devices are in them, they are in all that msprof gives.
        if not all(self._holds_device(p) for p in self.sort_indices if self.processes.get(p) in _PROCESS):
            return None
        device = pid & 31
        return None if device == HOST_DEVICE else device

    def _holds_device(self, pid: int) -> bool:
        return pid >> 10 != 0 and pid >> 5 & 31 == self.sort_indices.get(pid)


def is_kernel_type(task_type: str) -> bool:
    """Whether a device task of this type computes; the others copy, notify, wait or record."""
    return _KERNEL_TASK.match(task_type) is not None


def step_of(name: str) -> int | None:
    """The step that a mark of the framework's profiler names."""
    match = _STEP_MARK.match(name)
    return int(match[1]) if match is not None else None


def span(
    start_text: str, duration_text: str, drop: Callable[[str], None], repair: Callable[[str], None]
) -> tuple[int, int] | None:
    """Start and duration in ns of a task; None if they are of no use, and then counted.

    Args:
        start_text: Microseconds as decimal text.
        duration_text: The same.
        drop: Told why a task cannot be used.
        repair: Told what was changed.
    """
    start, duration = time_ns(start_text), time_ns(duration_text)
    if lost_digits(start_text):
        drop("time in E notation: its digits are lost")
    elif start is None or duration is None:
        drop("time is no number")
    elif start <= 0:
        drop("time is zero")
    elif duration < 0:
        repair("negative duration set to 0")
        return start, 0
    else:
        return start, duration
    return None
