"""The schedules that are known, and the order of one, as JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

from tracetool.schedules import SCHEDULES
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from tracetool.model.schedule import Schedule


class ScheduleInfo(TypedDict):
    """A schedule."""

    name: Annotated[str, doc("Name on the command line.")]
    summary: Annotated[str, doc("One line.")]
    constraints: Annotated[str, doc("On pipeline ranks p, stages per rank v and microbatches m.")]
    bubble: Annotated[str, doc("Closed form at equal stages and zero delay.")]
    in_flight: Annotated[str, doc("Microbatches whose activations a stage holds at most.")]
    source: Annotated[str, doc("Where the order comes from.")]


class OrderInfo(TypedDict):
    """The order of a schedule of one shape."""

    name: Annotated[str, doc("Name of the schedule.")]
    orders: Annotated[list[list[str]], doc("Per pipeline rank its actions, as 2F0 or (2F3;5B1)OVERLAP_F_B.")]


def schedule_infos() -> list[ScheduleInfo]:
    """Every schedule, by name."""
    return [
        {
            "name": kind.name, "summary": kind.summary, "constraints": kind.constraints, "bubble": kind.bubble,
            "in_flight": kind.in_flight, "source": kind.source,
        }
        for kind in map(SCHEDULES.get, SCHEDULES.names())
    ]  # fmt: skip


def order_info(schedule: Schedule) -> OrderInfo:
    """The order of a schedule."""
    return {"name": schedule.name, "orders": [schedule.cells(rank) for rank in range(len(schedule.orders))]}
