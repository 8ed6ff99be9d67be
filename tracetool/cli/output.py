"""What commands share in how they take input and give output."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracetool.errors import AlreadyExists, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as RichProgress


def path_or_url(value: str) -> Path:
    """What an argument names: a path, or a URL of an object store."""
    from tracetool.store.paths import as_path

    return as_path(value)


PATHS = click.argument("paths", nargs=-1, required=True, type=path_or_url, metavar="RUN_OR_TRACES...")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress and no next-step hint.")
FORCE = click.option("--force", is_flag=True, help="Replace existing output.")
DC = click.option(
    "--dc",
    metavar="MAP",
    help="Where ranks sit: ranges of pipeline ranks, one per data centre (0-1,2-3); host patterns "
    "('dc0=gpu-a*,dc1=gpu-b*'); or a CSV file with the columns rank (global) or host, and dc.",
)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    import json

    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def print_result(text: str) -> None:
    """Print what a check is about: a reader that goes away (as in ``| grep -q``) ends the printing, not the check."""
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def next_step(command: str, *, quiet: bool) -> None:
    """Suggest the next useful command."""
    if not quiet:
        click.echo(f"\nNext: {command}")


def write_file(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file under a temporary name and rename it.

    Raises:
        AlreadyExists: If it exists and ``force`` is off.
        StoreError: If it cannot be written.
    """
    check_target(path, force=force)
    aside: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        aside = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        aside.chmod(0o644)
        aside.replace(path)
    except OSError as error:
        raise StoreError(f"could not write {path}: {error}.") from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a target before the long work starts.

    Raises:
        AlreadyExists: If it exists and ``force`` is off.
        StoreError: If its folder does not exist.
    """
    if path.is_dir():
        raise AlreadyExists(f"{path} is a folder.", hint="name a file")
    if path.exists() and not force:
        raise AlreadyExists(f"{path} exists.", hint="add --force to replace it")
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent}.", hint="create it first")


class ProgressBar:
    """A bar of bytes read, with rate and time left, on stderr; shown only on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self._bar: RichProgress | None = None
        self._advance: Callable[[int], None] = lambda _count: None

    def start(self, total_bytes: int) -> None:
        """Show the bar."""
        if not self._shown:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            "reading", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        task = bar.add_task("reading", total=total_bytes)
        bar.start()
        self._bar = bar
        self._advance = lambda count: bar.advance(task, count)

    def advance(self, count: int) -> None:
        """Move the bar."""
        self._advance(count)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
