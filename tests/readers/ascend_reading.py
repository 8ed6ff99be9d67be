"""What the tests of Ascend readers share: reading one source, and the public captures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracetool.readers import SourceReport

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.readers import Claim, Identity, Reader, Source


@dataclass
class Read:
    """What a reader made of a source."""

    source: Source
    identity: Identity
    tables: dict[str, list[dict[str, Any]]]
    report: SourceReport
    advanced: int

    def events(self, category: str) -> list[dict[str, Any]]:
        return [row for row in self.tables["events"] if row["category"] == category]


def find(reader: Reader, folder: Path) -> Claim:
    return reader.find(sorted(f for f in folder.rglob("*") if f.is_file()))


def read_source(reader: Reader, source: Source) -> Read:
    identity = reader.identify(source)
    report = SourceReport()
    advanced: list[int] = []
    rank = -1 if not source.ranked else identity.rank if identity.rank is not None else 7
    batches: dict[str, list[pa.Table]] = {}
    for name, rows in reader.read(source, rank, identity, frozenset(), report, advanced.append):
        batches.setdefault(name, []).append(rows)
    tables = {name: pa.concat_tables(parts).to_pylist() for name, parts in batches.items()}
    return Read(source, identity, tables, report, sum(advanced))


def read_only(reader: Reader, folder: Path) -> Read:
    """Read a folder that holds one source."""
    (source,) = find(reader, folder).sources
    return read_source(reader, source)


@cache
def read_capture(reader: Reader, folder: Path) -> Read:
    """The same of a public capture, which no test changes: once per worker."""
    return read_only(reader, folder)
