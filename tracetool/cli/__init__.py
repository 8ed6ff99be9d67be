"""The command line: a thin skin over the verbs, one file per command.

What --debug writes: what a bug report needs, and nothing that a trace holds.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import platform
import re
import signal
import sys
import tempfile
import traceback
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracetool.cli.advise import advise
from tracetool.cli.baseline import baseline
from tracetool.cli.compare import compare
from tracetool.cli.estimate import estimate
from tracetool.cli.explain import explain
from tracetool.cli.help import completion, config, print_help
from tracetool.cli.info import info
from tracetool.cli.ingest import ingest
from tracetool.cli.network import network
from tracetool.cli.output import flags_of
from tracetool.cli.overlap import overlap
from tracetool.cli.paper import paper
from tracetool.cli.question import named_paths
from tracetool.cli.replay import replay
from tracetool.cli.report import report
from tracetool.cli.schedules import schedules
from tracetool.cli.settings import heeding_settings, in_effect, leaves, set_where
from tracetool.cli.sql import sql
from tracetool.cli.sweep import sweep
from tracetool.cli.validate import validate
from tracetool.errors import TraceToolError, typed_as
from tracetool.version import __version__

if TYPE_CHECKING:
    from tracetool.store.run import Run

_signal: int | None = None
"""The signal that interrupted this process."""
_debugged: list[click.Context] = []
"""The call that --debug was typed for."""


def _note_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        _debugged.append(context)


_DEBUG = click.Option(
    ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=_note_debug,
    help="Also write what a bug report needs; no contents of traces.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tracetool")
def cli() -> None:
    """Replay distributed training traces under other pipeline schedules, links and memory limits.

    \b
    Start here:
      tracetool replay TRACES --schedule geopipe --dc 0-1,2-3 \\
          --link dc0-dc1=25Gbit/s,10ms --hbm 80GiB
      tracetool ingest TRACES -o x.run          tracetool info x.run
      tracetool help                            what numbers mean, what to record
    """
    click.get_current_context().with_resource(typed_as(flags_of(cli)))


for command in (
    ingest, info, replay, report, advise, sweep, estimate, explain, overlap, validate, compare, baseline, network,
    paper, sql, schedules, config, completion, print_help,
):  # fmt: skip
    cli.add_command(command)
for _, command in leaves(cli):
    if command not in (config, completion, print_help):
        heeding_settings(command)
        command.params = [*command.params, _DEBUG]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 a check failed, 2 could not run."""
    # Job schedulers end a process with SIGTERM: leaving by an exception removes what is half-written.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # A command makes millions of rows and hardly a cycle: looking for cycles as often as usual takes up to a quarter.
    gc.set_threshold(50_000, 20, 20)
    atexit.register(_leave)  # ahead of what else is registered, so that it is called last
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _leave() -> None:
    """End an interrupted process with the exit code that says so.

    Where an interruption met code that is made from text, as that of records is when a module is imported,
    ``python -m`` ends by SIGINT at last, though it was caught.
    """
    if _signal is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + _signal)


