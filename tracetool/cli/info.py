"""tracetool info: what a Run holds, and what it lacks for what."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import JSON, PATHS, QUIET, VERBOSE, ProgressBar, next_step, print_json
from tracetool.cli.topology import DC

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@PATHS
@DC
@VERBOSE
@JSON
@QUIET
def info(paths: tuple[Path, ...], dc: str | None, *, verbose: bool, as_json: bool, quiet: bool) -> None:
    """Show what a Run (or raw traces) holds: its step, schedule, stages, memory, and what is missing for what.

    With a map of data centres, also what crosses them in a step.

    \b
    Examples:
      tracetool info x.run
      tracetool info x.run --dc 0-1,2-3
      tracetool info x.run --dc map.csv --json
    """
    from tracetool.cli.facts import crossing_facts, crossing_lines, next_command, screen_lines, summary_lines
    from tracetool.ingestion.runs import open_run
    from tracetool.reports.lines import wrapped
    from tracetool.reports.recording.summary import run_summary
    from tracetool.whatif.wording import read_dc_map

    dc_map = read_dc_map(dc) if dc else None
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress)
    summary = run_summary(run)
    crossing = crossing_facts(run, dc_map) if dc_map is not None else None
    summary["cross_dc"] = crossing
    if as_json:
        print_json(summary)
        return
    if verbose:
        lines = [*summary_lines(summary, run), *(crossing_lines(crossing) if crossing is not None else [])]
    else:
        lines = screen_lines(summary, run)
    click.echo("\n".join(wrapped(lines)))
    named = shlex.join(str(p) for p in paths)
    next_step(next_command(named, run, summary, dc), quiet=quiet)
