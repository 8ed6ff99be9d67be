"""Figures of the vendor's own cluster analysis (msprof-analyze, MindStudio): about ranks, stages, links and groups.

They are kept under the vendor's names and units, beside what is computed here: the same word means other things
in other releases.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers import UNRANKED, Claim, FilePlace, Identity, Left, Source, SourceReport, rows_table
from tracetool.readers.cann import csv_header
from tracetool.readers.cann.db import companions, is_database, unmerged
from tracetool.readers.vendor.figures import (
    DATABASE,
    VendorFigure,
    communication_figures,
    database_figures,
    group_figures,
    holds_figures,
    matrix_figures,
    step_figures,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa


STEPS, COMMUNICATION, MATRIX, GROUPS = "step trace", "communication", "matrix", "groups"

_HEAD_BYTES = 1 << 16
_CHUNK_ROWS = 1 << 16
_COLUMNS = {"Step", "Type", "Index", "Computing"}
# A rank's own files begin with the step; these begin with the group.
_BY_GROUP = re.compile(rb'^\s*\{\s*"(?:p2p|collective|\([\d, ]*\))"\s*:\s*\{')
_LISTS = re.compile(rb'^\s*\{\s*"(?:p2p|collective|comm_group_parallel_info)"\s*:\s*\[')
_READ: dict[str, Callable[[Path, SourceReport, Callable[[int], None]], Iterator[VendorFigure]]] = {
    STEPS: step_figures,
    COMMUNICATION: communication_figures,
    MATRIX: matrix_figures,
    GROUPS: group_figures,
    DATABASE: database_figures,
}


class VendorReader:
    """Reads cluster analyses; see :class:`tracetool.readers.Reader`. Its sources are of no rank."""

    name = "vendor"

    def find(self, files: Sequence[Path]) -> Claim:
        """The files of a folder are one source; a second one of a kind is a source of its own."""
        folders: dict[Path, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
        for file in sorted(files):
            if (kind := _kind_of(file)) is not None:
                folders[file.parent][kind].append(file)
        finding = Claim()
        for folder, kinds in sorted(folders.items()):
            together = [files_of_kind[0] for files_of_kind in kinds.values()]
            finding.sources.append(Source(self.name, folder, _with_changes(together), ranked=False))
            for file in sorted(f for files_of_kind in kinds.values() for f in files_of_kind[1:]):
                finding.sources.append(Source(self.name, file, _with_changes([file]), ranked=False))
        taken = {file for source in finding.sources for file in source.files}
        finding.left = [Left(f, "belongs to the database") for f in companions(taken, files) if f not in taken]
        return finding

    def identify(self, source: Source) -> Identity:
        """Of no rank."""
        return Identity(rank=None)

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """All figures, file by file; a damaged file costs the others nothing."""
        rows: list[tuple[object, ...]] = []
        for figure in _figures(source.files, report, advance):
            rows.append((UNRANKED, *figure))
            if len(rows) == _CHUNK_ROWS:
                yield "vendor_figures", rows_table("vendor_figures", rows)
                rows = []
        if report.rows == 0 and report.dropped:
            reason, place = next(iter(report.places.items()))
            raise MalformedTrace(f"{place.file}: {reason} at {place.unit} {place.at:,}.", hint="run the analysis again")
        yield "vendor_figures", rows_table("vendor_figures", rows)


READER = VendorReader()


def _figures(files: Iterable[Path], report: SourceReport, advance: Callable[[int], None]) -> Iterator[VendorFigure]:
    for file in files:
        kind = _kind_of(file)
        if kind is None:
            advance(file.stat().st_size)
            continue
        try:
            yield from _READ[kind](file, report, advance)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            at = re.search(r"byte (\d+)", str(error))
            report.drop("file with damaged text", FilePlace(str(file), int(at[1]) if at else file.stat().st_size))


def _with_changes(files: Sequence[Path]) -> tuple[Path, ...]:
    """The files, and the logs of changes that lie beside databases among them."""
    return (*sorted(files), *(change for f in sorted(files) if is_database(f) for change in unmerged(f)))


def _kind_of(path: Path) -> str | None:
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if is_database(path):
        return DATABASE if holds_figures(path) else None
    if _LISTS.match(head):
        return GROUPS
    if _BY_GROUP.match(head):
        return (
            COMMUNICATION if b'"Communication Time Info"' in head else MATRIX if b'"Transport Type"' in head else None
        )
    if b"Index" in head and b"\0" not in head.partition(b"\n")[0] and set(csv_header(path)) >= _COLUMNS:
        return STEPS
    return None
