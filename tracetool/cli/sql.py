"""tracetool sql: ask a Run anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import path_or_url, print_json

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from tracetool.store import Run


_OF_A_PIPELINE = frozenset(
    (
        "stages", "ops", "transfers", "memory_curve", "links", "metrics", "costs", "kernel_actions", "layers",
        "step_facts", "bubbles", "step_breakdown", "link_utilization", "peak_memory", "slowest_actions",
        "schedule_comparison", "kernel_time_by_stage",
    )
)  # fmt: skip
"""Tables and views that only a reconstructed pipeline fills."""


@click.command()
@click.argument("run", type=path_or_url, metavar="RUN_OR_TRACES")
@click.argument("query", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def sql(run: Path, query: str | None, form: str, *, as_json: bool) -> None:
    """Query a Run with SQL (DuckDB), read-only. Without a query: list tables, views and columns.

    \b
    Example:
      tracetool sql x.run "select rank, sum(duration_ns) from bubbles \\
          group by rank"
    """
    from tracetool.runs import open_run

    opened = open_run([run])
    form = "json" if as_json else form
    if query is None:
        _describe(opened, form)
        return
    import polars as pl

    from tracetool.reports.text import terminal_width

    frame = opened.query(query)
    if frame.is_empty() and (reason := _why_empty(opened, query)):
        click.echo(reason, err=True)
    if form == "json":
        click.echo(frame.write_json())
    elif form == "csv":
        import polars.selectors as cs

        # CSV has no lists: they are written as their text.
        lists = cs.list().list.eval(pl.element().cast(pl.String)).list.join(" ")
        click.echo(frame.with_columns(lists).write_csv(), nl=False)
    else:
        with pl.Config(
            tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, fmt_str_lengths=80,
            fmt_table_cell_list_len=-1, tbl_hide_dataframe_shape=True,
            tbl_hide_column_data_types=True, tbl_formatting="MARKDOWN",
        ):  # fmt: skip
            text = str(frame)
        too_wide = sys.stdout.isatty() and max(map(len, text.splitlines())) > terminal_width()
        click.echo("\n".join(_one_below_another(frame)) if too_wide else text)


def _one_below_another(frame: pl.DataFrame) -> list[str]:
    """Rows whose table is wider than the terminal: each value on a line of its own, as psql's expanded display."""
    from tracetool.reports.text import terminal_width, wrap, wrapped

    if frame.is_empty():
        return wrapped([f"no rows; columns: {', '.join(frame.columns)}"])
    width = max(map(len, frame.columns))
    lines = []
    for number, row in enumerate(frame.iter_rows(), 1):
        lines.append(f"row {number}")
        for name, value in zip(frame.columns, row, strict=True):
            shown = "null" if value is None else str(value)
            lines += wrap(f"  {name.ljust(width)}  {shown}", terminal_width(), " " * (width + 4))
    return lines


def _why_empty(run: Run, query: str) -> str | None:
    """Why tables that a query names hold nothing: the traces have no pipeline that could be reconstructed."""
    import re

    missing = run.manifest.get("reconstruction", {}).get("missing")
    words = set(re.findall(r"\w+", query.lower()))
    empty = sorted(words & _OF_A_PIPELINE)
    if not missing or not empty:
        return None
    return f"note: {', '.join(empty)}: empty, for no pipeline could be reconstructed: {missing}"


def _describe(run: Run, form: str) -> None:
    run.add_comments()
    rows = run.records(
        "SELECT view_name AS name, v.comment AS doc, c.column_name, c.data_type, c.comment AS column_doc "
        "FROM duckdb_views() AS v JOIN duckdb_columns() AS c ON c.table_name = v.view_name "
        "WHERE NOT v.internal AND v.comment IS NOT NULL ORDER BY v.view_oid, c.column_index"
    )
    if form == "json":
        print_json(rows)
        return
    from tracetool.reports.text import terminal_width, wrap

    width, last = terminal_width(), None
    for row in rows:
        if row["name"] != last:
            last = row["name"]
            head, *more = wrap(f"{last}: {row['doc']}", width, "  ")
            click.echo("\n" + "\n".join([click.style(last, bold=True) + head.removeprefix(last), *more]))
        column = f"  {row['column_name']:<22} {row['data_type']:<9} {row['column_doc']}"
        click.echo("\n".join(wrap(column, width, " " * 35)))
    click.echo('\nNext: tracetool sql RUN "select * from step_breakdown"')
