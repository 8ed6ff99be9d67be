"""tracetool compare: what changed between two recordings, is it certain, and why?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tracetool.cli.output import (
    FORCE,
    QUIET,
    VERBOSE,
    ProgressBar,
    check_target,
    following,
    free_name,
    next_step,
    path_or_url,
    print_result,
    say_written,
    write_file,
)
from tracetool.cli.question import command_line, named_paths
from tracetool.errors import CheckFailed, ScenarioError

if TYPE_CHECKING:
    from tracetool.comparison import Comparison
    from tracetool.reports.comparison.forms import Form
    from tracetool.store.run import Run


@click.command()
@click.argument("base", metavar="BASE[,...]")
@click.argument("new", metavar="NEW[,...]")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="'step_ns>+3%'",
    help="Limit: a change ('bubble_ratio>+2%', 'step_ns>+5ms') or a value ('step_ns>400ms'). Repeatable. Without any, "
    "whatever regressed fails; of a shorter step, two schedules or other slow ranks, only the step and the peak.",
)
@click.option("--least-change", metavar="2%", default="2%", show_default=True, help="Least change that counts.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    help="Of the rank test: chance at which it calls equal sets different.",
)
@click.option("--accept", is_flag=True, help="Of the same traces: other results are meant (the tool has changed).")
@click.option("--informational/--no-informational", help="Exit with 0 even where the comparison fails.")
@click.option("--allow-inconclusive/--no-allow-inconclusive", help="Let limits pass that too few steps can tell.")
@click.option(
    "--format",
    "form",
    metavar="FORM",
    help="Of what is printed: text (default), markdown, json, junit, github, benchmark-action or html.",
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="[FORM:]FILE",
    help="Write it there as well, in the form of the suffix (.txt, .md, .json, .xml; with both timelines .html, .png, "
    ".svg, .pdf) or as named (github:FILE). Repeatable.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(500),
    default=64_000,
    show_default=True,
    help="Greatest size of Markdown: a comment takes 64 kB, a job summary 1 MiB.",
)
@click.option(
    "--pipeline",
    type=click.IntRange(0),
    metavar="N",
    help="Which of several pipelines, of Runs; default: the slowest, which sets the step, of each side.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@FORCE
@VERBOSE
@QUIET
def compare(
    base: str,
    new: str,
    fail_on: tuple[str, ...],
    least_change: str,
    alpha: float,
    form: str | None,
    output: tuple[str, ...],
    max_bytes: int,
    pipeline: int | None,
    *,
    accept: bool,
    informational: bool,
    allow_inconclusive: bool,
    as_json: bool,
    force: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Compare Runs, raw traces or reports (of replay --json), or several of each: what changed, and why.

    Steps of other traces are held against each other with a rank test and a least change; of the same traces every
    number must be the same. Exits with 1 if anything regressed (of a shorter step, two schedules or other slow ranks,
    the step or the peak), or a limit is exceeded or cannot be told.

    \b
    Examples:
      tracetool compare base.run new.run
      tracetool compare a.run,b.run new.run --fail-on 'bubble_ratio>+2%' \\
          --fail-on 'step_ns>400ms'
      tracetool compare base.json traces/ --format github -o summary.md \\
          -o junit.xml
    """
    from tracetool.comparison import compare as held_against
    from tracetool.comparison.limits import parse_limit
    from tracetool.comparison.sides import sides_of
    from tracetool.comparison.verdict import Rules
    from tracetool.reports import CallFacts
    from tracetool.reports.comparison.forms import form_named
    from tracetool.reports.comparison.text import render_text
    from tracetool.units import parse_share_ratio
    from tracetool.version import __version__

    printed = form_named("json" if as_json else form or "text")
    if not printed.is_text:
        raise ScenarioError(f"a picture is not printed: {printed.name}.", hint=f"write it, as in -o x.{printed.name}")
    targets = [_target(each, force=force) for each in output]
    for target in targets:
        if sum(target.path == other.path for other in targets) > 1:
            raise ScenarioError(f"-o names {target.path} twice.", hint="give each form a file of its own")
    limits = [parse_limit(text) for text in fail_on]
    rules = Rules(alpha, parse_share_ratio(least_change))
    items = [_items(side, quiet=quiet) for side in (base, new)]
    done = held_against(
        *sides_of(*items, pipeline=pipeline),
        rules=rules, limits=limits, accept=accept, allow_inconclusive=allow_inconclusive, informational=informational,
    )  # fmt: skip
    if accept and done.gate == "workload":
        click.echo("note: --accept is for other results of the same traces; these are other traces", err=True)
    facts = CallFacts(__version__, command_line())
    for target in targets:
        write_file(target.path, target.form.render(done, facts, max_bytes), force=force)
        say_written(target.path)
    if printed.name != "text":
        print_result(printed.render(done, facts, max_bytes).decode())
    else:
        print_result(render_text(done, facts, verbose=verbose).decode())
        next_step(_next(base, new, done), quiet=quiet)
    _close(done)


class _Target(NamedTuple):
    form: Form
    path: Path


def _target(text: str, *, force: bool) -> _Target:
    """What to write where, refused before the long work if it cannot be."""
    from tracetool.reports.comparison.forms import FORMS, form_named, form_of_suffix

    name, colon, rest = text.partition(":")
    path = Path(rest if colon and name in FORMS else text)
    form = form_named(name) if colon and name in FORMS else form_of_suffix(path.suffix)
    if form is None:
        known = [suffix for each in FORMS.values() for suffix in each.suffixes]
        raise ScenarioError(
            f"no form is written to {path.suffix or 'files without suffix'}: {text}.",
            hint=f"use {' '.join(known)}, or name the form ahead: {', '.join(f'{n}:FILE' for n in FORMS)}",
        )
    check_target(path, force=force)
    return _Target(form, path)


def _items(text: str, *, quiet: bool) -> list[tuple[str, Run | Path]]:
    """What a side names."""
    from tracetool.comparison.sides import is_report
    from tracetool.ingestion.runs import open_run

    with ProgressBar(quiet=quiet) as progress:
        return [
            (name or str(path), path if is_report(path) else open_run([path], progress))
            for name, path in named_paths(text)
        ]


def _next(base: str, new: str, done: Comparison) -> str:
    if done.gate == "tool" and done.drifted and not done.accepted:
        return following("compare", "--accept")
    if all(path_or_url(side).is_dir() for side in (base, new)):
        return shlex.join(["tracetool", "explain", new])
    # What failed fails again, but for the file.
    closed = ["--informational"] if done.failures and not done.informational else []
    return following("compare", "-o", free_name("comparison.md"), *closed)


def _close(done: Comparison) -> None:
    """Fail where the gate is closed."""
    if not done.failures:
        return
    failures = "; ".join(done.failures)
    if done.informational:
        click.echo(f"informational: {failures}", err=True)
        return
    hint = None
    if done.gate == "tool" and (done.drifted or done.figures) and not done.accepted:
        hint = "--accept if the tool has changed on purpose"
    elif done.apart:
        hint = "compare with a baseline of the same replay and work, or --allow-inconclusive"
    elif any(check.outcome == "inconclusive" and check.line is None for check in done.checks):
        hint = "record it on both sides (memory: profile_memory=True), or leave the limit out"
    elif done.is_of_other_ranks and any(check.outcome == "inconclusive" for check in done.checks):
        hint = "limit the step, for parts are of other ranks than in the base; or --allow-inconclusive"
    elif any(check.outcome == "inconclusive" for check in done.checks):
        hint = "record more steps (5 of each side can tell), or --allow-inconclusive"
    raise CheckFailed(f"{failures}.", hint=hint)
