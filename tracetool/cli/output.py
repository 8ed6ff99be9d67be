"""What commands share in how they take input and give output.

Files that commands write reports to.

Option values that are more than a word: lists and quantities.

Options as they are typed: texts of the library call them by their arguments in Python.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tracetool.errors import AlreadyExists, ScenarioError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, Task

    from tracetool.reports import Report


class PathOrUrl(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """What an argument names: a path, or a URL of an object store."""

    name = "path"

    def convert(self, value: str | Path, _option: click.Parameter | None, _context: click.Context | None) -> Path:
        """The path."""
        from tracetool.store import as_path

        return as_path(value)

    def shell_complete(
        self, _context: click.Context, _option: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Whatever the shell finds there."""
        return [CompletionItem(incomplete, type="file")]


PATH_OR_URL = PathOrUrl()


def path_or_url(value: str) -> Path:
    """What a text names: a path, or a URL of an object store."""
    return PATH_OR_URL.convert(value, None, None)


def complete_schedules(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names that the last one of a list may become."""
    from tracetool.schedules import SCHEDULES

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in SCHEDULES.names() if name.startswith(last.lower())]


PATHS = click.argument("paths", nargs=-1, required=True, type=PATH_OR_URL, metavar="RUN_OR_TRACES...")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Everything, not one screen of it.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress and no next-step hint.")
FORCE = click.option("--force", is_flag=True, help="Replace existing output.")


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


def flag_of(option: click.Option) -> str:
    """An option as typed."""
    return max(option.opts, key=len)


def is_given(context: click.Context, name: str | None) -> bool:
    """Whether an option was typed, or set in a file."""
    return context.get_parameter_source(name or "") not in (ParameterSource.DEFAULT, None)


def following(verb: str, *more: str, without: Collection[str] = ()) -> str:
    """A command about the same: with the arguments and options of the one that runs, as far as it takes them.

    Args:
        verb: Which command.
        more: What it is to have besides.
        without: Names of what it is not to have: of options that ``more`` has, and of what was for this call.
    """
    context = click.get_current_context()
    words = ["tracetool", *verb.split()]
    command = context.find_root().command
    for word in verb.split():
        command = command.commands[word] if isinstance(command, click.Group) else command
    taken = {option.name for option in command.params} - _OF_THE_CALL - {*without}
    for option in sorted(context.command.params, key=lambda each: isinstance(each, click.Option)):
        if option.name not in taken or not is_given(context, option.name):
            continue
        value = context.params.get(option.name or "")
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(option, click.Option) and option.is_flag:
                words.append(flag_of(option) if one else option.secondary_opts[0])
            else:
                words += [*([flag_of(option)] if isinstance(option, click.Option) else []), str(one)]
    # What was set and is heeded stands among the words: nothing else is to be.
    alone = ["--no-config"] if is_given(context, "config") or is_given(context, "no_config") else []
    return shlex.join([*words, *alone, *more])


_OF_THE_CALL = frozenset({
    "output", "force", "as_json", "quiet", "verbose", "chakra", "run_target", "debug", "config", "no_config", "jobs",
})  # fmt: skip

_OPENED = {
    ".html": "a browser opens it", ".perfetto.json": "https://ui.perfetto.dev opens it",
    ".perfetto.json.gz": "https://ui.perfetto.dev opens it", ".et": "ASTRA-sim and other simulators read it",
}  # fmt: skip


def say_written(path: Path | str, about: str = "") -> None:
    """Say what was written, and what opens it where that does not go without saying.

    Args:
        path: Where it is.
        about: What more there is to say of it.
    """
    opened = [words for suffix, words in _OPENED.items() if str(path).lower().endswith(suffix)]
    words = "; ".join([*([about] if about else []), *opened])
    click.echo(f"wrote {path}" + (f" ({words})" if words else ""), err=True)


def free_name(name: str) -> str:
    """A name like it of no file here: what is suggested must not be refused for a file that is there."""
    path = Path(name)
    names = (path, *(path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, 100)))
    return str(next((one for one in names if not one.exists()), path))


def write_file(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file under a temporary name and rename it.

    Raises:
        AlreadyExists: If it exists and ``force`` is off.
        StoreError: If it cannot be written.
    """
    import tempfile

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
        hint = f"add --force to replace it, or write another, as in -o {shlex.quote(free_name(str(path)))}"
        raise AlreadyExists(f"{path} exists.", hint=hint)
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent}.", hint="create it first")


class ProgressBar:
    """A bar with rate and time left, on stderr; shown only on a terminal.

    Args:
        quiet: Whether it is not shown there either.
        doing: What is done.
        of: What there are so many of; bytes are shown by size.
    """

    def __init__(self, *, quiet: bool, doing: str = "reading", of: str = "bytes") -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self.doing, self.of = doing, of
        self._bar: RichProgress | None = None
        self._advance: Callable[[int], None] = lambda _count: None
        self._say: Callable[[str], None] = lambda _text: None

    def start(self, total: int) -> None:
        """Show the bar; anew, where further work begins."""
        if not self._shown:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.stop()
        how: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
        if self.of != "bytes":
            how = (MofNCompleteColumn(), _rate(self.of))
        bar = Progress(
            "{task.description}", BarColumn(), *how, TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        task = bar.add_task(self.doing, total=total)
        bar.start()
        self._bar = bar
        self._advance = lambda count: bar.advance(task, count)
        self._say = lambda text: bar.update(task, description=text)

    def advance(self, count: int) -> None:
        """Move the bar."""
        self._advance(count)

    def say(self, text: str) -> None:
        """Say beside the bar what was found so far."""
        self._say(text)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _rate(of: str) -> ProgressColumn:
    """A column of how many are done in a second."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{of}, {task.speed:.2g}/s" if task.speed else of)

    return Rate()


def report_targets(output: Iterable[Path], *, force: bool) -> list[tuple[Path, Report]]:
    """The reports to write, by suffix, refused before the long work if they cannot be.

    Raises:
        ScenarioError: If there is no report of such a suffix.
        AlreadyExists: If a file exists and ``force`` is off.
        StoreError: If its folder does not exist.
    """
    from tracetool.reports import REPORTS, report_for

    targets = []
    for path in output:
        report = report_for(path.name)
        if report is None:
            known = [suffix for name in REPORTS.names() for suffix in REPORTS.get(name).suffixes]
            raise ScenarioError(
                f"no report is written to {path.suffix or 'files without suffix'}: {path}.",
                hint=f"use one of {' '.join(known)}",
            )
        check_target(path, force=force)
        targets.append((path, report))
    return targets


def parse_counts(text: str) -> tuple[int, ...]:
    """Read ``2,2,0,0``.

    Raises:
        ScenarioError: If a part is no whole number.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(
            f"{text!r} is no list of whole numbers.", hint="write one per pipeline rank, as in 2,2,0,0"
        ) from None


_ARGUMENTS = {
    "as_json": "json", "copy_missing_ranks": "copy_missing", "no_interference": "interference",
    "schedule": "schedules", "time_limit": "time_limit_s",
}  # fmt: skip
"""What commands call otherwise than Python does."""


def flags_of(command: click.Command) -> dict[str, str]:
    """The flags of a command and of those below it, by the names of the arguments in Python.

    Args:
        command: Whose declarations say it.
    """
    flags: dict[str, str] = {}
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        flags |= flags_of(below)
    for option in (each for each in command.params if isinstance(each, click.Option)):
        name = option.name or ""
        flags[name] = flags[_ARGUMENTS.get(name, name)] = max(option.opts, key=len)
    return flags
