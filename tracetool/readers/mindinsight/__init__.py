"""Output of MindSpore's profiler of MindInsight's era: one step trace per rank, in one folder.

Its step trace has a column per communication operation and a row per step, in ticks of a 100 MHz counter.
What is computed in between is not recorded.

CSV files of MindInsight's era: step traces, HCCL costs and the vendor's analysis of pipelines.

What a file is follows from its header; of whom it is, from its name alone (``step_trace_raw_{rank}_detail_time.csv``,
``hccl_raw_{rank}.csv``, ``..._pipeline-parallel_{stages}_{ranks}_{rank}.csv``).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import UNRANKED, Claim, FilePlace, Group, Identity, Left, Source, SourceReport, rows_table
from tracetool.readers.cann import MB_OF_LINKS, integer, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

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


_NS_PER_TICK = 10
_OPERATION = re.compile(r"^stream_(\d+)_\d+_([A-Za-z]+)-op\d+$")
_NAMES = {"Receive": "recv", "Send": "send"}
_AVERAGE = "-"
_TICK_LIMIT = 2**58


class _Operation(NamedTuple):
    step: str
    name: str
    what: str
    stream: int
    start_ns: int
    end_ns: int


class MindInsightReader:
    """Reads MindInsight's files; see :class:`tracetool.readers.Reader`."""

    name = "mindinsight"

    def find(self, files: Sequence[Path]) -> Claim:
        """Each step trace is one source, with the files of its rank beside it."""
        finding = Claim()
        folders: dict[Path, list[Path]] = defaultdict(list)
        for file in files:
            folders[file.parent].append(file)
        for members in folders.values():
            kinds = {file: kind_of(file) for file in members}
            traces = [file for file, kind in kinds.items() if kind == STEP_TRACE]
            for trace in traces:
                finding.sources.append(Source(self.name, trace, (trace, *_beside(trace, kinds))))
            taken = {file for source in finding.sources for file in source.files}
            for file in members if traces else ():
                if file not in taken:
                    reason = "beside step traces, but holds neither steps nor transfers"
                    reason = f"{kinds[file]} of no rank here" if kinds[file] else reason
                    finding.left.append(Left(file, reason))
        return finding

    def identify(self, source: Source) -> Identity:
        """Rank from the step trace's name, the grid from that of the vendor's analysis."""
        rank, grid = rank_of(source.path), _grid(source)
        if rank is None or grid is None:
            return Identity(rank=rank)
        groups = (Group("pp", "pp", grid.pipeline(rank)), Group("stage", "stage", grid.peers(rank)))
        return Identity(rank=rank, world_size=grid.ranks, groups=groups)

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Steps, communication, and the vendor's figures of the rank."""
        parts = {kind_of(file): file for file in source.files if file == source.path or _is_of(file, rank)}
        steps: list[tuple[object, ...]] = []
        listed: list[str] = []
        operations: list[_Operation] = []
        for place, record in records(source.path, report):
            report.rows += 1
            listed.append(record["step_num"])
            step = _step_row(rank, record, place, report)
            if step is not None:
                steps.append(step)
                operations += _operations(record, place, report)
        if not steps:
            raise MalformedTrace(f"{source.path}: no step has a number and times.", hint="export the profile again")
        sizes = received_bytes(parts[HCCL], report) if HCCL in parts else {}
        report.note(SourceCode.NO_EPOCH, "its times are ticks of 10 ns without an epoch; computing is not recorded")
        report.note(SourceCode.RANK_INFERRED, "its rank is taken from the name of the file: nothing in it tells")
        if _grid(source) is not None:
            report.note(
                SourceCode.STAGES_INFERRED,
                "stages are taken from the names of the vendor's files, peers from the stage",
            )
        for file in source.files:
            advance(file.stat().st_size)
        yield "steps", rows_table("steps", steps)
        yield "comms", rows_table("comms", _comm_rows(rank, operations, _grid(source), sizes))
        if FIGURES in parts:
            yield "vendor_figures", rows_table("vendor_figures", _figures(parts[FIGURES], rank, listed, report))


READER = MindInsightReader()


def _beside(trace: Path, kinds: dict[Path, str | None]) -> list[Path]:
    """HCCL costs and figures of the same rank; else the figures of another one, for the grid in their name."""
    rank = rank_of(trace)
    if rank is None:
        return []
    figures = [file for file, kind in kinds.items() if kind == FIGURES and figures_of(file)]
    own = [file for file, kind in kinds.items() if kind in (HCCL, FIGURES) and _is_of(file, rank)]
    return own if any(file in figures for file in own) else [*own, *figures[:1]]


