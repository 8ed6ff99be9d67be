"""Readers: one per trace format. Files in, Arrow tables out, and a report of what was seen.

A reader decides by content. Ingest asks every reader which of the files it takes (``find``), asks for
the identity of each source (``identify``: cheap, before any long work) and then reads it (``read``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tracetool.errors import MalformedTrace
from tracetool.model.notice import Notice
from tracetool.registry import Registry
from tracetool.store.objects import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.model.notice import SourceCode

    ByteCount = Callable[[int], None]


ABSOLUTE_NS = 10**18
"""2001: times before it count from something else than 1970."""

SYNCHRONISATIONS = (
    r"^((cuda|hip)(Device|Stream|Event)Synchronize|cu(Ctx|Stream|Event)Synchronize|aclrtSynchronize\w*)(_v\d+)?$"
)
"""Calls of a host that return when its device, or some of it, is done."""

HOST_MEMORY, OTHER_MEMORY = "host memory", "memory of another device"
DEVICE_MEMORY = "memory of the whole device, other processes included"
MEMORY_LEFT = (HOST_MEMORY, OTHER_MEMORY, DEVICE_MEMORY)
"""Why records of memory are skipped: a Run counts them under these."""


UNRANKED = -1
"""The rank in rows of a source that is no single rank's: columns of ranks have no nulls."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is read together as one rank.

    Attributes:
        reader: Name of the reader that takes it.
        path: File or folder to name in messages.
        files: All files that belong to it; their bytes make its digest.
        member: Which part of the files it is, where they hold several ranks (a member of an archive, a rank).
        ranked: Whether it is one rank's; the others (figures about a whole cluster) hold no events.
        complements: Whether it adds to the trace of its rank, so that a rank may have both.
        part: Which of its events are this rank's, in its reader's words; empty if all are.
    """

    reader: str
    path: Path
    files: tuple[Path, ...]
    member: str = ""
    ranked: bool = True
    complements: bool = False
    part: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of its files on disk."""
        return sum(file.stat().st_size for file in self.files)


@dataclass(frozen=True, slots=True)
class Left:
    """A file that belongs to a reader's format but is not read, and why."""

    path: Path
    reason: str

    @property
    def place(self) -> str:
        """The path as people know it."""
        return place_of(self.path)


@dataclass(slots=True)
class Claim:
    """What a reader takes of the files it was shown, what it knows but leaves, and what is damaged beyond that.

    Files in no list are unknown to the reader; another one may take them.
    """

    sources: list[Source] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    failed: list[Left] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank's trace describes it."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a source is, known before its events are read.

    Attributes:
        rank: Global rank, or None if the trace does not say.
        world_size: Ranks in the job, or None if the trace does not say.
        groups: Process groups named outside the events.
        host: Host name.
        device: Device index on its host.
        device_name: Device model.
        sm_count: Streaming multiprocessors.
        hbm_bytes: Device memory.
        base_ns: Added to relative times.
    """

    rank: int | None
    world_size: int | None = None
    groups: tuple[Group, ...] = ()
    host: str | None = None
    device: int | None = None
    device_name: str | None = None
    sm_count: int | None = None
    hbm_bytes: int | None = None
    base_ns: int = 0


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where in a file something was met.

    Attributes:
        file: Path as it was named, with the archive member if there is one.
        at: Offset in bytes (after decompression), or line, row of a table, or event; the last three count from 1.
        unit: ``byte``, ``line``, ``row`` (of a database) or ``event``.
    """

    file: str
    at: int
    unit: str = "byte"


@dataclass(slots=True)
class SourceReport:
    """What was seen while reading, filled in by the reader.

    Attributes:
        rows: Records seen.
        dropped: Reason to number of records that could not be used.
        repaired: Reason to number of records changed while reading.
        skipped: Reason to number of records that no table needs.
        places: Reason to the first place (file, byte offset or line) where it was met, for those that have one.
        lost_bytes: Reason to size of the text that was dropped for it, where it is known.
        damaged: Reasons of those dropped that are damage of the file, whoever uses what is left of it.
        notes: Facts worth telling the user.
        unread: Kinds of events that no table takes, of devices or unknown, with their number: what seems to be
            missing may be in them.
        group_sizes: Name of a process group to its members at least, where the trace does not list them.
        least_world: Ranks in the job at least, by the highest rank that the events name; None if they name none.
        device: Index of the rank's device on its host, where only the events tell.
        first_ns: Earliest time met: it tells whether times count from 1970.
    """

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    places: dict[str, FilePlace] = field(default_factory=dict)
    lost_bytes: Counter[str] = field(default_factory=Counter)
    damaged: set[str] = field(default_factory=set)
    notes: list[Notice] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    group_sizes: dict[str, int] = field(default_factory=dict)
    least_world: int | None = None
    device: int | None = None
    first_ns: int | None = None

    def drop(self, reason: str, place: FilePlace, count: int = 1, *, is_damage: bool = False) -> None:
        """Count records that could not be used; the first place of each reason is kept."""
        self.dropped[reason] += count
        self.places.setdefault(reason, place)
        if is_damage:
            self.damaged.add(reason)

    def note(self, code: SourceCode, text: str) -> None:
        """Add a notice of the source."""
        self.notes.append(Notice(code, text))

    def repair(self, reason: str, place: FilePlace, count: int = 1) -> None:
        """Count records changed while reading; the first place of each reason is kept."""
        self.repaired[reason] += count
        self.places.setdefault(reason, place)


