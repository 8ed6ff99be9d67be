"""tracetool sql: ask Runs anything."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracetool.cli.output import FORCE, QUIET, check_target, next_step, print_json, say_written, write_file
from tracetool.cli.question import named_paths, open_named
from tracetool.errors import BadQuery

if TYPE_CHECKING:
    import polars as pl

    from tracetool.store.query import Lens
    from tracetool.store.run import Run


_FORMS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".md": "markdown", ".txt": "table"}


@click.command()
@click.argument("runs", metavar="RUN[,RUN...]")
@click.argument("query", required=False)
@click.option(
    "-f", "--file", type=click.File(encoding="utf-8"), metavar="FILE", help="Read the query from it; - is stdin."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "csv", "json", "parquet"]),
    help="Form of the output; default: by the suffix of -o, else table.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it there instead.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="x.duckdb",
    help="Copy everything into a DuckDB file, for other clients.",
)
@FORCE
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@QUIET
def sql(
    runs: str,
    query: str | None,
    file: TextIO | None,
    form: str | None,
    output: Path | None,
    save: Path | None,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Query Runs, or raw traces, with SQL (DuckDB), read-only. Without a query: list what there is; a name shows it.

    Of several Runs, each is a schema under its name (base.run is base; NAME=RUN names it), and tables without a schema
    are those of all, with a column run.

    \b
    Examples:
      tracetool sql x.run
      tracetool sql x.run bubbles
      tracetool sql x.run "select rank, sum(duration_ns) from bubbles group by 1"
      tracetool sql a.run,b.run "select run, value from metrics"
      tracetool sql x.run -f query.sql -o answer.parquet
      tracetool sql x.run --save x.duckdb
    """
    form = "json" if as_json else form or _form_of(output)
    for target in (output, save):
        if target is not None:
            check_target(target, force=force)
    if form == "parquet" and output is None and query is not None and sys.stdout.isatty():
        raise BadQuery("Parquet is no text for a terminal.", hint="name a file with -o answer.parquet")
    if query is not None and file is not None:
        raise BadQuery("a query and -f are given.", hint="give one of them")
    text = _text_of(file) if file is not None else sys.stdin.read() if query == "-" else query
    opened = open_named(runs)
    lens: Lens = next(iter(opened.values()))
    if len(opened) > 1 or _is_named(runs):
        from tracetool.store.catalog import Catalog

        lens = Catalog(opened)
    if save is not None:
        _save(opened, save, force=force)
    elif text is None or (text.isidentifier() and text in _names(opened)):
        _describe(opened, form, text)
        is_table = text is not None and text in _columns(opened)
        shown = f"select * from {text}" if is_table else "step_breakdown"
        next_step(shlex.join(["tracetool", "sql", runs, shown]), quiet=quiet or form == "json")
    elif text is not None:
        _answer(lens, opened, text, form, output, force=force)


def _names(opened: dict[str, Run]) -> set[str]:
    """Names of tables, views and macros."""
    from tracetool.store.query import macro_docs

    return _columns(opened) | {name.partition("(")[0] for name in macro_docs()}


def _columns(opened: dict[str, Run]) -> set[str]:
    """Names of tables and views."""
    from tracetool.reports.recording.catalog import catalog_info

    return {column["name"] for column in catalog_info(opened)["columns"]}


_MOST_ROWS = 40
"""Rows that a terminal shows."""


def _is_named(runs: str) -> bool:
    """Whether a name is given, so that queries may use it."""
    return any(name for name, _ in named_paths(runs))


