"""Chrome timelines of labelled operations: a bare array of events, or an object with ``traceEvents``.

NDTimeline writes the rank into every event (args ``rank``, ``step``, ``pp``, ``tp``; pid is the DP rank).
The straggler analysis writes one thread per rank and class of operations and names the threads; its rank
is the thread over the number of classes. Times are microseconds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers import Place, SourceReport
from tracetool.readers.byte_stream import ByteStream
from tracetool.readers.json_columns import nanoseconds_of
from tracetool.readers.ndtimeline_layout import TIME_LIMIT_NS, Layout, Operation, Where
from tracetool.readers.ndtimeline_names import BACKWARD, COMPUTE, FORWARD, is_known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_BYTES = 256 << 20
"""Timelines that are larger after decompression are refused: they are read whole."""
_HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_ARRAY = re.compile(rb'^\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_JOINED_PIECES = 16
_UNPLACED = "event without rank, stage or step"
_LOST = "event that cannot be decoded (of any rank)"
_NUMBER = re.compile(rb'^"?-?\d{1,18}(?:\.\d{0,40})?(?:[eE][+-]?\d{1,2})?"?$')
_THREAD = re.compile(r"^PP rank (\d+), TP rank (\d+), (\S.*)$")


def opens_labelled(path: Path) -> bool:
    """Whether the first span at the head of the file is one of the labelled operations."""
    head, _ = _text(path, _HEAD_BYTES)
    match = _ARRAY.match(head)
    if match is None:
        return False
    text = head[match.end() :].decode("utf-8", errors="replace")
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict):
            return False
        if event.get("ph") == "X":
            return is_known(event.get("cat", event.get("name"))) and is_known(event.get("name"))
    return False


class Event(msgspec.Struct):
    """One event; ``ts`` and ``dur`` keep their text."""

    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, Any] | None = None


class Timeline:
    """The events of one file that name a rank.

    Args:
        path: Plain or gzip Chrome-trace JSON.

    Attributes:
        is_broken: Whether its compressed data breaks off.

    Raises:
        MalformedTrace: If it is larger than the limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text, self.is_broken = _whole_text(path)

    def operations(self, rank: int | None, report: SourceReport, *, strays: bool = False) -> Iterator[Operation]:
        """The usable operations of one rank, or of all.

        Args:
            rank: Global rank; None for all ranks.
            report: What cannot be used is counted in it, with its byte.
            strays: Whether to count the events that name no rank, too.
        """
        threads = self._threads()
        # What belongs to another rank is counted there.
        elsewhere = SourceReport()
        for at, event in self._events(report if strays or rank is None else elsewhere):
            if event.ph != "X":
                continue
            who = _who(event, threads)
            mine = report if rank is None or (strays if who is None else who[0] == rank) else elsewhere
            mine.rows += 1
            operation = _operation(event, who, mine, Place(str(self.path), at))
            if operation is not None and mine is report:
                yield operation

    def is_simulated(self) -> bool:
        """Whether all forwards last equally long, and all backwards: no measurement gives that."""
        durations: dict[str, list[bytes]] = defaultdict(list)
        for _, event in self._events(SourceReport()):
            if event.name in (FORWARD, BACKWARD):
                durations[event.name].append(bytes(event.dur))
        return bool(durations) and all(len(set(some)) == 1 and len(some) >= 8 for some in durations.values())

    def _threads(self) -> dict[int, tuple[int, Where]]:
        """Thread to rank and coordinates, from the names of the threads; empty if they say nothing."""
        named: dict[int, tuple[int, int, int, str]] = {}
        if b"PP rank " not in self._text:
            return {}
        for _, event in self._events(SourceReport()):
            args = event.args or {}
            if event.ph == "M" and event.name == "thread_name" and (match := _THREAD.match(str(args.get("name")))):
                tid, pid = _whole(event.tid), _whole(event.pid)
                if tid is not None and pid is not None:
                    named[tid] = (pid, int(match[1]), int(match[2]), match[3])
        classes = len({kind for *_, kind in named.values()})
        return {tid: (tid // classes, Where(dp, pp, tp)) for tid, (dp, pp, tp, _) in named.items()}

    def _events(self, report: SourceReport) -> Iterator[tuple[int, Event]]:
        """Events with the byte each begins at. What is no event is counted, and costs no other."""
        text = self._text
        match = _ARRAY.match(text)
        if match is None:
            raise MalformedTrace(f"{self.path}: no array of events found.")
        decoder = msgspec.json.Decoder(Event)
        cuts = list(_CUT.finditer(text, match.end()))
        starts = [match.end(), *(cut.end() for cut in cuts)]
        ends = [*(cut.start() + 1 for cut in cuts), len(text)]
        at = 0
        while at < len(starts):
            used = 1
            for joined in range(1, min(_JOINED_PIECES, len(starts) - at) + 1):  # a cut may be inside an event
                piece = text[starts[at] : ends[at + joined - 1]]
                if at + joined == len(starts):
                    piece = piece[: _end_of_object(piece.lstrip())]
                try:
                    event = decoder.decode(piece)
                except msgspec.DecodeError:
                    continue
                yield starts[at], event
                used = joined
                break
            else:
                if text[starts[at] : ends[at]].strip(b" \t\r\n]}"):
                    report.drop(_LOST, Place(str(self.path), starts[at]))
            at += used


@lru_cache(maxsize=16)
def timeline_layout(path: Path, version: tuple[int, int]) -> Layout:  # noqa: ARG001 - part of the cache's key
    """What a timeline says as a whole.

    Args:
        path: The file.
        version: Size and time of change, so that a changed file is read anew.

    Raises:
        MalformedTrace: If no event can be used.
    """
    layout, report, timeline = Layout(), SourceReport(), Timeline(path)
    for operation in timeline.operations(None, report):
        layout.take(operation)
    layout.unplaced = report.dropped[_UNPLACED] + report.dropped[_LOST] + timeline.is_broken
    if not layout.steps:
        raise MalformedTrace(f"{path}: no event names a rank, a step and a time.", hint="export the timeline again")
    return layout.done()


def _whole_text(path: Path) -> tuple[bytes, bool]:
    """The text, and whether its compressed form breaks off.

    Raises:
        MalformedTrace: If there is more than the limit.
    """
    text, is_broken = _text(path, LIMIT_BYTES + 1)
    if len(text) > LIMIT_BYTES:
        raise MalformedTrace(
            f"{path} holds more than {LIMIT_BYTES >> 20} MiB of text, the limit for such timelines.",
            hint="export fewer steps at a time",
        )
    return text, is_broken


def _text(path: Path, most: int) -> tuple[bytes, bool]:
    """So many bytes of the text at most, and whether its compressed form breaks off before."""
    stream = ByteStream(path)
    text = stream.head(most)
    return text.removeprefix(_BOM), stream.broken is not None


def _end_of_object(piece: bytes) -> int | None:
    """Length of the object that a piece begins with; None if it does not end."""
    try:
        return json.JSONDecoder().raw_decode(piece.decode("latin-1"))[1]  # one character per byte
    except (ValueError, RecursionError):
        return None


def _who(event: Event, threads: dict[int, tuple[int, Where]]) -> tuple[int, Where] | None:
    args = event.args or {}
    rank, pp, dp = _whole(args.get("rank")), _whole(args.get("pp")), _whole(event.pid)
    if rank is not None and pp is not None and dp is not None:
        return rank, Where(dp, pp, _whole(args.get("tp")))
    tid = _whole(event.tid)
    return threads.get(tid) if tid is not None else None


def _operation(event: Event, who: tuple[int, Where] | None, report: SourceReport, place: Place) -> Operation | None:
    args = event.args or {}
    step = _whole(args.get("step"))
    if who is None or step is None:
        report.drop(_UNPLACED, place)
        return None
    if not is_known(event.name):
        report.drop("event of an unknown operation", place)
        return None
    start, duration = _time_ns(bytes(event.ts)), _time_ns(bytes(event.dur))
    if start is None or duration is None:
        report.drop("time is no number", place)
        return None
    if duration < 0:
        report.repair("negative duration set to 0", place)
        duration = 0
    chunk, microbatch = (_whole(args.get(name)) for name in ("model_chunk", "mb_id"))
    has_microbatch = event.name in COMPUTE
    return Operation(
        place, who[0], who[1], step, event.name, start, duration, _whole(args.get("seq_id")),
        chunk, None, microbatch if has_microbatch else None,
    )  # fmt: skip


def _time_ns(text: bytes) -> int | None:
    if not _NUMBER.match(text):
        return None
    value = nanoseconds_of(text)
    return value if value is not None and abs(value) < TIME_LIMIT_NS else None


def _whole(value: object) -> int | None:
    """A number of 0 or more; -1 stands for none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