def _interrupt(number: int, _frame: object) -> None:
    global _signal  # noqa: PLW0603 - what interrupts the process is the process' own
    if _signal is None:
        # Only the first one: what follows must not interrupt the cleaning up.
        _signal = number
        raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code. A crash is 2, never 1: 1 means a failed check."""
    for stream in (sys.stdout, sys.stderr):
        # Names of files may be any bytes.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _debugged.clear()
    code, error = _answered(arguments)
    for context in _debugged:
        path = _write_bundle(context, arguments, code, error)
        click.echo(f"wrote {path}: read it, then add it to your report; it has no contents of traces", err=True)
    return code


def _answered(arguments: list[str]) -> tuple[int, BaseException | None]:
    try:
        result = cli.main(args=arguments, prog_name="tracetool", standalone_mode=False, obj=arguments)
    except SystemExit:
        # Click's answer where the reader of our output went away (as in `| head`): nobody is left to tell.
        return 0, None
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.BadParameter) and (where := set_where(error)):
            click.echo(f"Hint: it is set in {where}; --no-config ignores it", err=True)
        if isinstance(error, click.NoSuchOption) and (verbs := _verbs_with(error.option_name)):
            click.echo(f"Hint: {error.option_name} is an option of {', '.join(verbs)}", err=True)
        return 2, error
    except (click.exceptions.Abort, KeyboardInterrupt, Exception) as error:
        return _told(error), error
    return (result if isinstance(result, int) else 0), None


def _verbs_with(flag: str) -> list[str]:
    """The commands that have an option."""
    return [
        f"tracetool {name}"
        for name, command in cli.commands.items()
        if any(flag in option.opts for option in command.params)
    ]


def _fitting(message: str) -> str:
    """A message as wide as the terminal it is read on; grids in it, and what goes to a file, stay as they are."""
    if not sys.stderr.isatty():
        return message
    from tracetool.reports.answer.text import terminal_width, wrap

    width = terminal_width()
    lines = [[line] if line.startswith(" ") else wrap(line, width, "  ") for line in message.splitlines()]
    return "\n".join(part for of_line in lines for part in of_line)


def _told(error: BaseException) -> int:
    """Tell the user about an error on stderr; return the exit code."""
    if _signal is not None or isinstance(error, click.exceptions.Abort | KeyboardInterrupt):
        click.echo("Interrupted; nothing was left half-written.", err=True)
        return 128 + (_signal or signal.SIGINT)
    if isinstance(error, TraceToolError | OSError):
        message, hint = (error.message, error.hint) if isinstance(error, TraceToolError) else (str(error), None)
        click.echo(click.style("Error:", fg="red", bold=True) + _fitting(f"Error: {message}")[6:], err=True)
        if hint:
            click.echo(_fitting(f"Hint: {hint}"), err=True)
        return error.exit_code if isinstance(error, TraceToolError) else 2
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="tracetool-", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"Unexpected error: {type(error).__name__}: {error}", err=True)
    again = "report the file below" if _debugged else "run it again with --debug, and report the file that it writes"
    click.echo(f"This is a bug in tracetool {__version__}: {again} (traceback: {file.name})", err=True)
    return 2


_INPUTS = ("paths", "run", "also", "costs_from", "memory_from", "base", "new", "runs")
_PIECES = re.compile(r"([,;=*]|->|\.\.)")
_PLAIN = re.compile(
    r"[<>]?[+-]?[\d.]+(?:-\d+)?\s?(?:[kKMGTP]i?)?(?:bit/s|bps|B/s|B|ns|us|ms|s|km|%)?|dc\d+(?:-dc\d+)?|", re.ASCII
)


def _write_bundle(context: click.Context, arguments: list[str], code: int, error: BaseException | None) -> Path:
    """Write what is known of a call: versions, words, the error's way and sizes; no names that a trace could hold."""
    words = [*arguments, *(word for one in in_effect(context) for word in one.words)]
    bundle = {
        "versions": _versions(),
        "command": _shortened(context, words),
        "exit": code,
        "error": None if error is None else _way(error),
        "inputs": [_input(context, path) for path in _inputs(context)],
    }
    text = json.dumps(bundle, indent=2, default=str) + "\n"
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else None
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="tracetool-debug-", suffix=".json", dir=folder, delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def _versions() -> dict[str, str]:
    found = {"tracetool": __version__, "python": platform.python_version(), "platform": platform.platform()}
    try:
        names = [re.split(r"[^\w.-]", line)[0] for line in metadata.requires("tracetool") or () if "extra" not in line]
    except metadata.PackageNotFoundError:
        names = []
    found |= {name: metadata.version(name) for name in names}
    chosen = {name: os.environ.get(name, "") for name in ("TRACETOOL_ENGINE", "TRACETOOL_SCANNER")}
    return found | {name: value for name, value in chosen.items() if value in ("plain", "compiled")}


