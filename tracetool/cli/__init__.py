"""The command line: a thin skin over the verbs, one file per command."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys

import click

from tracetool.cli.advise import advise
from tracetool.cli.baseline import baseline
from tracetool.cli.compare import compare
from tracetool.cli.debug import DEBUG, debugged, write_bundle
from tracetool.cli.estimate import estimate
from tracetool.cli.explain import explain
from tracetool.cli.explore import explore
from tracetool.cli.help import completion, config, print_help
from tracetool.cli.info import info
from tracetool.cli.ingest import ingest
from tracetool.cli.network import network
from tracetool.cli.output import flags_of
from tracetool.cli.overlap import overlap
from tracetool.cli.paper import paper
from tracetool.cli.replay import replay
from tracetool.cli.report import report
from tracetool.cli.schedules import schedules
from tracetool.cli.set_options import leaves
from tracetool.cli.settings import heeding_settings, set_where
from tracetool.cli.sql import sql
from tracetool.cli.sweep import sweep
from tracetool.cli.validate import validate
from tracetool.errors import TraceToolError, typed_as
from tracetool.tables import RARELY, leave_pandas
from tracetool.version import VERSION_LINE, __version__

_signal: int | None = None
"""The signal that interrupted this process."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message=VERSION_LINE)
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
    ingest, info, replay, report, advise, sweep, estimate, explore, explain, overlap, validate, compare, baseline,
    network, paper, sql, schedules, config, completion, print_help,
):  # fmt: skip
    cli.add_command(command)
for _, command in leaves(cli):
    if command not in (config, completion, print_help):
        heeding_settings(command)
        command.params = [*command.params, DEBUG]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 a check failed, 2 could not run."""
    # Job schedulers end a process with SIGTERM: leaving by an exception removes what is half-written.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    gc.set_threshold(*RARELY)
    leave_pandas()
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
    debugged.clear()
    code, error = _answered(arguments)
    for context in debugged:
        path = write_bundle(context, arguments, code, error)
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
        return _print_error(error), error
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
    from tracetool.reports.lines import terminal_width, wrap

    width = terminal_width()
    lines = [[line] if line.startswith(" ") else wrap(line, width, "  ") for line in message.splitlines()]
    return "\n".join(part for of_line in lines for part in of_line)


def _print_error(error: BaseException) -> int:
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
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="tracetool-", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"Unexpected error: {type(error).__name__}: {error}", err=True)
    again = "report the file below" if debugged else "run it again with --debug, and report the file that it writes"
    click.echo(f"This is a bug in tracetool {__version__}: {again} (traceback: {file.name})", err=True)
    return 2
