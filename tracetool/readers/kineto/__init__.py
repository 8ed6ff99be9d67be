"""Traces of torch.profiler: Kineto Chrome JSON, one file (or archive member) per rank.

Kinds of events in a Kineto trace that no table takes: those of devices and unknown ones are told by name.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracetool.model.notice import SourceCode
from tracetool.readers import (
    HOST_MEMORY,
    OTHER_MEMORY,
    Claim,
    Group,
    Identity,
    Left,
    SeveralRanks,
    Source,
    SourceReport,
)
from tracetool.readers.chrome.compiled import event_scanner
from tracetool.readers.chrome.members import (
    Stop,
    beginning,
    head_facts,
    lists_traces,
    member_facts,
    opening,
    tail_facts,
    walk,
)
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.files import HEAD_BYTES, Archive, ByteStream, is_archive
from tracetool.readers.kineto.batch import column_names, fields, wanted
from tracetool.readers.kineto.rows import EventRows
from tracetool.readers.kineto.several import HINT, Chooser, FileSurvey, RankEvents
from tracetool.store.objects import place_of
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers.chrome import Field, Scanner


_DEVICE = frozenset({"mtia_ccp_events", "mtia_insight", "hpu_op", "collective_comm"})
"""Categories of what runs on devices that are not read."""

_SPANS = ("ph B", "ph E", "ph b", "ph e", "ph n")
"""Spans whose ends are events of their own: no profiler of torch writes them."""

_ASIDE = frozenset({
    # The profiler's own, marks that repeat others, host calls that no action needs, and samples.
    "python_function", "overhead", "Trace", "gpu_user_annotation", "external_correlation", "cpu_instant_event",
    "cuda_sync", "cuda_event", "cuda_profiler_range", "xpu_sync", "xpu_scope_profiler", "hardware_counters",
    "mtia_counters", "ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu", "no category",
    # Reasons why events of kinds that are read were left.
    "instants", HOST_MEMORY, OTHER_MEMORY,
})  # fmt: skip


def record_unread(report: SourceReport) -> None:
    """Count the events of kinds that are not read and may hold what seems to be missing, and note them by name."""
    for kind, count in report.skipped.items():
        if count and (kind in _SPANS or (kind not in _ASIDE and not kind.startswith("ph "))):
            report.unread[kind] += count
    own = {kind: count for kind, count in report.unread.items() if kind in _DEVICE}
    others = {kind: count for kind, count in report.unread.items() if kind not in _DEVICE}
    for what, counts in (("of a device that is not read", own), ("of kinds that are not read", others)):
        if counts:
            kinds = ", ".join(sorted(counts, key=lambda kind: (-counts[kind], kind))[:6])
            report.note(SourceCode.EVENTS_UNREAD, f"{format_count(sum(counts.values()), 'event')} {what} ({kinds})")


_HEADS_BYTES = (HEAD_BYTES, 1 << 16)
_LONG_HEAD_BYTES = 1 << 24
_RANKS = 2**31
_TAIL_BYTES = 4 << 20
_LONG_TAIL_BYTES = 64 << 20
_MOST_TRIALS = 1000
_AFTER_EVENTS = re.compile(rb"\}\s*\]\s*(?=[,}])")
# Each of them is looked up from the beginning of the archive.
_MOST_IN_ARCHIVE = 4096
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"')
_HEAD_MARKS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"')
_EXPORTED = re.compile(rb'\{"otherData":\{"tracetool":"')
_EVENT = re.compile(rb'\{\s*"ph"\s*:\s*"[XisfM]"')
_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
_KEYS = frozenset(
    ("distributedInfo", "deviceProperties", "computeProperties", "baseTimeNanoseconds", "host_name")
)  # fmt: skip
_SAID = frozenset(("INFO", "WARNING", "ERROR"))
# What a bare list must name to be a trace of torch and not of another tool.
_LIST_MARKS = (b'"cpu_op"', b'"Operator"', b'"Kernel"', b'"kernel"', b'"cuda_runtime"', b'"fwdbwd"', b'"aten::')
_LEGACY = re.compile(rb"(?:CPU|CUDA) functions")
_OUT_OF_RANGE = re.compile(r"Out-of-range = (\d{1,18})(?!\d)")


class KinetoReader:
    """Reads Kineto traces; see :class:`tracetool.readers.Reader`."""

    name = "kineto"

    def find(self, files: Sequence[Path]) -> Claim:
        """Each file, or member of a tar archive, that opens like a trace is one source."""
        claim = Claim()
        for file in files:
            if not is_archive(file):
                stream = ByteStream(file)
                if any(_is_plainly_trace(stream.head(size)) for size in _HEADS_BYTES):
                    claim.sources.append(Source(self.name, file, (file,)))
                    continue
                head = stream.head(_LONG_HEAD_BYTES)
                if _EXPORTED.match(head):
                    claim.left.append(Left(file, "timelines that tracetool exported for Perfetto, no recording"))
                elif _is_legacy(head):
                    claim.left.append(
                        Left(file, "export of the autograd profiler before torch 1.8: use torch.profiler")
                    )
                elif lists_traces(head):
                    claim.failed.append(
                        Left(file, f"{file} is a list of whole traces: write each rank's to a file of its own")
                    )
                elif _is_trace(head):
                    claim.sources.append(Source(self.name, file, (file,)))
                continue
            archive = Archive(file)
            traces: dict[str, bool] = {}
            for name, head in archive.heads(_LONG_HEAD_BYTES):
                traces[name] = _is_trace(head)
            taken = [name for name, is_trace in traces.items() if is_trace]
            claim.sources += [Source(self.name, file, (file,), member=n) for n in taken[:_MOST_IN_ARCHIVE]]
            if len(taken) > _MOST_IN_ARCHIVE:
                claim.failed.append(Left(file, f"{file} has more than {_MOST_IN_ARCHIVE:,} traces: unpack it"))
            if taken:
                claim.left += [Left(file / n, "no trace") for n, is_trace in traces.items() if not is_trace]
            if archive.trouble and (taken or not traces):
                claim.failed.append(Left(file, f"{file}: {archive.trouble}"))
        return claim

    def identify(self, source: Source) -> Identity:
        """Rank, groups and device from the text around the events."""
        around = _around(source)
        info = around.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = info.get("rank")
        devices = around.get("deviceProperties") or around.get("computeProperties")
        device = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
        name = device.get("name")
        world = info.get("world_size")
        base = around.get("baseTimeNanoseconds")
        host = around.get("host_name")
        return Identity(
            rank=_within(rank, _RANKS),
            world_size=_within(world, _RANKS) or None,
            groups=tuple(_groups(info)),
            host=host if isinstance(host, str) else None,
            device_name=name if isinstance(name, str) else None,
            sm_count=_within(device.get("numSms"), 2**31),
            hbm_bytes=_within(device.get("totalGlobalMem"), 2**62),
            base_ns=_within(base, 2**62) or 0,
        )

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Events as they stream by; steps, communication and memory at the end."""
        trace = ChromeTrace(ByteStream(source.path, source.member, advance), _scanner(keep), report)
        chooser = Chooser(RankEvents(source.part[0], source.part[1:])) if source.part else None
        names = column_names(keep)
        with closing(EventRows(rank, identity, report)) as rows:
            for scanned in trace.tables():
                table = scanned.rename_columns(names)
                yield "events", rows.events(chooser.chosen(table) if chooser else table, trace.place)
            if chooser is None and (why := rows.several()) is not None:
                raise SeveralRanks(
                    f"{place_of(source.path, source.member)} holds the events of several ranks: {why}.", hint=HINT
                )
            yield "steps", rows.steps()
            for table in rows.memory():
                yield "memory", table
            for table in rows.comms():
                yield "comms", table
            report.device = rows.device
            rows.record_limits()
        record_unread(report)
        _record_profiler_messages(tail_facts(trace.tail, _SAID) | head_facts(trace.head, _SAID), report)

    def split(self, source: Source, identity: Identity) -> list[tuple[Source, Identity, str]]:
        """The ranks whose events the source holds, if they are of more than one."""
        keep: frozenset[str] = frozenset()
        trace = ChromeTrace(ByteStream(source.path, source.member), _scanner(keep), SourceReport())
        survey = FileSurvey(identity.groups)
        for table in trace.tables():
            survey.take(table.rename_columns(column_names(keep)))
        choices = survey.choices(place_of(source.path, source.member))
        ranks = survey.ranks(choices, identity.world_size or 0, place_of(source.path, source.member)) if choices else []
        # What stands around the events may be that of one rank by itself.
        world = None if any(rank >= (identity.world_size or 0) for rank, _ in ranks) else identity.world_size
        return [
            (
                replace(source, part=(choice.by, *choice.keys)),
                replace(
                    identity, rank=rank, world_size=world, groups=tuple(g for g in identity.groups if rank in g.ranks)
                ),
                f"{by}, as {choice.name} of a file of several ranks",
            )
            for choice, (rank, by) in zip(choices, ranks, strict=True)
        ]


