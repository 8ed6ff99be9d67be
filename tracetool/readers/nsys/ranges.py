"""NVTX ranges of a process: those of the program are told by their names, those of NCCL kept as calls."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracetool.readers.nsys.columns import coded, values_of, whole_column
from tracetool.readers.nsys.comms import IN_PARTS, OPERATIONS, post_of, post_of_label
from tracetool.readers.nsys.nvtx import EventType, Payloads, read_names
from tracetool.readers.nsys.posts import CommPosts, Post
from tracetool.readers.nsys.stored import NAME_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.columns import Flags, Kind, Numbers
    from tracetool.readers.nsys.nvtx import ProcessDomains, RangeNames
    from tracetool.readers.nsys.stored import Stored, Texts

NAMELESS = "name lost"
_LABELS_OF_NCCL = "nccl:"
_MOST_HELD = 1 << 12
OF_RANGES: dict[str, Kind] = {
    "start": "number", "end": "number", "globalTid": "number", "eventType": "number", "domainId": "number",
    "text": "text", "textId": "number", "jsonText": "text", "binaryData": "bytes", "jsonTextId": "number",
}  # fmt: skip


class ProgramRanges:
    """What ranges tell, block by block in order of time.

    Args:
        stored: The export.
        texts: Its texts.
        domains: Those of the process.
        report: Told about what is dropped, repaired or skipped.

    Attributes:
        calls: What calls of NCCL posted.
        labels: What c10d's annotations say of it, as long as there are no calls.
        steps: Marks of steps: number, start and end.
    """

    def __init__(self, stored: Stored, texts: Texts, domains: ProcessDomains, report: SourceReport) -> None:
        self.calls, self.labels = CommPosts(), CommPosts()
        self.steps: list[tuple[int, int, int]] = []
        self._texts, self._domains, self._report = texts, domains, report
        self._payloads = Payloads(stored)
        self._open_labels: dict[int, list[_OpenLabel]] = defaultdict(list)
        self._held: deque[tuple[Post, _OpenLabel | None]] = deque()

    def own(self, ranges: pa.Table) -> tuple[pa.Table, RangeNames]:
        """Ranges of the program's own domain, and what they are called; those of NCCL are noted."""
        texts = self._texts_of(ranges)
        domains, is_named_so = (
            values_of(ranges, "domainId", 0),
            pc.starts_with(texts, "nccl").to_numpy(zero_copy_only=False),
        )
        is_own, is_call = domains == 0, np.zeros(len(ranges), bool)
        for domain in np.unique(domains).tolist():
            if self._domains.is_nccl(domain, ""):
                is_call |= domains == domain
            elif self._domains.is_nccl(domain, "nccl"):
                is_call |= (domains == domain) & is_named_so
        is_own &= ~is_call
        if others := int((~is_own & ~is_call).sum()):
            self._report.skipped["range of another domain"] += others
        names = read_names(texts.filter(pa.array(is_own)))
        self._note(ranges, texts, is_own, is_call, names)
        return ranges.filter(pa.array(is_own)), names

    def _texts_of(self, ranges: pa.Table) -> pa.Array:
        """What ranges are called: by themselves, or else under a number."""
        texts = whole_column(ranges, "text")
        lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lengths > NAME_CHARACTERS).tolist():
            short = texts[row].as_py().decode("utf-8", "replace")[:NAME_CHARACTERS].encode()
            texts = pc.replace_with_mask(texts, pa.array(np.arange(len(texts)) == row), pa.scalar(short, pa.binary()))
        lacks = pa.array(lengths == 0)
        if not (lengths == 0).any():
            return texts
        numbers, codes = coded(ranges.filter(lacks), "textId")
        known_texts = [self._texts.of(None, number) for number in numbers]
        lost = np.array([text is None for text in known_texts])[codes].sum()
        if lost:
            self._report.repaired[f"no text for a name in StringIds: called {NAMELESS!r}"] += int(lost)
        replacements = [(NAMELESS if text is None else text).encode("utf-8", "replace") for text in known_texts]
        return pc.replace_with_mask(texts, lacks, pa.array(replacements, pa.binary()).take(pa.array(codes)))

    def _note(self, ranges: pa.Table, texts: pa.Array, is_own: Flags, is_call: Flags, names: RangeNames) -> None:
        """Keep marks of steps, annotations of messages and calls of NCCL, in order of their start."""
        tells = np.array(
            [named.step is not None or named.name.startswith(_LABELS_OF_NCCL) for named in names.named], bool
        )
        codes = np.full(len(ranges), -1)
        codes[is_own] = np.where(tells[names.codes], names.codes, -1) if len(tells) else -1
        rows = np.flatnonzero((codes >= 0) | is_call)
        chosen = ranges.take(pa.array(rows)).append_column("name", texts.take(pa.array(rows)))
        chosen = chosen.append_column("code", pa.array(codes[rows])).append_column(
            "thread", pa.array(threads_of(chosen))
        )
        for row in chosen.to_pylist():
            start, end, thread, code = row["start"], row["end"], row["thread"], row["code"]
            if code < 0:
                self._note_call(row)
                continue
            named = names.named[code]
            if row["eventType"] == EventType.NESTED and named.category == "op":
                continue
            if named.step is not None:
                self.steps.append((named.step, start, end))
            else:
                self._open(thread, start).append(_OpenLabel(end, named.name))
                post = None if self.calls.count else post_of_label(named.name, start, thread)
                if post is not None:
                    self.labels.add(post)

    def _note_call(self, row: Mapping[str, Any]) -> None:
        name = row["name"].decode("utf-8", "replace")
        if name not in OPERATIONS:
            return
        labels = self._open(row["thread"], row["start"])
        label = labels[-1] if labels else _OpenLabel(row["start"], "")
        json_text = self._texts.of((row["jsonText"] or b"").decode("utf-8", "replace"), row["jsonTextId"])
        payload = self._payloads.decoded(row["binaryData"], json_text)
        post, is_part = post_of(name, label.name, payload, row["start"], row["thread"])
        if is_part:
            label.add(name, post.size_bytes)
            if label.is_posted:
                return
            label.is_posted = True
        self._put_out(row["start"])
        self._held.append((post, label if is_part else None))

    def _open(self, thread: int, at_ns: int) -> list[_OpenLabel]:
        """The annotations that a thread is in."""
        labels = self._open_labels[thread]
        while labels and labels[-1].end_ns < at_ns:
            labels.pop()
        return labels

    def close(self) -> None:
        """All rows were told."""
        self._put_out(None)

    def _put_out(self, at_ns: int | None) -> None:
        """Pass on what was posted, but for collectives whose parts may still come."""
        while self._held:
            post, label = self._held[0]
            is_whole = label is None or at_ns is None or label.end_ns < at_ns
            if not is_whole and len(self._held) < _MOST_HELD:
                return
            if label is not None:
                post = post._replace(size_bytes=label.size_bytes if is_whole else None)
            self.calls.add(post)
            self._held.popleft()


@dataclass(slots=True)
class _OpenLabel:
    """c10d's annotation around calls of NCCL.

    Attributes:
        end_ns: Unix time.
        name: As ``nccl:all_reduce``.
        is_posted: Whether the collective that it names was posted by an earlier call in it.
        sizes: Bytes of all calls so far, by function.
    """

    end_ns: int
    name: str
    is_posted: bool = False
    sizes: dict[str, int | None] = field(default_factory=dict)

    def add(self, function: str, size_bytes: int | None) -> None:
        """Count a call."""
        so_far = self.sizes.get(function, 0)
        self.sizes[function] = None if so_far is None or size_bytes is None else so_far + size_bytes

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the collective: what it sends or what it receives, whichever is more.

        None of those in which the root keeps its own part without a message.
        """
        sizes = [size for size in self.sizes.values() if size is not None]
        is_known = len(sizes) == len(self.sizes) and not self.name.startswith(IN_PARTS)
        return max(sizes) if is_known else None


def threads_of(rows: pa.Table) -> Numbers:
    """The thread of each row."""
    return values_of(rows, "globalTid", 0) & 0xFFFFFF
