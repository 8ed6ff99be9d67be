"""The straggler analysis' table: one Parquet file of all ranks, one row per operation.

``start_ts`` and ``duration`` are seconds in floating point, from the start of their step (its repository
calls them so, draws them times 10^6 as microseconds, and publishes step times that equal them).
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace, SourceReport
from tracetool.readers.ndtimeline.layout import TIME_LIMIT_NS, JobLayout, Operation, RankPlace, is_known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

_REQUIRED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
_OPTIONAL = ("tp_rank", "seq_id", "mc", "mb_id", "gmc")
_BATCH_ROWS = 1 << 16
_UNPLACED = "row without rank, dp_rank, stage or step"
_LOST = "row in a damaged part of the table (of any rank)"


def table_trouble(path: Path) -> str | None:
    """None if the file is such a table, the reason if it is one that cannot be read, "" if it is none."""
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            return ""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"a Parquet file that cannot be opened: {error}"
    if not set(_REQUIRED) <= set(schema.names):
        return ""
    for name in ("start_ts", "duration"):
        kind = schema.field(name).type
        if not pa.types.is_floating(kind):
            return f"its column {name} is {kind}: only floating-point seconds are known"
    return None


@lru_cache(maxsize=16)
def table_layout(path: Path, version: tuple[int, int]) -> JobLayout:  # noqa: ARG001 - part of the cache's key
    """What the table says as a whole.

    Args:
        path: The table.
        version: Size and time of change, so that a changed file is read anew.

    Raises:
        MalformedTrace: If no row can be used.
    """
    layout, report = JobLayout(), SourceReport()
    for operation in table_operations(path, None, report):
        layout.take(operation)
    layout.unplaced = report.dropped[_UNPLACED] + report.dropped[_LOST]
    if not layout.steps:
        raise MalformedTrace(f"{path}: no row names a rank, a step and a time.", hint="export the table again")
    return layout.done()


def table_operations(
    path: Path, rank: int | None, report: SourceReport, *, strays: bool = False
) -> Iterator[Operation]:
    """The usable operations of one rank, or of all.

    Args:
        path: The table.
        rank: Global rank; None for all ranks.
        report: Rows that are damaged are counted in it, with the number of the row from 1.
        strays: Whether to count the rows that name no rank, too.
    """
    for row, fields in _rows(path, rank, report, strays=strays):
        report.rows += 1
        place = FilePlace(str(path), row, "line")
        operation = _operation(fields, report, place)
        if operation is not None:
            yield operation


def seconds_ns(value: object) -> int | None:
    """Seconds in floating point to whole nanoseconds: the stored binary value, rounded half to even."""
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    numerator, denominator = value.as_integer_ratio()
    whole, rest = divmod(numerator * 10**9, denominator)
    whole += rest * 2 > denominator or (rest * 2 == denominator and whole % 2)
    return whole if abs(whole) < TIME_LIMIT_NS else None


def step_of_clock_ns(path: Path, layout: JobLayout) -> int:
    """Distance of two neighbouring values of ``start_ts`` at the end of the longest step."""
    import pyarrow.parquet as pq

    bits = {"halffloat": 11, "float": 24}.get(str(pq.read_schema(path).field("start_ts").type), 53)
    longest = max(abs(last) for _, last in layout.steps.values()) / 10**9
    return math.ceil(math.ldexp(1.0, math.frexp(longest)[1] - bits) * 10**9)


def _operation(fields: dict[str, Any], report: SourceReport, place: FilePlace) -> Operation | None:
    dp, pp, rank, step = (_whole(fields[name]) for name in ("dp_rank", "stage", "rank", "step"))
    if rank is None or dp is None or pp is None or step is None:
        report.drop(_UNPLACED, place)
        return None
    name = fields["optype"]
    if not isinstance(name, str) or not is_known(name):
        report.drop("row of an unknown optype", place)
        return None
    start, duration = seconds_ns(fields["start_ts"]), seconds_ns(fields["duration"])
    if start is None or duration is None:
        report.drop("time is no number", place)
        return None
    if duration < 0:
        report.repair("negative duration set to 0", place)
        duration = 0
    order, chunk, microbatch, stage = (_whole(fields.get(name)) for name in ("seq_id", "mc", "mb_id", "gmc"))
    return Operation(
        place=place, rank=rank, where=RankPlace(dp, pp, _whole(fields.get("tp_rank"))), step=step, name=name,
        start_ns=start, duration_ns=duration, order=order, chunk=chunk, stage=stage, microbatch=microbatch,
    )  # fmt: skip


def _whole(value: object) -> int | None:
    """A number of 0 or more, as integers or (with gaps) as floats; -1 stands for none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _rows(path: Path, rank: int | None, report: SourceReport, *, strays: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered rows of one rank. A damaged row group costs its own rows only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        columns = [name for name in (*_REQUIRED, *_OPTIONAL) if name in file.schema_arrow.names]
        offset = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            at = offset
            if rank is None or strays or _may_hold(file, group, rank):
                try:
                    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
                        yield from _chosen(batch, at, rank, strays=strays)
                        at += batch.num_rows
                except (pa.ArrowException, OSError, UnicodeDecodeError):
                    lost = offset + rows - at
                    report.drop(_LOST, FilePlace(str(path), at + 1, "line"), lost)
            offset += rows


def _chosen(
    batch: pa.RecordBatch, offset: int, rank: int | None, *, strays: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pa.array(range(offset + 1, offset + batch.num_rows + 1), pa.int64())
    if rank is not None:
        wanted = pc.equal(batch["rank"], pa.scalar(rank, batch["rank"].type)).fill_null(strays)
        if strays:
            wanted = pc.or_(wanted, pc.invert(pc.greater_equal(batch["rank"], 0).fill_null(strays)))
        batch, numbers = batch.filter(wanted), numbers.filter(wanted)
    columns = {name: batch[name].to_pylist() for name in batch.schema.names}
    for at, number in enumerate(numbers.to_pylist()):
        yield number, {name: values[at] for name, values in columns.items()}


def _may_hold(file: Any, group: int, rank: int) -> bool:
    about = file.metadata.row_group(group)
    # Statistics may be of another type or damaged: then the rows themselves must tell.
    with suppress(TypeError, ValueError, OSError):
        for column in range(about.num_columns):
            part = about.column(column)
            if part.path_in_schema == "rank" and part.statistics is not None and part.statistics.has_min_max:
                return bool(part.statistics.min <= rank <= part.statistics.max)
    return True