def _shortened(context: click.Context, words: list[str]) -> str:
    """A command line: options, quantities and names of ours as typed, anything else by its kind alone."""
    from tracetool.model.pipeline import P2P_MODES
    from tracetool.schedules import SCHEDULES

    ours = {*context.command_path.split(), *SCHEDULES.names(), *P2P_MODES, "auto"}
    flags = {flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)}

    def piece(text: str) -> str:
        if text in ours or _PLAIN.fullmatch(text) or _PIECES.fullmatch(text):
            return text
        return "PATH" if "/" in text or Path(text).exists() else "TEXT"

    def shown(word: str) -> str:
        flag, equals, value = word.partition("=")
        if flag in flags:
            return flag + equals + (shown(value) if value else "")
        return "".join(map(piece, _PIECES.split(word)))

    return " ".join(["tracetool", *map(shown, words)])


def _way(error: BaseException) -> list[dict[str, Any]]:
    """Where an error and those that it came of were raised; what they say may name kernels, so that stays out."""
    found = []
    each: BaseException | None = error
    while each is not None:
        frames = traceback.extract_tb(each.__traceback__)
        places = [f"{_module(Path(one.filename))}:{one.lineno} in {one.name}" for one in frames]
        found.append({"type": type(each).__name__, "frames": places})
        each = each.__cause__ or each.__context__
    return found


def _module(path: Path) -> str:
    """A source file without the folders that it was installed below."""
    folders = [Path(__file__).parents[2], *(folder for folder in path.parents if folder.name == "site-packages")]
    return next((str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder)), path.name)


def _inputs(context: click.Context) -> list[list[Path]]:
    """The recordings that a call named."""
    found: list[list[Path]] = []
    for name in _INPUTS:
        value = context.params.get(name)
        if isinstance(value, str):
            found += [[path] for _, path in named_paths(value)]
        elif isinstance(value, Path):
            found.append([value])
        elif value:
            found.append(list(value))
    return found


def _input(context: click.Context, paths: list[Path]) -> dict[str, Any]:
    """How large a recording is, what was read and reconstructed of it: numbers, and words that are ours."""
    from tracetool.ingestion.runs import open_run
    from tracetool.reconstruction import reconstruct

    kinds = Counter("folder" if path.is_dir() else "file" if path.exists() else "absent" for path in paths)
    found: dict[str, Any] = {"given": kinds}
    copied = bool(context.params.get("copy_missing_ranks"))
    try:
        run = open_run(paths)
        found |= {"tables": _tables(run), "sources": [_source(source) for source in run.manifest["sources"]]}
        made = reconstruct(run, step=context.params.get("step"), copy_missing=copied)
        shape = made.pipeline.observed.shape
        found["shape"] = {"ranks": shape.ranks, "microbatches": shape.microbatches, "chunks": shape.chunks}
        found["notices"] = Counter(note.code.name for note in made.notes)
    except Exception as error:
        found["error"] = _way(error)
    return found


def _tables(run: Run) -> dict[str, dict[str, int]]:
    """Rows and bytes of a Run's tables."""
    from pyarrow import parquet

    from tracetool.tables.run import TABLES

    parts = {name: sorted((run.path / name).glob("*.parquet")) for name in TABLES}
    return {
        name: {
            "rows": sum(parquet.read_metadata(p).num_rows for p in files),
            "bytes": sum(p.stat().st_size for p in files),
        }
        for name, files in parts.items()
    }


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """How a trace was read: counts without the reasons, which may name what it holds."""
    counts = {key: sum(source[key].values()) for key in ("dropped", "repaired", "skipped")}
    return {
        "reader": source["reader"],
        "failed": source["failure"] is not None,
        "notes": len(source["notes"]),
        **counts,
    }
