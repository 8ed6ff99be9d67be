"""What there is to ask Runs for: tables, views, macros, and queries to learn from.

The schedules that are known, and the order of one, as JSON has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict, cast

from tracetool.schedules import SCHEDULES
from tracetool.store.catalog import Shapes
from tracetool.store.query import Example, examples, macro_docs
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.model.schedule import Schedule
    from tracetool.store.run import Run


class CatalogColumnInfo(TypedDict):
    """A column of a table or view."""

    name: Annotated[str, doc("The table or view.")]
    doc: Annotated[str, doc("What a row of that is.")]
    column_name: Annotated[str, doc("The column.")]
    data_type: Annotated[str, doc("Its type in DuckDB.")]
    column_doc: Annotated[str, doc("What it holds.")]


class MacroInfo(TypedDict):
    """A macro of SQL."""

    name: Annotated[str, doc("The macro with its parameters.")]
    doc: Annotated[str, doc("What it gives.")]


class CatalogInfo(TypedDict):
    """What tracetool sql lists without a query."""

    runs: Annotated[list[str], doc("Names of the Runs.")]
    columns: Annotated[list[CatalogColumnInfo], doc("Of all tables and views, in order.")]
    macros: Annotated[list[MacroInfo], doc("In order.")]
    examples: Annotated[list[Example], doc("Queries to learn from.")]


def catalog_info(opened: Mapping[str, Run]) -> CatalogInfo:
    """What Runs hold, by name, that queries may ask for."""
    rows = Shapes().records(
        "SELECT view_name AS name, v.comment AS doc, c.column_name, c.data_type, c.comment AS column_doc "
        "FROM duckdb_views() AS v JOIN duckdb_columns() AS c ON c.table_name = v.view_name "
        "WHERE NOT v.internal AND v.comment IS NOT NULL ORDER BY v.view_oid, c.column_index"
    )
    macros: list[MacroInfo] = [{"name": name, "doc": text} for name, text in macro_docs().items()]
    columns = cast("list[CatalogColumnInfo]", rows)
    learned = examples("several" if len(opened) > 1 else "one")
    return {
        "runs": list(opened),
        "columns": columns,
        "macros": macros,
        "examples": learned,
    }


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