class SeveralRanks(MalformedTrace):
    """Raised by a reader that finds the events of several ranks in a source, once it has read it."""


@runtime_checkable
class Splitter(Protocol):
    """A reader whose sources may turn out to hold several ranks."""

    def split(self, source: Source, identity: Identity) -> list[tuple[Source, Identity, str]]:
        """The ranks that a source holds, each as a source of its own, and what their ranks were told by.

        Empty if it is one rank's.

        Raises:
            MalformedTrace: If it holds several, and nothing tells their events apart.
        """


class Reader(Protocol):
    """One trace format."""

    name: str

    def find(self, files: Sequence[Path]) -> Claim:
        """The sources among these files that this reader takes, decided by content."""

    def identify(self, source: Source) -> Identity:
        """Rank, groups and device of a source.

        Raises:
            MalformedTrace: If the source is damaged beyond that.
        """

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: ByteCount,
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield (table name, rows) in any order; tables as ``tables.py`` declares them.

        Args:
            source: What to read.
            rank: Global rank; the identity's, or the file name's where the trace has none, or UNRANKED.
            identity: What ``identify`` found.
            keep: What is read only on request: ``python_function``, ``args``.
            report: Filled in while reading.
            advance: To be called with the number of file bytes consumed since the last call.

        Raises:
            MalformedTrace: If the content is damaged.
            SeveralRanks: If the events are of several ranks.
        """


READERS: Registry[Reader] = Registry(
    "reader",
    {
        "nsys": "tracetool.readers.nsys:READER",
        "ndtimeline": "tracetool.readers.ndtimeline:READER",
        "ascend": "tracetool.readers.ascend:READER",
        "msprof": "tracetool.readers.msprof:READER",
        "mindinsight": "tracetool.readers.mindinsight:READER",
        "vendor": "tracetool.readers.vendor:READER",
        "memory_snapshot": "tracetool.readers.memory_snapshot:READER",
        # The last to be asked: timelines of the others are Chrome traces too.
        "kineto": "tracetool.readers.kineto:READER",
    },
    "tracetool.readers",
)


def rows_table(name: str, rows: Sequence[Sequence[object]]) -> pa.Table:
    """Make a table of a Run from rows in the declared column order; nullable columns at the end may be left out."""
    import pyarrow as pa

    from tracetool.tables.run import TABLES

    schema = TABLES[name].arrow_schema()
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    columns += [[None] * len(rows)] * (len(schema) - len(columns))
    # Dictionary columns are built from plain strings: building them directly is many times slower.
    arrays = [
        _texts(values)
        if pa.types.is_string(f.type)
        else _texts(values).dictionary_encode()
        if pa.types.is_dictionary(f.type)
        else pa.array(values, f.type)
        for f, values in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def stated_sizes(comms: pa.Table, payload_bytes: int) -> tuple[pa.Table, int]:
    """Rows of ``comms`` where sends and receives without a recorded size have a stated one; and how many those are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_message = pc.is_in(comms["operation"].cast(pa.string()), pa.array(["send", "recv"]))
    lacks = pc.and_(is_message, pc.is_null(comms["payload_bytes"]))
    stated = {
        "payload_bytes": pc.if_else(lacks, payload_bytes, comms["payload_bytes"]),
        "evidence": pc.if_else(lacks, "stated", comms["evidence"].cast(pa.string())),
    }
    for name, column in stated.items():
        number = comms.schema.get_field_index(name)
        comms = comms.set_column(number, comms.schema.field(number), column.cast(comms.schema.types[number]))
    return comms, pc.sum(lacks).as_py() or 0


def _texts(values: Sequence[object]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # Names of files may be any bytes.
        shown = [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]
        return pa.array(shown, pa.string())
