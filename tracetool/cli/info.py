"""tracetool info: what a Run holds, and what it lacks for what."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import JSON, PATHS, QUIET, ProgressBar, next_step, print_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@PATHS
@JSON
@QUIET
def info(paths: tuple[Path, ...], *, as_json: bool, quiet: bool) -> None:
    """Show what a Run (or raw traces) holds: ranks, steps, stages, and what is missing for what.

    \b
    Example:
      tracetool info x.run
    """
    from tracetool.cli.facts import next_command, run_summary, summary_lines
    from tracetool.reports.text import wrapped
    from tracetool.runs import open_run

    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress)
    summary = run_summary(run)
    if as_json:
        print_json(summary)
        return
    click.echo("\n".join(wrapped(summary_lines(summary))))
    named = shlex.join(str(p) for p in paths)
    next_step(next_command(named, summary), quiet=quiet)
