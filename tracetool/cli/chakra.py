"""tracetool replay --chakra: a folder of execution traces for simulators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import write_file
from tracetool.errors import AlreadyExists, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.whatif.results import Answer


def check_chakra(folder: Path, *, force: bool) -> None:
    """Refuse a folder before the long work starts.

    Raises:
        MissingPackage: If Chakra's package is not installed.
        AlreadyExists: If it exists and is not empty, and ``force`` is off.
        StoreError: If it cannot be made.
    """
    from tracetool.reports.export.chakra import load_schema

    load_schema()
    if folder.exists() and not folder.is_dir():
        raise AlreadyExists(f"{folder} is a file.", hint="name a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise AlreadyExists(f"{folder} exists and is not empty.", hint="add --force to write into it")
    if not folder.parent.is_dir():
        raise StoreError(f"there is no folder {folder.parent}.", hint="create it first")


def write_chakra(result: Answer, folder: Path, *, force: bool) -> None:
    """Write the shortest result that fits: one file per pipeline rank, named as ASTRA-sim wants them."""
    from tracetool.reports.export.chakra import execution_traces
    from tracetool.reports.gantt.picture import drawn_result

    chosen = drawn_result(result)
    traces = execution_traces(chosen.timeline)
    name = re.sub(r"[^\w-]+", "-", chosen.schedule).strip("-")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"could not make the folder {folder}: {error}.") from error
    for rank, trace in enumerate(traces):
        write_file(folder / f"{name}.{rank}.et", trace, force=force)
    click.echo(f"wrote {folder / name}.*.et ({len(traces)} ranks, {chosen.schedule})", err=True)
