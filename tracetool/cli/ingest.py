"""tracetool ingest: trace files to a Run."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tracetool.cli.output import FORCE, JSON, QUIET, ProgressBar, next_step, print_json


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACES...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new Run.")
@FORCE
@JSON
@QUIET
def ingest(paths: tuple[Path, ...], output: Path, *, force: bool, as_json: bool, quiet: bool) -> None:
    """Read trace files, or folders of them, into a Run.

    Takes torch.profiler (Kineto) JSON, plain or gzip, and torch_npu *_ascend_pt folders, by content.

    \b
    Example:
      tracetool ingest traces/rank*.json.gz -o x.run
    """
    from tracetool.cli.facts import run_summary, summary_lines
    from tracetool.reports.text import wrapped
    from tracetool.runs import make_run

    with ProgressBar(quiet=quiet) as progress:
        run = make_run(paths, output, force=force, progress=progress)
    summary = run_summary(run)
    if as_json:
        print_json(summary)
        return
    click.echo(f"wrote {output}")
    click.echo("\n".join(wrapped(summary_lines(summary))))
    next_step(f"tracetool replay {shlex.quote(str(output))} --schedule 1f1b,gpipe,geopipe", quiet=quiet)