def _is_of(file: Path, rank: int) -> bool:
    named = figures_of(file)
    return rank in (rank_of(file), named[1] if named else None)


def _grid(source: Source) -> StageGrid | None:
    for file in source.files:
        if file != source.path and kind_of(file) == FIGURES and (named := figures_of(file)):
            rank = rank_of(source.path)
            return named[0] if rank is not None and rank < named[0].ranks else None
    return None


def _step_row(rank: int, record: dict[str, str], place: FilePlace, report: SourceReport) -> tuple[object, ...] | None:
    if record["step_num"] == _AVERAGE:
        report.skipped["average of the steps"] += 1
        return None
    step, start, end = step_number(record["step_num"]), _ticks(record["start_point"]), _ticks(record["end_point"])
    if step is None or start is None or end is None or end < start:
        report.drop("step without number or times", place)
        return None
    return rank, step, start, end, None, None


def _ticks(text: str) -> int | None:
    """Ticks as nanoseconds."""
    ticks = integer(text)
    return ticks * _NS_PER_TICK if ticks is not None and 0 <= ticks < _TICK_LIMIT else None


def _operations(record: dict[str, str], place: FilePlace, report: SourceReport) -> Iterator[_Operation]:
    for name, duration in record.items():
        match = _OPERATION.match(name)
        if match is None:
            if f"{name}_start_point" in record:
                report.skipped["span of a stream that names no operation"] += 1
            continue
        start, end = (_ticks(record.get(f"{name}_{side}_point", "")) for side in ("start", "end"))
        if start is None or end is None or end < start:
            report.drop("operation without times", place)
        elif start == end == 0:
            report.skipped["operation that did not run in the step"] += 1
        else:
            if _ticks(duration) != end - start:
                report.repair("duration that is not end less start: left out", place)
            yield _Operation(record["step_num"], name, match[2], int(match[1]), start, end)


def _comm_rows(
    rank: int, operations: Sequence[_Operation], grid: StageGrid | None, sizes: dict[tuple[str, str], int]
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    peer = _only_neighbour(rank, grid)
    for position, o in enumerate(sorted(operations, key=lambda o: (o.start_ns, o.end_ns))):
        is_message = o.what in _NAMES
        group, ranks = "", []
        if grid is not None:
            group = "pp" if is_message else "stage"
            ranks = list(grid.pipeline(rank) if is_message else grid.peers(rank))
        rows.append(
            (
                rank, position, _NAMES.get(o.what, o.what.lower()), group, ranks, peer if is_message else None,
                sizes.get((o.step, o.name)) if o.what == "Receive" else None, o.start_ns, None, position, o.stream,
                o.start_ns, o.end_ns, "inferred" if is_message and peer is not None else "unknown", None,
            )
        )  # fmt: skip
    return rows


def _only_neighbour(rank: int, grid: StageGrid | None) -> int | None:
    """The peer of every message, if the stage has but one neighbour: the first and the last stage."""
    if grid is None or grid.stages == 1:
        return None
    pipeline, stage = grid.pipeline(rank), grid.stage_of(rank)
    if stage == 0:
        return pipeline[1]
    return pipeline[-2] if stage == grid.stages - 1 else None


def _figures(file: Path, rank: int, steps: Sequence[str], report: SourceReport) -> list[tuple[object, ...]]:
    """The vendor's milliseconds: a row per row of the step trace, whose steps it does not name."""
    listed = list(records(file, report))
    if len(listed) != len(steps):
        report.drop(
            "vendor's analysis with other steps than the step trace", FilePlace(str(file), 1, "line"), len(listed)
        )
        return []
    rows: list[tuple[object, ...]] = []
    for step, (place, record) in zip(steps, listed, strict=True):
        for metric, text in record.items():
            value = None
            with suppress(ValueError):
                value = float(text)
            if value is None or value - value != 0:  # infinite or no number
                report.drop("vendor's figure that is no number", place)
            else:
                metric_of = f"{metric}(ms)" if step != _AVERAGE else f"average {metric}(ms)"
                rows.append((UNRANKED, "rank", str(rank), rank, step_number(step), metric_of, value))
    return rows
