"""tracetool schedules: which orders there are, and what one looks like."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import JSON, QUIET, VERBOSE, complete_schedules, following, next_step, print_json
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape

_MOST_ACTIONS = 1_000_000


@click.command()
@click.argument("name", required=False, shell_complete=complete_schedules)
@click.option(
    "--stages", type=click.IntRange(1, 1024), help="Pipeline ranks p (stages per chunk)  [default: 4; of csv its own]"
)
@click.option("--chunks", type=click.IntRange(1, 64), help="Stages per rank v  [default: as few as the schedule takes]")
@click.option("--microbatches", type=click.IntRange(1, 65536), help="Microbatches m  [default: 8; of csv its own]")
@click.option("--extra-forwards", metavar="N,N,...", help="geopipe: warm-up forwards per rank beyond 1F1B's.")
@click.option("--group", type=click.IntRange(1), help="interleaved: microbatches per turn of a chunk, as in Megatron.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the order in torch's CSV of actions.")
@VERBOSE
@JSON
@QUIET
def schedules(
    name: str | None,
    stages: int | None,
    chunks: int | None,
    microbatches: int | None,
    extra_forwards: str | None,
    group: int | None,
    *,
    verbose: bool,
    as_csv: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """List the schedules, or print the order of one.

    \b
    Example:
      tracetool schedules geopipe --stages 4 --microbatches 8 \\
          --extra-forwards 2,2,0,0
    """
    from tracetool.cli.output import parse_counts
    from tracetool.reports.lines import terminal_width
    from tracetool.schedules import build_schedule, tuning_of
    from tracetool.schedules.names import named_here, refuse_unheeded, schedule_name

    if name is None:
        _list(verbose=verbose, as_json=as_json, quiet=quiet)
        return
    if meant := named_here(name):
        click.echo(f"note: {meant}", err=True)
    name = schedule_name(name)
    if extra_forwards:
        refuse_unheeded("extra forwards", [name])
    if group:
        refuse_unheeded("group", [name])
    shape = _shape(name, stages, chunks, microbatches)
    extra = parse_counts(extra_forwards) if extra_forwards else None
    schedule = build_schedule(name, shape, extra_forwards=extra, group=group)
    if as_json:
        from tracetool.reports.recording.catalog import order_info

        print_json(order_info(schedule))
    elif as_csv:
        click.echo(schedule.to_csv(), nl=False)
    else:
        click.echo(schedule.grid(terminal_width()))
        tuning = tuning_of(name)
        if tuning is not None and not extra_forwards:
            click.echo(f"note: without --extra-forwards this is {tuning.untuned.upper()}'s order", err=True)
        next_step(following("schedules", "--csv"), quiet=quiet)


def _shape(name: str, stages: int | None, chunks: int | None, microbatches: int | None) -> PipelineShape:
    """The shape that was asked for; what was not is as a file has it, or small."""
    from tracetool.model.schedule import PipelineShape
    from tracetool.schedules import kind_of

    kind = kind_of(name)
    if kind.given is not None:
        own = kind.given.shape
        return PipelineShape(stages or own.ranks, microbatches or own.microbatches, chunks or own.chunks, own.placement)
    stages, microbatches = stages or 4, microbatches or 8
    if stages * microbatches > _MOST_ACTIONS:
        raise ScenarioError(
            f"{stages} stages x {microbatches} microbatches is too much to print.", hint="show a smaller one"
        )
    return PipelineShape(stages, microbatches, chunks or kind.least_chunks, kind.placement)


def _list(*, verbose: bool, as_json: bool, quiet: bool) -> None:
    """All schedules by a line each; or what each takes, gives and comes from."""
    from tracetool.reports.lines import terminal_width, wrapped
    from tracetool.reports.recording.catalog import schedule_infos

    kinds = schedule_infos()
    if as_json:
        print_json(kinds)
        return
    if not verbose:
        room = max(len(kind["name"]) for kind in kinds)
        lines = [f"{kind['name']:<{room}}  {kind['summary']}" for kind in kinds]
        lines.append(f"{'csv:FILE':<{room}}  an order in torch's CSV of actions")
        # A file or another program takes lines as they are; where it is as wide as something, that was set.
        is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        width = max(map(len, lines)) if is_wide else terminal_width()
        click.echo("\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines))
        next_step("tracetool schedules -v", quiet=quiet)
        return
    lines = [
        "p ranks, i the stage (of several on a rank: the rank), v stages per rank, m microbatches, f forward and b "
        "full backward time of a rank, c one-way delay of a link; in flight: microbatches whose activations a "
        "stage holds at most",
        "",
    ]
    for kind in kinds:
        lines += [f"{kind['name']}: {kind['summary']}"]
        lines += [f"    shape {kind['constraints']}; in flight {kind['in_flight']}"]
        lines += [f"    bubble {kind['bubble']}", f"    source: {kind['source']}"]
    click.echo("\n".join(wrapped(lines)))
    click.echo("csv:FILE: an order in torch's CSV of actions")
    next_step("tracetool schedules geopipe --stages 4 --microbatches 8 --extra-forwards 2,2,0,0", quiet=quiet)
