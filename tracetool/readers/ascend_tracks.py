"""Tracks of Ascend timelines: which process and thread an event belongs to, and what that makes it.

Names come from metadata events that may stand anywhere in a file, so they are collected first. Process
numbers of new releases hold the device; those of 2023 are small and say nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tracetool.readers.ascend_text import integer, lost_digits, raw_text, time_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracetool.readers import SourceReport
    from tracetool.readers.ascend_chrome import Event

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
_FRAMEWORK_CATEGORIES = ("cpu_op", "user_annotation")


@dataclass(slots=True)
class Tracks:
    """Names of processes and threads, how many spans each track has, and how many of them are kernels."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    sort_indices: dict[int, int] = field(default_factory=dict)
    spans: Counter[Track] = field(default_factory=Counter)
    kernels: int = 0

    def learn(self, events: Iterable[Event]) -> None:
        """Take the names from metadata events, then count the spans by track."""
        threads: Counter[tuple[int | None, int | None, str | None, bool]] = Counter()
        for event in events:
            pid, tid = number(event.pid), number(event.tid)
            if event.ph == "X":
                threads[pid, tid, event.cat, is_kernel(event)] += 1
            elif event.ph == "M" and pid is not None and event.args is not None:
                if event.name == "process_name":
                    self.processes[pid] = str(event.args.name)
                elif event.name == "thread_name" and tid is not None:
                    self.threads[pid, tid] = str(event.args.name)
                elif event.name == "process_sort_index" and (index := number(event.args.sort_index)) is not None:
                    self.sort_indices[pid] = index
        for (pid, tid, category, kernel), count in threads.items():
            track = self.of(pid, tid, category)
            self.spans[track] += count
            self.kernels += count if kernel and track is Track.HARDWARE else 0

    def of(self, pid: int | None, tid: int | None, category: str | None) -> Track:
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

    def called(self, event: Event) -> str:
        """What an event of no use is counted as."""
        pid = number(event.pid)
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
        index = self.sort_indices.get(pid) if pid is not None else None
        if pid is None or index is None or pid >> 10 == 0 or pid >> 5 & 31 != index:
            return None
        device = pid & 31
        return None if device == HOST_DEVICE else device


def is_kernel_type(task_type: str) -> bool:
    """Whether a device task of this type computes; the others copy, notify, wait or record."""
    return _KERNEL_TASK.match(task_type) is not None


def task_type(event: Event) -> str:
    """The type of a device task; empty if it has none."""
    return "" if event.args is None or event.args.task_type is None else str(event.args.task_type)


def is_kernel(event: Event) -> bool:
    """Whether an event of a device track computes."""
    return is_kernel_type(task_type(event)) and event.name not in ("N/A", "")


def step_of(name: str) -> int | None:
    """The step that a mark of the framework's profiler names."""
    match = _STEP_MARK.match(name)
    return int(match[1]) if match is not None else None


def number(value: object) -> int | None:
    """A whole number that is written as such or as text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return integer(str(value))


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


def event_span(event: Event, report: SourceReport) -> tuple[int, int] | None:
    """Start and duration in ns of an event; None if they are of no use, and then counted."""

    def drop(reason: str) -> None:
        report.dropped[reason] += 1

    def repair(reason: str) -> None:
        report.repaired[reason] += 1

    return span(raw_text(event.ts), raw_text(event.dur), drop, repair)
