"""tracetool advise: which schedule to run over these links, what binds, and what more of it would buy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tracetool.cli.output import JSON, PATHS, QUIET, next_step
from tracetool.cli.question import Words, ask, question_options

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from tracetool.advise.plans import Plan


@click.command()
@PATHS
@click.option(
    "--schedule",
    metavar="NAME,...",
    help="Schedules to choose among; default: all but optimal. 'tracetool schedules' lists them.",
)
@question_options
@click.option("-v", "--verbose", is_flag=True, help="Also list every schedule tried, and those refused.")
@JSON
@QUIET
def advise(
    paths: tuple[Path, ...],
    schedule: str | None,
    *,
    verbose: bool,
    as_json: bool,
    quiet: bool,
    **words: Unpack[Words],
) -> None:
    """Say which schedule to run over a link, what binds, and what more would buy.

    Every schedule is replayed over the links, with transfers as the trace shows them and per edge. Recommended is the
    best of those whose predictions were compared with recorded steps; what may be better is listed apart.

    \b
    Examples:
      tracetool advise x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms --hbm 80GiB
      tracetool advise traces/ --dc 0-1,2-3 --link dc0-dc1=100Gbit/s,2ms --schedule 1f1b,geopipe --json
    """
    from tracetool.advise import advise as find_advice
    from tracetool.cli.values import parse_names
    from tracetool.reports.advice import render_json
    from tracetool.reports.advice_text import render_text
    from tracetool.schedules import SCHEDULES

    names = None if schedule is None else parse_names(schedule)
    for name in names or ():
        if not name.startswith("csv:"):
            SCHEDULES.get(name)
    question = ask(paths, words, quiet=quiet)
    advice = find_advice(question.found, question.scenario, names)
    facts = question.facts()
    if as_json:
        click.echo(render_json(advice, facts).decode(), nl=False)
        return
    click.echo(render_text(advice, facts, verbose=verbose).decode(), nl=False)
    next_step(_replay_of(advice.best or advice.asked.plans[0], question.name), quiet=quiet)


def _replay_of(plan: Plan, name: str) -> str:
    """The command that draws a plan, with the shared options that were given."""
    context = click.get_current_context()
    words = ["tracetool", "replay", name, "--schedule", plan.way.schedule]
    if plan.result.extra_forwards is not None:
        words += ["--extra-forwards", ",".join(map(str, plan.result.extra_forwards))]
    if plan.way.p2p is not None:
        words += ["--p2p", plan.way.p2p]
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if not given or option.name not in Words.__annotations__:
            continue
        value = context.params[option.name]
        if isinstance(option, click.Option) and option.is_flag:
            words.append(option.opts[0])
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [option.opts[0], str(each)]
    return f"{shlex.join(words)} -o gantt.png"
