"""tracetool replay: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.equalize import report_stragglers
from tracetool.cli.output import FORCE, JSON, PATHS, QUIET, check_target, next_step, write_file
from tracetool.cli.question import Words, ask, question_options
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from typing import Unpack

    from tracetool.reports import Report


@click.command()
@PATHS
@click.option(
    "--schedule",
    default="observed",
    show_default=True,
    metavar="NAME,...",
    help="Schedules to replay; 'tracetool schedules' lists them; csv:FILE reads torch's CSV of actions.",
)
@question_options
@click.option(
    "--extra-forwards", metavar="N,N,...", help="geopipe: warm-up forwards per rank; default: chosen for you."
)
@click.option(
    "--chunks",
    type=click.IntRange(2, 64),
    metavar="V",
    help="Stages per rank to cut one into, for schedules of several (hanayo: twice the waves); default: 2.",
)
@click.option("--time-limit", metavar="30s", help="optimal: how long to search  [default: 30s]")
@click.option("--jitter", type=int, metavar="SEED", help="Also replay with costs drawn anew: p50 and p95 of the step.")
@click.option("--baseline", default="1f1b", show_default=True, metavar="NAME", help="Schedule to compare with.")
@click.option(
    "--equalize", is_flag=True, help="What stragglers cost: equalize all, then a kind, stage, pipeline, rank at a time."
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a report, its form by the suffix: .png .svg .pdf (the shortest result that fits), .json, .txt.",
)
@FORCE
@JSON
@QUIET
def replay(
    paths: tuple[Path, ...],
    schedule: str,
    extra_forwards: str | None,
    chunks: int | None,
    time_limit: str | None,
    jitter: int | None,
    baseline: str,
    output: tuple[Path, ...],
    *,
    equalize: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **words: Unpack[Words],
) -> None:
    """Replay a Run, or raw traces, under other schedules, links and memory limits.

    \b
    Examples:
      tracetool replay traces/ --schedule geopipe --dc 0-1,2-3 \\
          --link dc0-dc1=25Gbit/s,10ms --hbm 80GiB
      tracetool replay x.run --schedule 1f1b,gpipe,geopipe --json
      tracetool replay x.run --schedule geopipe -o gantt.png
      tracetool replay x.run --equalize
    """
    if equalize:
        report_stragglers(paths, words["step"], output, force=force, as_json=as_json, quiet=quiet)
        return
    from tracetool.cli.values import parse_counts, parse_names
    from tracetool.reports import REPORTS
    from tracetool.reports.gantt import shortest
    from tracetool.units import parse_duration_ns
    from tracetool.whatif import answer

    targets = _targets(output, force=force)
    names = parse_names(schedule)
    _check_names([*names, baseline])
    time_limit_s = None if time_limit is None else parse_duration_ns(time_limit) / 1e9
    question = ask(paths, words, quiet=quiet)
    result = answer(
        question.found,
        names,
        question.scenario,
        baseline=baseline,
        extra_forwards=parse_counts(extra_forwards) if extra_forwards else None,
        jitter_seed=jitter,
        chunks=chunks,
        time_limit_s=time_limit_s,
    )
    facts = question.facts()
    for path, report in targets:
        write_file(path, report.render(result, facts, path.suffix.lower()), force=force)
        drawn = f" ({shortest(result).schedule})" if report is REPORTS.get("gantt") else ""
        click.echo(f"wrote {path}{drawn}", err=True)
    form = REPORTS.get("json" if as_json else "text")
    click.echo(form.render(result, facts, "").decode(), nl=False)
    if not as_json:
        # The tables of a Run are of its first pipeline and usual step, without copies.
        elsewhere = words["copy_missing_ranks"] or words["pipeline"] or words["step"] is not None
        after = f"{facts.command} -o gantt.png"
        if targets:
            in_run = f'tracetool sql {shlex.quote(question.name)} "select * from step_breakdown"'
            after = f"{facts.command} --json" if elsewhere else in_run
        next_step(after, quiet=quiet)


def _targets(output: tuple[Path, ...], *, force: bool) -> list[tuple[Path, Report]]:
    """The reports to write, refused before the long work if they cannot be."""
    from tracetool.reports import report_for

    targets = []
    for path in output:
        report = report_for(path.suffix)
        if report is None:
            raise ScenarioError(
                f"no report is written to {path.suffix or 'files without suffix'}: {path}.",
                hint="use .png, .svg, .pdf, .json or .txt",
            )
        check_target(path, force=force)
        targets.append((path, report))
    return targets


def _check_names(names: list[str]) -> None:
    """Refuse schedules that there are not, and files that hold none, before the long work."""
    from tracetool.schedules import read_order
    from tracetool.schedules.names import schedule_name

    for name in names:
        if schedule_name(name).startswith("csv:"):
            read_order(name)
