"""Events of a Kineto trace as rows of a Run's tables, a batch at a time."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from dataclasses import replace
from sys import intern
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import ABSOLUTE_NS, OTHER_MEMORY, rows_table
from tracetool.readers.cuda import CommKernel, CommRecord, attach_kernels, is_communication_kernel
from tracetool.readers.files.spill import TWICE, Repeats, Spill
from tracetool.readers.kineto.batch import ABSENT, EventBatch
from tracetool.readers.kineto.census import Census, RankEvidence, launched_twice, most_frequent
from tracetool.readers.kineto.comms import (
    OF_POSTINGS,
    OF_RECORDS,
    OPERATIONS,
    TITLES,
    AsyncAnnotation,
    Posting,
    complete_records,
    parse_posting,
    parse_record,
    parse_title,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import FilePlace, Identity, SourceReport
    from tracetool.readers.kineto.batch import EventSpans

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_RECORD = "record_param_comms"
_CHUNK_ROWS = 1 << 13
# What is kept until the end is limited: no real job comes near.
_MOST_COMMUNICATIONS = 1 << 19
_MOST_STEPS = 1 << 16
_MOST_RANKS = 1 << 20


class EventRows:
    """Turns batches of events into rows; what is known only at the end is kept in arrays.

    Args:
        rank: Global rank.
        identity: Groups, and what is added to relative times.
        report: Told about what is dropped, repaired or skipped.
    """

    def __init__(self, rank: int, identity: Identity, report: SourceReport) -> None:
        self._rank = rank
        self._identity = identity
        self._report = report
        self._count = 0
        self._steps: list[tuple[int, int, int, int, None, None]] = []
        self._records: list[CommRecord] = []
        self._posted: set[int] = set()
        self._postings: list[Posting] = []
        self._titles: list[AsyncAnnotation] = []
        self._kernels: list[tuple[str, int, int, int | None, int | None, int | None]] = []
        self._launches = Spill(3)
        self._memory = Spill(6)
        self._memory_times: list[int] = []
        self._devices: Counter[int] = Counter()
        self._census = Census()
        self._who = RankEvidence("")
        self._repeats = Repeats()

    def close(self) -> None:
        """Give back what waits on disk."""
        self._launches.close()
        self._memory.close()

    @property
    def device(self) -> int | None:
        """Device that most kernels ran on, if the trace says."""
        return most_frequent(self._devices)

    def events(self, table: pa.Table, place: FilePlace) -> pa.Table:
        """Rows of ``events``; everything else in the batch is taken note of.

        Args:
            table: One column per field.
            place: Where the first of them is.
        """
        self._census.take(table)
        batch = EventBatch(table, self._identity.base_ns, self._report, place)
        self._take_memory(batch.memory())
        spans = self._once(batch.spans(), place)
        if spans.size:
            known = self._report.first_ns
            first = int(spans.start.min())
            self._report.first_ns = first if known is None else min(first, known)
        self._devices.update(spans.devices())
        self._launches.add(spans.launches())
        self._note_steps(spans, place)
        self._note_communication(spans, place)
        self._note_postings(spans, place)
        rows = spans.rows(self._rank, self._count)
        self._count += spans.size
        return rows

    def several(self) -> str | None:
        """What shows that the events were of more than one rank, or None."""
        import numpy as np

        if why := self._census.several() or self._who.contradiction() or self._marked_twice():
            return why
        blocks = [(correlation, start) for correlation, start, _ in self._launches.blocks()]
        return launched_twice(*(np.concatenate(columns) for columns in zip(*blocks, strict=True))) if blocks else None

    def _marked_twice(self) -> str | None:
        spans: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for _, step, start, end, *_ in self._steps:
            spans[step].add((start, end))
        twice = [
            step for step, marks in spans.items()
            if any(later < end for (_, end), (later, _) in itertools.pairwise(sorted(marks)))
        ]  # fmt: skip
        return f"step {twice[0]} is marked twice at a time" if 2 * len(twice) > len(spans) else None

    def _once(self, spans: EventSpans, place: FilePlace) -> EventSpans:
        """The spans without those that the file held before; some cannot be told from other ones."""
        import numpy as np

        rows = np.flatnonzero(spans.is_identified)
        if not len(rows):
            return spans
        again = rows[~self._repeats.fresh([column[rows] for column in spans.identity(self._repeats)])]
        if not len(again):
            return spans
        self._report.repair(TWICE, place, len(again))
        keep = np.ones(spans.size, bool)
        keep[again] = False
        return spans.kept(keep)

    def _note_steps(self, spans: EventSpans, place: FilePlace) -> None:
        for name, number in spans.named(_STEP.match, ("annotation", "op")):
            if len(self._steps) >= _MOST_STEPS:
                self._report.drop(f"more than {_MOST_STEPS:,} marks of steps", place)
                continue
            start = int(spans.start[number])
            step = int(name.partition("#")[2])
            self._steps.append((self._rank, step, start, start + int(spans.duration[number]), None, None))

    def _note_communication(self, spans: EventSpans, place: FilePlace) -> None:
        records = [number for _, number in spans.named(_RECORD.__eq__, ("op",))]
        kernels = list(spans.named(is_communication_kernel, ("kernel",)))
        room = _MOST_COMMUNICATIONS - len(self._records), _MOST_COMMUNICATIONS - len(self._kernels)
        if (beyond := max(0, len(records) - room[0]) + max(0, len(kernels) - room[1])) > 0:
            self._report.drop(
                f"more than {_MOST_COMMUNICATIONS:,} communication operations: no rows in comms", place, beyond
            )
            records, kernels = records[: room[0]], kernels[: room[1]]
        for number, args in zip(records, spans.args(records, OF_RECORDS) if records else (), strict=True):
            record = parse_record(args, int(spans.start[number]), spans.thread_of(number), self._identity.groups)
            if record is None:
                continue
            self._who.take(record.operation, record.group_ranks, args.get("Rank"), record.peer)
            identity = record.operation, record.group, record.peer, record.payload_bytes, record.communicator
            posted = hash((record.posted_ns, int(spans.duration[number]), record.thread, *identity))
            if posted in self._posted:
                self._report.repair(TWICE, place)
                continue
            self._posted.add(posted)
            self._records.append(replace(record, peer=None) if record.peer == self._rank else record)
        for name, number in kernels:
            start = int(spans.start[number])
            self._kernels.append((intern(name), start, start + int(spans.duration[number]), *spans.links(number)))

    def _note_postings(self, spans: EventSpans, place: FilePlace) -> None:
        postings = list(spans.named(OPERATIONS.__contains__, ("op",)))
        titles = list(spans.named(TITLES.__contains__, ("annotation",)))
        beyond = max(0, len(self._postings) + len(self._titles) + len(postings) + len(titles) - _MOST_COMMUNICATIONS)
        if beyond:
            self._report.drop(f"more than {_MOST_COMMUNICATIONS:,} c10d operations: no rows in comms", place, beyond)
            return
        for noted, known, parse, kept in (
            (postings, OPERATIONS, parse_posting, self._postings), (titles, TITLES, parse_title, self._titles),
        ):  # fmt: skip
            rows = [row for _, row in noted]
            for (name, row), args in zip(noted, spans.args(rows, OF_POSTINGS) if rows else (), strict=True):
                start = int(spans.start[row])
                span = start, start + int(spans.duration[row])
                kept.append(parse(known[name], args, span, spans.thread_of(row)))  # type: ignore[arg-type]

    def steps(self) -> pa.Table:
        """Rows of ``steps``, as marked."""
        return rows_table("steps", self._steps)

    def memory(self) -> Iterator[pa.Table]:
        """Allocator records in order of time, of the device that most kernels ran on (if the trace says)."""
        import numpy as np

        ordered = all(b >= a for a, b in itertools.pairwise(self._memory_times))
        for block in self._memory.blocks() if ordered else [self._memory.columns()]:
            own = np.ones(block.shape[1], bool)
            if self.device is not None:
                own = (block[4] == self.device) | (block[4] == ABSENT)
                self._report.skipped[OTHER_MEMORY] += int(np.count_nonzero(~own))
            rows = np.flatnonzero(own)
            yield self._memory_rows(block, rows[np.argsort(block[0][rows], kind="stable")])

    def _take_memory(self, columns: list[NDArray[np.int64]]) -> None:
        if len(columns[0]):
            # Blocks that follow each other in time can be sorted one by one.
            self._memory_times += [int(columns[0].min()), int(columns[0].max())]
            self._memory.add(columns)

    def _memory_rows(self, block: NDArray[np.int64], order: NDArray[np.int64]) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        columns = {"delta_bytes": 1, "allocated_bytes": 2, "reserved_bytes": 3, "block": 5}
        return pa.table(
            {
                "rank": pa.array(np.full(len(order), self._rank, np.int32)),
                "component": pa.DictionaryArray.from_arrays(np.zeros(len(order), np.int32), ["torch"]),
                "time_ns": block[0][order],
                **{name: _nullable(block[n][order]) for name, n in columns.items()},
            }
        )

    def comms(self) -> Iterator[pa.Table]:
        """One row per communication operation, in order of posting."""
        records = complete_records(
            self._records, self._postings, self._titles, self._identity.groups, self._rank, self._report
        )  # fmt: skip
        records = attach_kernels(records, self._kernels_with_launch(), self._report)
        for first in range(0, len(records), _CHUNK_ROWS):
            yield rows_table(
                "comms",
                [
                    (
                        self._rank, position, r.operation, r.group, r.group_ranks, r.peer, r.payload_bytes,
                        r.posted_ns, r.thread, r.batch, r.stream, r.start_ns, r.end_ns, r.evidence, None,
                        r.communicator,
                    )
                    for position, r in enumerate(records[first : first + _CHUNK_ROWS], first)
                ],
            )  # fmt: skip

    def record_limits(self) -> None:
        """Note what keeps the trace from being laid beside others, and how many ranks its records speak of."""
        elsewhere = self._devices.total() - self._devices[self.device] if self.device is not None else 0
        if elsewhere:
            self._report.note(
                SourceCode.DEVICES_SEVERAL,
                f"{elsewhere:,} device activities ran on another device than {self.device}: they count as this rank's",
            )
        # Each of many records may list all ranks, but there are few lists.
        named = {rank for ranks in {r.group_ranks for r in self._records} for rank in ranks}
        named |= {r.peer for r in self._records if r.peer is not None}
        self._report.least_world = max((rank + 1 for rank in named if rank < _MOST_RANKS), default=None)
        if self._report.first_ns is not None and self._report.first_ns < ABSOLUTE_NS:
            self._report.note(
                SourceCode.NO_EPOCH, "its times do not count from 1970: other ranks cannot be aligned with it"
            )

    def _kernels_with_launch(self) -> list[CommKernel]:
        import numpy as np

        wanted = {correlation for *_, correlation in self._kernels if correlation is not None}
        launches: dict[int, tuple[int, int]] = {}
        needed = np.array(sorted(wanted), np.int64)
        for correlation, start, thread in self._launches.blocks() if wanted else ():
            hit = needed[np.searchsorted(needed[:-1], correlation)] == correlation
            pairs = zip(start[hit].tolist(), thread[hit].tolist(), strict=True)
            launches.update(zip(correlation[hit].tolist(), pairs, strict=True))
        kernels = []
        for name, start, end, stream, external, correlation in self._kernels:
            launch = launches.get(correlation) if correlation is not None else None
            launch_ns, thread = launch or (start, None)
            kernels.append(
                CommKernel(
                    name=name, start_ns=start, end_ns=end, stream=stream, external_id=external,
                    launch_ns=launch_ns, launch_thread=thread,
                )
            )  # fmt: skip
        bare = sum(kernel.launch_thread is None for kernel in kernels)
        if bare:
            self._report.note(
                SourceCode.LAUNCHES_UNKNOWN,
                f"{bare:,} communication kernels have no launch in the trace: they count as posted when they start",
            )
        return kernels


def _nullable(values: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=values == ABSENT)