def _text_of(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise BadQuery(f"{file.name} is no text (not UTF-8).", hint="name a file with one query") from error


def _form_of(output: Path | None) -> str:
    """The form that a file's suffix asks for."""
    if output is None:
        return "table"
    form = _FORMS.get(output.suffix.lower())
    if form is None:
        raise BadQuery(
            f"an answer is not written to {output.suffix or 'files without suffix'}: {output}.",
            hint=f"use {', '.join(_FORMS)}, or say --format",
        )
    return form


def _save(opened: dict[str, Run], path: Path, *, force: bool) -> None:
    import tempfile

    from tracetool.store.catalog import save_database

    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        save_database(opened, made)
        check_target(path, force=force)
        made.replace(path)
    say_written(path)


def _answer(lens: Lens, opened: dict[str, Run], query: str, form: str, output: Path | None, *, force: bool) -> None:
    frame = lens.query(query)
    if frame.is_empty():
        for run in opened.values():
            if reason := _why_empty(run, query):
                click.echo(reason, err=True)
    is_shown = output is None and form == "table" and sys.stdout.isatty()
    data = _rendered(frame.head(_MOST_ROWS) if is_shown else frame, form)
    if output is None:
        click.echo(data if form == "parquet" else data.decode(), nl=False)
        if is_shown and frame.height > _MOST_ROWS:
            click.echo(f"note: {_MOST_ROWS} of {frame.height:,} rows; all with -o FILE, or piped", err=True)
        return
    write_file(output, data, force=force)
    say_written(output)


def _rendered(frame: pl.DataFrame, form: str) -> bytes:
    """The rows in one form."""
    import io

    import polars as pl

    if form == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer, compression="zstd")
        return buffer.getvalue()
    frame = _writable(frame, nested=form == "json")
    if form == "json":
        return (frame.write_json() + "\n").encode()
    if form == "csv":
        return frame.write_csv().encode()
    # What is printed must not steer a terminal, nor end a cell of Markdown.
    cells = pl.col(pl.String).str.replace_all(r"[\x00-\x08\x0b-\x1f\x7f]", "?")
    if form == "markdown":
        cells = cells.str.replace_all("|", r"\|", literal=True).str.replace_all(r"\s*\n\s*", " ")
        frame = frame.rename(lambda name: name.replace("|", r"\|"))
    with pl.Config(
        tbl_rows=-1, tbl_cols=-1, tbl_width_chars=10_000, fmt_str_lengths=80 if form == "table" else 10_000,
        fmt_table_cell_list_len=-1, fmt_float="full", tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True, tbl_formatting="MARKDOWN",
    ):  # fmt: skip
        text = str(frame.with_columns(cells))
    from tracetool.reports.lines import terminal_width

    too_wide = form == "table" and sys.stdout.isatty() and max(map(len, text.splitlines())) > terminal_width()
    return ("\n".join(_one_below_another(frame)) if too_wide else text).encode() + b"\n"


def _writable(frame: pl.DataFrame, *, nested: bool) -> pl.DataFrame:
    """The rows in types that forms of text have: decimals as floats, bytes as hexadecimal, lists and such as JSON."""
    import json

    import polars as pl

    columns = []
    for column in frame:
        if isinstance(column.dtype, pl.Decimal):
            columns.append(column.cast(pl.Float64))
        elif column.dtype == pl.Binary:
            columns.append(column.bin.encode("hex"))
        elif column.dtype.is_nested() and not nested:
            values = [None if value is None else json.dumps(value, default=str) for value in column.to_list()]
            columns.append(pl.Series(column.name, values, dtype=pl.String))
        else:
            columns.append(column)
    return pl.DataFrame(columns)


def _one_below_another(frame: pl.DataFrame) -> list[str]:
    """Rows whose table is wider than the terminal: each value on a line of its own, as psql's expanded display."""
    from tracetool.reports.lines import terminal_width, wrap, wrapped

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

    from tracetool.store.query import of_a_pipeline

    missing = run.manifest.get("reconstruction", {}).get("missing")
    words = set(re.findall(r"\w+", query.lower()))
    empty = sorted(words & of_a_pipeline())
    if not missing or not empty:
        return None
    return f"note: {', '.join(empty)}: empty, for no pipeline could be reconstructed: {missing}"


def _describe(opened: dict[str, Run], form: str, only: str | None = None) -> None:
    """Name what there is, a line each, with queries to learn from; or show one of them with its columns."""
    from tracetool.reports.recording.catalog import catalog_info

    catalog = catalog_info(opened)
    if form == "json":
        print_json(catalog)
        return
    from tracetool.reports.lines import terminal_width, wrap, wrapped

    width = terminal_width()
    calls = {macro["name"].partition("(")[0]: macro for macro in catalog["macros"]}
    docs = {column["name"]: column["doc"] for column in catalog["columns"]}
    docs |= {name: macro["doc"] for name, macro in calls.items()}
    if only is not None:
        named = calls[only]["name"] if only in calls else only
        lines = wrap(f"{named}: {docs[only]}", width, "  ")
        for column in catalog["columns"]:
            if column["name"] == only:
                text = f"  {column['column_name']:<22} {column['data_type']:<9} {column['column_doc']}"
                lines += wrap(text, width, " " * 35)
        click.echo("\n".join(lines))
        return
    if len(opened) > 1:
        text = (
            f"{', '.join(opened)} each have these, as {next(iter(opened))}.ops; without a name before it a table is "
            "that of all of them, with a column run."
        )
        click.echo("\n".join(wrap(text, width, "")))
    room = max(map(len, docs))
    for name, doc in docs.items():
        line = f"{name:<{room}}  {doc}"
        click.echo(line if len(line) <= width else line[: width - 1].rsplit(" ", 1)[0] + " …")
    for one in catalog["examples"][:_MOST_EXAMPLES]:
        click.echo("\n".join(["", *wrapped([one.question, *(f"  {line}" for line in one.query.split("\n"))], width)]))


_MOST_EXAMPLES = 3