READER = KinetoReader()


@lru_cache(maxsize=4)
def _columns(keep: frozenset[str]) -> tuple[list[Field], dict[bytes, frozenset[bytes] | None]]:
    return fields(keep), wanted(keep)


def _scanner(keep: frozenset[str]) -> Scanner:
    return event_scanner(*_columns(keep))


def _is_legacy(head: bytes) -> bool:
    """Whether it is of a time when events had no category; what ran on the device was no event of its own."""
    return _LIST.match(head) is not None and b'"cat"' not in head and _LEGACY.search(head) is not None


def _is_plainly_trace(head: bytes) -> bool:
    """Whether the beginning of a file is enough to know that it is a trace, whatever follows."""
    if _OBJECT.match(head) is None or _EVENT.match(head) or _EXPORTED.match(head):
        return False
    return any(mark in head for mark in _HEAD_MARKS)


def _is_trace(head: bytes) -> bool:
    if _LIST.match(head):
        return any(mark in head for mark in _LIST_MARKS)
    if not _OBJECT.match(head) or _EVENT.match(head):
        # The beginning may be lost: whole events speak for themselves.
        return b"\0" not in head and len(_EVENT.findall(head)) > 1 and any(mark in head for mark in _LIST_MARKS)
    if any(mark in head for mark in _HEAD_MARKS) or _EVENTS.search(head) is not None:
        return True
    # Its key may be written with escapes.
    return walk(head, opening(head) or 0).stop is Stop.EVENTS


