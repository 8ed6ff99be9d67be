"""csv:FILE: the order in a file in torch's CSV of actions, a row per rank.

It is for one number of ranks, stages and microbatches, and for one place of its stages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.errors import InvalidSchedule, Option, UnsupportedShape, command_or_call
from tracetool.model.schedule import Schedule, schedule_from_csv
from tracetool.schedules import ScheduleKind, ScheduleOptions

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape, Placement

_PLACEMENTS: dict[Placement, str] = {"loop": "loop", "v": "V", "bidirectional": "pair of opposed pipelines"}


def kind_of(file: str) -> ScheduleKind:
    """The schedule that a file holds.

    Raises:
        InvalidSchedule: If the file cannot be read, or holds no complete order.
    """
    order = _read(Path(file))

    def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
        _check(order.shape, shape, file)
        return order

    return ScheduleKind(
        name=order.name,
        summary="the order in the file",
        source="the file",
        constraints="as in the file",
        bubble="as in the file",
        in_flight="as in the file",
        build=build,
        least_chunks=order.shape.chunks,
        placement=order.shape.placement,
        heeds=frozenset({"overlap ratio"} if any(order.overlaps) else ()),
        given=order,
    )


def _read(path: Path) -> Schedule:
    writes = command_or_call("tracetool schedules NAME --csv", "Schedule.to_csv()")
    hint = f"a schedule file is torch's CSV of actions, a row per rank; {writes} writes one"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSchedule(f"the schedule file {path} is no text (not UTF-8).", hint=hint) from error
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidSchedule(f"cannot read the schedule file {path}: {why}.", hint=hint) from error
    try:
        return schedule_from_csv(text, name=f"csv:{path.name}")
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{path}: {error.message}", hint=error.hint or hint) from error


def _check(mine: PipelineShape, shape: PipelineShape, file: str) -> None:
    """Refuse to run the order on other ranks, stages or microbatches.

    Raises:
        UnsupportedShape: If it is for others.
    """
    if (mine.ranks, mine.stages) != (shape.ranks, shape.stages):
        raise UnsupportedShape(
            f"{file} is for {mine.ranks} ranks and {mine.stages} stages, the pipeline has {shape.ranks} and "
            f"{shape.stages}."
        )
    if mine.chunks > 1 and mine.placement != shape.placement:
        raise UnsupportedShape(
            f"{file} has its stages on ranks as in a {_PLACEMENTS[mine.placement]}, the pipeline as in a "
            f"{_PLACEMENTS[shape.placement]}.",
            hint="record with one stage per rank: it can be re-cut to either",
        )
    if mine.microbatches != shape.microbatches:
        raise UnsupportedShape(
            f"{file} is for {mine.microbatches} microbatches, asked for are {shape.microbatches}: their steps do "
            "different work.",
            hint=f"add {Option.MICROBATCHES(mine.microbatches)}",
        )
