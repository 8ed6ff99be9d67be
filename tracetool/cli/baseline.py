"""tracetool baseline: a history of reports, and whether a figure has taken a step in it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tracetool.cli.output import (
    FORCE,
    JSON,
    QUIET,
    check_target,
    free_name,
    next_step,
    print_json,
    print_result,
    say_written,
    write_file,
)
from tracetool.errors import CheckFailed, ScenarioError

HISTORY = click.option(
    "--history",
    type=click.Path(path_type=Path),
    default=Path("tracetool-history.parquet"),
    show_default=True,
    metavar="FILE",
    help="The history: one small file, made to be kept in a repository.",
)


@click.group()
def baseline() -> None:
    """Keep reports in a history, and see whether a figure took a step.

    \b
    Example:
      tracetool baseline add report.json --label "$(git rev-parse --short HEAD)"
      tracetool baseline show step_ns -o trend.png
    """


@baseline.command()
@click.argument("report", type=click.Path(path_type=Path), metavar="REPORT.json")
@HISTORY
@click.option("--label", required=True, metavar="TEXT", help="What to call the entry: a commit, a date.")
@click.option("--at", metavar="TIME", help="When it was, as you write it; kept, not read.")
@QUIET
def add(report: Path, history: Path, label: str, at: str | None, *, quiet: bool) -> None:
    """Append a report (of tracetool replay --json) to the history.

    \b
    Example:
      tracetool baseline add report.json --label v1.2 --at 2026-11-28
    """
    from tracetool.baselines import add_report

    added = add_report(history, report, label=label, at=at)
    click.echo(f"{history}: entry {added[0].entry} ({label}), {len(added)} figures")
    next_step(f"tracetool baseline show --history {shlex.quote(str(history))}", quiet=quiet)


@baseline.command("list")
@HISTORY
@JSON
@QUIET
def list_entries(history: Path, *, as_json: bool, quiet: bool) -> None:
    """List the entries of the history.

    \b
    Example:
      tracetool baseline list --json
    """
    from tracetool.baselines import read_history
    from tracetool.reports.checks.trends import list_text

    values = read_history(history)
    if as_json:
        print_json(values)
        return
    click.echo(list_text(values, str(history)), nl=False)
    next_step(f"tracetool baseline show --history {shlex.quote(str(history))}", quiet=quiet)


@baseline.command()
@click.argument("metric", required=False)
@HISTORY
@click.option("--schedule", metavar="NAME", help="Only this one, as observed or geopipe.")
@click.option("--last", type=click.IntRange(2), default=20, show_default=True, metavar="N", help="Entries to look at.")
@click.option("--least-change", default="2%", show_default=True, metavar="2%", help="Smaller steps do not count.")
@click.option("--fail-on-step", is_flag=True, help="Exit with 1 if a figure took a certain step to the worse.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Draw the trends: .png, .svg or .pdf."
)
@FORCE
@JSON
@QUIET
def show(
    metric: str | None,
    history: Path,
    schedule: str | None,
    last: int,
    least_change: str,
    output: Path | None,
    *,
    fail_on_step: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the figures of the history as bars, and the last step each took.

    \b
    Examples:
      tracetool baseline show
      tracetool baseline show step_ns --schedule geopipe --fail-on-step
      tracetool baseline show bubble_ratio -o trend.png
    """
    from tracetool.baselines import read_history
    from tracetool.baselines.trends import trends
    from tracetool.reports.checks.trends import render_json, render_picture, render_text
    from tracetool.reports.picture import PICTURE_SUFFIXES
    from tracetool.units import parse_share_ratio

    if output is not None:
        if output.suffix.lower() not in PICTURE_SUFFIXES:
            raise ScenarioError(f"a trend is not drawn to {output}.", hint="use .png, .svg or .pdf")
        check_target(output, force=force)
    series = trends(
        read_history(history),
        metric=metric,
        schedule=schedule,
        last=last,
        least_change_ratio=parse_share_ratio(least_change),
    )
    if output is not None:
        write_file(output, render_picture(series, PICTURE_SUFFIXES[output.suffix.lower()]), force=force)
        say_written(output)
    print_result(render_json(series, str(history)).decode() if as_json else render_text(series, str(history)))
    if not as_json:
        words = ["baseline", "show", "step_ns", "--history", str(history), "-o", free_name("trend.png")]
        next_step(shlex.join(["tracetool", *words]), quiet=quiet)
    worse = [f"{trend.schedule} {trend.metric}" for trend in series if trend.is_regression]
    if fail_on_step and worse:
        raise CheckFailed(f"took a step to the worse: {', '.join(worse)}.")
