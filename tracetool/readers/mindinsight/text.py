"""CSV files of MindInsight's era: step traces, HCCL costs and the vendor's analysis of pipelines.

What a file is follows from its header; of whom it is, from its name alone (``step_trace_raw_{rank}_detail_time.csv``,
``hccl_raw_{rank}.csv``, ``..._pipeline-parallel_{stages}_{ranks}_{rank}.csv``).
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tracetool.readers import FilePlace
from tracetool.readers.cann.text import MB_OF_LINKS, integer, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport

STEP_TRACE, HCCL, FIGURES = "step trace", "HCCL costs", "vendor's analysis"

_STEP_COLUMNS = ("step_num", "start_point", "end_point", "total", "fp_point", "bp_point")
_HCCL_COLUMNS = ("step_num", "communication_cost", "wait_cost", "link_info", "communication_operator_cost")
_FIGURE_COLUMNS = frozenset({
    "computation_time", "communication_alone_time", "stage_time", "receive_alone_time",
    "collective_communication_alone_time",
})  # fmt: skip
_RANK = re.compile(r"_raw_(\d{1,9})(?:_detail_time)?\.csv$")
_FIGURES_OF = re.compile(r"_(\d{1,9})_(\d{1,9})_(\d{1,9})\.csv$")
_HEAD_BYTES = 1 << 12
_MOST_RANKS = 1 << 20
_CELL_BYTES = 1 << 27
_KB = MB_OF_LINKS // 1000


class StageGrid(NamedTuple):
    """Stages and ranks of a job; each stage has as many ranks, which follow one another."""

    stages: int
    ranks: int

    def stage_of(self, rank: int) -> int:
        """Stage of a rank."""
        return rank * self.stages // self.ranks

    def pipeline(self, rank: int) -> tuple[int, ...]:
        """The ranks at the same place of every stage."""
        width = self.ranks // self.stages
        return tuple(stage * width + rank % width for stage in range(self.stages))

    def peers(self, rank: int) -> tuple[int, ...]:
        """The ranks of the stage itself."""
        width = self.ranks // self.stages
        first = self.stage_of(rank) * width
        return tuple(range(first, first + width))


def kind_of(file: Path) -> str | None:
    """Which of the files it is, by its header; None if it is none of them."""
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].decode("ascii", errors="replace")
    names = tuple(name.strip() for name in line.split(","))
    if names[: len(_STEP_COLUMNS)] == _STEP_COLUMNS:
        return STEP_TRACE
    if names == _HCCL_COLUMNS:
        return HCCL
    return FIGURES if set(names) == _FIGURE_COLUMNS else None


def rank_of(file: Path) -> int | None:
    """Rank in the name of a step trace or HCCL file."""
    match = _RANK.search(file.name)
    return int(match[1]) if match else None


def figures_of(file: Path) -> tuple[StageGrid, int] | None:
    """Grid and rank in the name of the vendor's analysis, if they can be."""
    match = _FIGURES_OF.search(file.name)
    if match is None:
        return None
    stages, ranks, rank = (int(number) for number in match.groups())
    if not 0 < stages <= ranks <= _MOST_RANKS or ranks % stages or rank >= ranks:
        return None
    return StageGrid(stages, ranks), rank


def records(file: Path, report: SourceReport) -> Iterator[tuple[FilePlace, dict[str, str]]]:
    """Every whole record with its line; damaged ones are counted."""
    # HCCL puts the costs of all operations into one cell; the module's own limit is 128 KiB.
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_BYTES))
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader = csv.reader(stream)
        header: list[str] = []
        while True:
            try:
                record = next(reader, None)
            except csv.Error:
                report.drop("record that is no CSV", FilePlace(str(file), reader.line_num, "line"))
                continue
            if record is None:
                return
            place = FilePlace(str(file), reader.line_num, "line")
            if not header:
                header = [name.strip() for name in record]
            elif len(record) == len(header):
                yield place, dict(zip(header, (cell.strip() for cell in record), strict=True))
            elif record:
                report.drop("record with more or fewer fields than the header", place)


def received_bytes(file: Path, report: SourceReport) -> dict[tuple[str, str], int]:
    """(step, operation) to the bytes that came over its only link; kilobytes are 1000 bytes."""
    received = {}
    for place, record in records(file, report):
        try:
            costs = msgspec.json.decode(record["communication_operator_cost"], type=dict[str, list[Any]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            report.drop("costs of operations that are no JSON", place)
            continue
        for operation, cost in costs.items():
            links = cost[3] if len(cost) > 3 and isinstance(cost[3], dict) else {}
            sizes = [size for link in links.values() if isinstance(link, dict) for size in link.values()]
            if len(sizes) == 1 and isinstance(sizes[0], list) and len(sizes[0]) > 1:
                size = scaled(str(sizes[0][1]), _KB)
                if size is not None and size > 0:
                    received[record["step_num"], operation] = size
    return received


def step_number(text: str) -> int | None:
    """Number of a step; None for anything else."""
    number = integer(text)
    return number if number is not None and 0 <= number < 2**31 else None
