"""tracetool report: the whole answer as one HTML page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import (
    FORCE,
    JSON,
    PATHS,
    QUIET,
    ProgressBar,
    complete_schedules,
    following,
    free_name,
    next_step,
    report_targets,
    say_written,
    write_file,
)
from tracetool.cli.question import OFFERS, RUN_STEPS, Words, ask, question_options
from tracetool.cli.topology import refuse_offers
from tracetool.store import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from tracetool.advice import Decided
    from tracetool.cli.question import Question
    from tracetool.reports.html.page import Around


@click.command()
@PATHS
@click.option(
    "--schedule",
    shell_complete=complete_schedules,
    metavar="NAME,...",
    help="Schedules to compare; default: all that need no search. 'tracetool schedules' lists them.",
)
@question_options
@OFFERS
@RUN_STEPS
@click.option("--baseline", metavar="NAME", help="Schedule to compare with; default: the recorded order.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where to; default: x.html of x.run."
)
@FORCE
@JSON
@QUIET
def report(
    paths: tuple[Path, ...],
    schedule: str | None,
    offers: tuple[str, ...],
    run_steps: int | None,
    baseline: str | None,
    output: Path | None,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
    **words: Unpack[Words],
) -> None:
    """Write a page: which schedule is best, by how much, why, and how far to trust it.

    One file that needs no network; sliders try other links and limits. More options: 'tracetool replay ... -o
    report.html'.

    \b
    Examples:
      tracetool report x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms \\
          --hbm 80GiB -o report.html
      tracetool report x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms \\
          --or 100Gbit/s,10ms=9000EUR/month -o report.html
      tracetool report traces/ --schedule 1f1b,geopipe,csv:mine.csv
    """
    from tracetool.advice import decide
    from tracetool.reports.advice import sentences
    from tracetool.reports.answer.json import render_json, written_info
    from tracetool.reports.answer.verdict import near_lines, verdict
    from tracetool.reports.html.page import REPORT, advised_result, page
    from tracetool.schedules import parse_names
    from tracetool.schedules.names import check_schedules
    from tracetool.whatif.answer import answer
    from tracetool.whatif.best import default_schedules
    from tracetool.whatif.decision import without_fees

    path = output or default_name(paths)
    ((path, form),) = report_targets([path], force=force)
    names = None if schedule is None else parse_names(schedule)
    check_schedules([*(names or ()), *([] if baseline is None else [baseline])])
    refuse_offers(words["network"], offers)
    words["link"], fees = without_fees(words["link"])
    question = ask(paths, words, quiet=quiet)
    names = names or default_schedules(question.recording.pipeline.observed)
    with ProgressBar(quiet=quiet, doing="replaying", of="schedules") as progress:
        answered = answer(
            question.recording,
            names,
            question.scenario,
            baseline=baseline,
            pipelines=question.pipelines,
            progress=progress,
        )
    decided = None
    if offers or question.scenario.topology.is_joined:
        with ProgressBar(quiet=quiet, doing="replaying", of="scenarios") as progress:
            decided = decide(
                question.recording, question.scenario, offers, names, fee=fees, steps=run_steps, progress=progress
            )
    best = advised_result(answered, None if decided is None else decided.advice[0])
    if form is REPORT:
        on_network = question.scenario.topology.seating is not None
        around = None if decided is None or on_network else _around(question, decided, names, quiet=quiet)
        data = page(answered, question.facts(), decided=decided, around=around)
    else:
        data = form.render(answered, question.facts(), path.suffix.lower())
    write_file(path, data, force=force)
    headline = [verdict(answered, best).headline] if decided is None else sentences(decided.decision)
    if as_json:
        click.echo(render_json(written_info(answered, question.facts(), path, len(data), best, headline)), nl=False)
        return
    say_written(path, f"{len(data):,} bytes")
    click.echo("\n".join([*headline, *near_lines(answered)]))
    next_step(_after(question, path), quiet=quiet)


def _around(question: Question, decided: Decided, names: Sequence[str], *, quiet: bool) -> Around:
    """What other links and limits give."""
    from tracetool.reports.html.page import Around
    from tracetool.sweeps import sweep
    from tracetool.sweeps.asked import grid_around

    needs = [plan.needed_bytes for one in decided.advice for plan in one.asked.plans]
    grid = grid_around([one.scenario for one in decided.advice], names, [size for size in needs if size is not None])
    with ProgressBar(quiet=quiet, doing="replaying", of="points") as progress:
        # What the page names first for these links, its panel opens with.
        beside = {(o.best.schedule, o.best.p2p) for o in decided.decision.offers if o.best is not None}
        return Around(grid, sweep(question.recording, grid, progress=progress, knees=False, beside=beside))


def default_name(paths: tuple[Path, ...]) -> Path:
    """The page's name, by the Run or the traces: ``x.html`` in the current folder for ``runs/x.run``."""
    one = paths[0] if len(paths) == 1 else paths[0].parent
    name = one.resolve().name if is_local(one) else one.name
    return Path(f"{name.split('.')[0] or name.strip('.') or 'report'}.html")


def _after(question: Question, path: Path) -> str:
    """Without links the page answers only half of what it is for; with them, it is to be read."""
    ranks = len(question.recording.observed.global_ranks)
    if question.scenario.topology.is_joined or ranks < 2:
        return f"python3 -m webbrowser -t {shlex.quote(str(path))}"
    half = f"0-{ranks // 2 - 1},{ranks // 2}-{ranks - 1}"
    beside = free_name(str(path.with_name(f"{path.stem}-links{path.suffix}")))
    words = ["--dc", half, "--link", "dc0-dc1=25Gbit/s,10ms", "-o", beside]
    return following("report", *words, without={"dc", "link"})