def _around(source: Source) -> dict[str, Any]:
    stream = ByteStream(source.path, source.member)
    # A long value of another key may stand before the events.
    for size in (*_HEADS_BYTES, _LONG_HEAD_BYTES):
        head = stream.head(size)
        start = beginning(head, 0, is_sound=True, is_all=True)
        if start.is_member:
            break
    if start.is_member:
        facts = member_facts(head, start.ahead, _KEYS)
    else:
        facts = head_facts(head[: start.at], _KEYS) if start.at is not None else {}
    if "distributedInfo" not in facts or "baseTimeNanoseconds" not in facts:
        # Old writers, and traces made on demand, have it after the events.
        facts = tail_facts(_tail_of(source.path, stream), _KEYS) | facts
    return facts


def _tail_of(path: Path, stream: ByteStream) -> bytes:
    """Text after the last event: the end of a plain file at once, that of a compressed one by reading it through.

    Args:
        path: The file.
        stream: The same, of which the head was read.
    """
    tail = b""
    for size in (_TAIL_BYTES, _LONG_TAIL_BYTES):
        end = _end_of(path, stream, size)
        for match in islice(_AFTER_EVENTS.finditer(end), _MOST_TRIALS):
            # What closes a list inside an event, or inside what follows, is no end of the object.
            walked = walk(end, match.end(), inside=True)
            if walked.stop is Stop.CLOSED and not end[walked.at :].strip():
                return end[match.end() :]
        last = _AFTER_EVENTS.search(end, max(0, end.rfind(b'"ph"')))
        tail = end[last.end() :] if last else b""
        if tail or len(end) < size:
            break
    return tail


def _end_of(path: Path, stream: ByteStream, size: int) -> bytes:
    if stream.is_plain:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read()
    tail = b""
    for block in stream.blocks(1 << 20):
        tail = (tail + block)[-size:]
    return tail


def _within(value: Any, limit: int) -> int | None:
    """A whole number from 0 to below the limit; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def _groups(info: dict[str, Any]) -> Iterator[Group]:
    listed = info.get("pg_config")
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks")
        if isinstance(ranks, str):  # the on-demand form quotes the list
            ranks = [int(r) for r in re.findall(r"\d{1,9}", ranks)]
        yield Group(str(entry.get("pg_name")), str(entry.get("pg_desc", "")), _members(ranks))


def _members(ranks: Any) -> tuple[int, ...]:
    if not isinstance(ranks, list):
        return ()
    # Each of many ranks lists all of them.
    if set(map(type, ranks)) == {int} and min(ranks) >= 0 and max(ranks) < _RANKS:
        return tuple(ranks)
    return tuple(r for r in ranks if _within(r, _RANKS) is not None)


def _record_profiler_messages(around: dict[str, Any], report: SourceReport) -> None:
    said = [around.get(key) for key in sorted(_SAID)]
    lines = [line for listed in said if isinstance(listed, list) for line in listed if isinstance(line, str)]
    lost = sum(int(count) for line in lines for count in _OUT_OF_RANGE.findall(line))
    if lost:
        report.note(
            SourceCode.RECORDS_OUT_OF_RANGE,
            f"the profiler left out {lost:,} device records as out of range: steps may lack kernels",
        )
