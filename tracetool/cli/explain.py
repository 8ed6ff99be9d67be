"""tracetool explain: why does a step take as long as it does, and what would removing each cause give?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tracetool.cli.layers import WAYS_HELP, one_way, overlapping
from tracetool.cli.output import (
    JSON,
    PATHS,
    QUIET,
    VERBOSE,
    ProgressBar,
    complete_schedules,
    following,
    free_name,
    next_step,
)
from tracetool.cli.question import CHUNKS, EXTRA_FORWARDS, TIME_LIMIT, Words, ask, question_options

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack


@click.command()
@PATHS
@click.option(
    "--schedule",
    shell_complete=complete_schedules,
    metavar="NAME",
    help="Schedule to explain; default: the observed order, as it was recorded or over the links given.",
)
@question_options
@EXTRA_FORWARDS
@CHUNKS
@TIME_LIMIT
@click.option(
    "--overlap",
    metavar="WAY",
    help=f"Explain the step with layers that overlap, and what is in the way of that: {WAYS_HELP}.",
)
@VERBOSE
@JSON
@QUIET
def explain(
    paths: tuple[Path, ...],
    schedule: str | None,
    extra_forwards: str | None,
    chunks: int | None,
    time_limit: str | None,
    overlap: str | None,
    *,
    verbose: bool,
    as_json: bool,
    quiet: bool,
    **words: Unpack[Words],
) -> None:
    """Explain a step: its critical path, why ranks idle, and what removing each cause would give (replayed).

    \b
    Examples:
      tracetool explain x.run
      tracetool explain x.run --schedule 1f1b --dc 0-1,2-3 \\
          --link dc0-dc1=25Gbit/s,10ms
      tracetool explain x.run --schedule geopipe --dc 0-1,2-3 \\
          --link dc0-dc1=25Gbit/s,10ms --hbm 16GiB --json
    """
    from tracetool.cli.output import parse_counts
    from tracetool.errors import ScheduleError
    from tracetool.explanation import explain as why
    from tracetool.reconstruction.job import slow_ranks
    from tracetool.reports.explanation.json import render_json
    from tracetool.reports.explanation.text import render_text
    from tracetool.reports.lines import terminal_width
    from tracetool.schedules import parse_names
    from tracetool.schedules.names import check_schedules
    from tracetool.units import parse_duration_ns

    time_limit_s = None if time_limit is None else parse_duration_ns(time_limit) / 1e9
    if schedule is not None:
        if len(several := parse_names(schedule)) > 1:
            raise ScheduleError(
                f"explain takes one schedule, got {len(several)}: {schedule}.",
                hint=f"one at a time, as in --schedule {several[0]}; 'tracetool replay' puts several side by side",
            )
        (schedule,) = check_schedules(parse_names(schedule))
    way = one_way(overlap)
    question = ask(paths, words, quiet=quiet, shapes=way is not None)
    with ProgressBar(quiet=quiet, doing="replaying", of="replays") as progress:
        explained = why(
            overlapping(question, way, explained=True),
            schedule,
            question.scenario,
            extra_forwards=parse_counts(extra_forwards) if extra_forwards else None,
            chunks=chunks,
            time_limit_s=time_limit_s,
            progress=progress,
        )
    facts = question.facts()
    width = terminal_width()
    form = render_json(explained, facts) if as_json else render_text(explained, facts, width, verbose=verbose)
    click.echo(form.decode(), nl=False)
    if not as_json:
        slow = slow_ranks(question.run)
        costs = shlex.join(["tracetool", "replay", *map(str, paths), "--equalize"])
        what_next = following("replay", "-o", free_name("gantt.png"))
        next_step(f"{costs}  # what rank {slow[0].rank} costs" if slow else what_next, quiet=quiet)
