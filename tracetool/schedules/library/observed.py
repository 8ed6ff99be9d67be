"""observed: the order found in the trace, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import Option, UnsupportedShape
from tracetool.model.schedule import OBSERVED
from tracetool.schedules import ScheduleKind, ScheduleOptions

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape, Schedule


def build(shape: PipelineShape, options: ScheduleOptions) -> Schedule:
    """The observed order; it exists for the observed microbatches only."""
    observed = options.observed
    if observed is None:
        raise UnsupportedShape("'observed' needs a trace: there is no order without one.")
    if observed.shape != shape:
        raise UnsupportedShape(
            f"the observed order has {observed.shape.microbatches} microbatches on {observed.shape.ranks} "
            f"ranks; it cannot be stretched to {shape.microbatches} on {shape.ranks}.",
            hint=f"name the schedule instead, as in {Option.SCHEDULES('1f1b')}",
        )
    return replace(observed, name=OBSERVED)


SCHEDULE = ScheduleKind(
    name=OBSERVED,
    summary="the order found in the trace",
    source="the trace",
    constraints="as recorded",
    bubble="as recorded",
    in_flight="as recorded",
    build=build,
    is_compared=True,
)
