"""tracetool replay: what would other schedules take over these links, within this memory?

tracetool replay --chakra: a folder of execution traces for simulators.

tracetool replay --equalize: what would the step take without stragglers, and which of them costs most?
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.layers import WAYS_HELP, one_way, overlapping
from tracetool.cli.output import (
    FORCE,
    JSON,
    PATHS,
    QUIET,
    VERBOSE,
    ProgressBar,
    check_target,
    complete_schedules,
    following,
    free_name,
    is_given,
    next_step,
    report_targets,
    say_written,
    write_file,
)
from tracetool.cli.question import (
    CHUNKS,
    EXTRA_FORWARDS,
    TIME_LIMIT,
    Words,
    ask,
    command_line,
    question_options,
)
from tracetool.cli.settings import alone
from tracetool.errors import AlreadyExists, ScenarioError, StoreError
from tracetool.model.schedule import OBSERVED

if TYPE_CHECKING:
    from typing import Unpack

    from tracetool.whatif.results import Answer


def check_chakra(folder: Path, *, force: bool) -> None:
    """Refuse a folder before the long work starts.

    Raises:
        MissingPackage: If Chakra's package is not installed.
        AlreadyExists: If it exists and is not empty, and ``force`` is off.
        StoreError: If it cannot be made.
    """
    from tracetool.reports.export.chakra import load_schema

    load_schema()
    if folder.exists() and not folder.is_dir():
        raise AlreadyExists(f"{folder} is a file.", hint="name a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise AlreadyExists(f"{folder} exists and is not empty.", hint="add --force to write into it")
    if not folder.parent.is_dir():
        raise StoreError(f"there is no folder {folder.parent}.", hint="create it first")


def write_chakra(result: Answer, folder: Path, *, force: bool) -> None:
    """Write the shortest result that fits: one file per pipeline rank, named as ASTRA-sim wants them."""
    from tracetool.reports.export.chakra import execution_traces
    from tracetool.reports.gantt.picture import drawn_result

    chosen = drawn_result(result)
    traces = execution_traces(chosen.timeline)
    name = re.sub(r"[^\w-]+", "-", chosen.schedule).strip("-")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"could not make the folder {folder}: {error}.") from error
    for rank, trace in enumerate(traces):
        write_file(folder / f"{name}.{rank}.et", trace, force=force)
    say_written(f"{folder / name}.*.et", f"{len(traces)} ranks, {chosen.schedule}")


def _drawn(result: Answer) -> str:
    """The schedule that a picture shows."""
    from tracetool.reports.gantt.picture import drawn_result

    return drawn_result(result).schedule


_TAKEN = frozenset({"paths", "step", "output", "equalize", "force", "as_json", "quiet", "verbose"})


def report_stragglers(
    paths: tuple[Path, ...],
    step: int | None,
    output: tuple[Path, ...],
    *,
    verbose: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Equalize a Run or raw traces, print the report and write it to files.

    Args:
        paths: The Run, or the traces.
        step: Only this step.
        output: Reports to write: .json or .txt.
        verbose: Whether to print everything, not one screen of it.
        force: Whether to replace them.
        as_json: Whether to print JSON.
        quiet: Whether to print no progress and no hint.

    Raises:
        ScenarioError: If another what-if was asked for as well, or a report has no such form.
        TraceToolError: If the Run cannot be read or holds no pipeline.
    """
    from tracetool.ingestion.runs import open_run
    from tracetool.reports import run_facts
    from tracetool.reports.checks.stragglers import render_json, render_text
    from tracetool.stragglers import find_stragglers

    _refuse_others()
    forms = {".json": render_json, ".txt": render_text}
    for path in output:
        if path.suffix.lower() not in forms:
            raise ScenarioError(
                f"what stragglers cost is not written to {path.suffix or 'files without suffix'}: {path}.",
                hint="use .json or .txt",
            )
        check_target(path, force=force)
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress)
    with ProgressBar(quiet=quiet, doing="equalizing", of="steps") as progress:
        result = find_stragglers(run, step, progress)
    named = " ".join(str(p) for p in paths)
    facts = run_facts(named, run.manifest, command_line())
    for path in output:
        write_file(path, forms[path.suffix.lower()](result, facts), force=force)
        say_written(path)
    form = render_json(result, facts) if as_json else render_text(result, facts, verbose=verbose)
    click.echo(form.decode(), nl=False)
    if not as_json:
        longest = max(result.steps, key=lambda s: (s.measured_ns, -s.number))
        after = following("replay", "-o", free_name("gantt.png"), without={"step", "equalize"})
        if len(result.steps) > 1:
            after = following("replay", "--step", str(longest.number), without={"step"})
            after += "  # the longest, by averages of that step alone"
        next_step(after, quiet=quiet)


def _refuse_others() -> None:
    """Equalizing is a what-if of its own: the observed order of all pipelines, as measured."""
    context = click.get_current_context()
    given = [
        option.opts[-1]
        for option in context.command.params
        if option.name not in _TAKEN and is_given(context, option.name)
    ]
    if given:
        raise ScenarioError(
            f"--equalize replays the observed order of all pipelines as measured: it does not go with "
            f"{', '.join(given)}.",
            hint="leave them out; --step chooses a step",
        )


@click.command()
@PATHS
@click.option(
    "--schedule",
    shell_complete=complete_schedules,
    default=OBSERVED,
    show_default=True,
    metavar="NAME,...",
    help="Schedules to replay; 'tracetool schedules' lists them; csv:FILE reads torch's CSV of actions.",
)
@question_options
@EXTRA_FORWARDS
@CHUNKS
@TIME_LIMIT
@click.option(
    "--overlap",
    metavar="WAY",
    help=f"How layers overlap their collectives and matrix products: {WAYS_HELP}; default: none, as recorded.",
)
@click.option(
    "--each-step",
    is_flag=True,
    help="Also replay by each recorded step (eight at most), so that tracetool compare can test what is replayed.",
)
@click.option("--jitter", type=int, metavar="SEED", help="Also replay with costs drawn anew: p50 and p95 of the step.")
@click.option("--baseline", metavar="NAME", help="Schedule to compare with; default: the recorded order.")
@click.option(
    "--equalize",
    is_flag=True,
    callback=alone(*_TAKEN),
    help="What stragglers cost: equalize all, then a kind, stage, pipeline, rank at a time.",
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a report, its form by the suffix: .html, .png .svg .pdf (what to run of the results), "
    ".perfetto.json .perfetto.json.gz (all timelines, for ui.perfetto.dev), .json, .txt.",
)
@click.option(
    "--chakra",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write what to run of the results as Chakra execution traces, a file per rank, for simulators.",
)
@click.option(
    "--run",
    "run_target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write a Run with the replayed timelines beside the observed one, for tracetool sql.",
)
@FORCE
@VERBOSE
@JSON
@QUIET
def replay(
    paths: tuple[Path, ...],
    schedule: str,
    extra_forwards: str | None,
    chunks: int | None,
    time_limit: str | None,
    jitter: int | None,
    baseline: str | None,
    overlap: str | None,
    output: tuple[Path, ...],
    chakra: Path | None,
    run_target: Path | None,
    *,
    each_step: bool,
    equalize: bool,
    force: bool,
    verbose: bool,
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
      tracetool replay x.run --schedule geopipe,gpipe --run what-if.run
      tracetool replay x.run --equalize
    """
    if equalize:
        report_stragglers(paths, words["step"], output, verbose=verbose, force=force, as_json=as_json, quiet=quiet)
        return
    from tracetool.cli.output import parse_counts
    from tracetool.reports import REPORTS
    from tracetool.reports.answer.verdict import screen
    from tracetool.schedules import parse_names
    from tracetool.schedules.names import check_schedules
    from tracetool.units import parse_duration_ns
    from tracetool.whatif.answer import answer

    targets = report_targets(output, force=force)
    if chakra is not None:
        check_chakra(chakra, force=force)
    # The tables of a Run are of its first pipeline and usual step, without copies.
    elsewhere = bool(words["copy_missing_ranks"] or words["pipeline"] or words["step"] is not None)
    if run_target is not None and elsewhere:
        raise ScenarioError(
            "--run: the other tables of a Run are of its first pipeline and usual step, without copies.",
            hint="leave out --step, --pipeline and --copy-missing-ranks",
        )
    names = parse_names(schedule)
    check_schedules([*names, *([] if baseline is None else [baseline])])
    time_limit_s = None if time_limit is None else parse_duration_ns(time_limit) / 1e9
    way = one_way(overlap)
    if way is not None and each_step:
        raise ScenarioError("--each-step replays steps as they were.", hint="leave out --overlap or --each-step")
    question = ask(paths, words, quiet=quiet, shapes=way is not None)
    recording = overlapping(question, way)
    with ProgressBar(quiet=quiet, doing="replaying", of="schedules") as progress:
        result = answer(
            recording,
            names,
            question.scenario,
            baseline=baseline,
            extra_forwards=parse_counts(extra_forwards) if extra_forwards else None,
            jitter_seed=jitter,
            chunks=chunks,
            time_limit_s=time_limit_s,
            each_step=question.each_step() if each_step else (),
            pipelines=question.pipelines,
            progress=progress,
        )
    facts = question.facts(recorded=as_json or any(form is REPORTS.get("json") for _, form in targets))
    for path, report in targets:
        write_file(path, report.render(result, facts, path.suffix.lower()), force=force)
        say_written(path, _drawn(result) if report is REPORTS.get("gantt") else "")
    if chakra is not None:
        write_chakra(result, chakra, force=force)
    if run_target is not None:
        from tracetool.reports.recording.replayed_run import write_replayed_run

        names = write_replayed_run(result, question.run, run_target, facts.command, force=force)
        say_written(run_target, f"timelines observed, {', '.join(names)}")
    in_full = REPORTS.get("json" if as_json else "text").render(result, facts, "") if as_json or verbose else None
    text = (screen(result) if in_full is None else in_full).decode()
    click.echo(text, nl=False)
    if not as_json:
        if sys.stdout.isatty() and not quiet:
            _show_gantt(result, 0 if verbose else text.count("\n") + _LINES_AFTER)
        after = following("replay", "-o", free_name("gantt.png"))
        if run_target is not None:
            after = f'tracetool sql {shlex.quote(str(run_target))} "select * from schedule_comparison"'
        elif targets:
            in_run = shlex.join(["tracetool", "sql", *map(str, paths), "select * from step_breakdown"])
            after = following("explain", without={"schedule"}) if elsewhere or len(paths) > 1 else in_run
        next_step(after, quiet=quiet)


_LINES_AFTER = 5
"""What stands after the picture: a blank line, the next command and the prompt."""


def _show_gantt(result: Answer, taken: int) -> None:
    """Draw the schedules on the terminal, where that scrolls no answer away; rich knows NO_COLOR and dumb terminals."""
    from rich.console import Console

    from tracetool.reports.gantt.terminal import render
    from tracetool.reports.lines import terminal_width

    terminal = Console()
    colour = terminal.color_system is not None and not terminal.no_color
    picture = "\n" + render(result, terminal_width(), colour=colour)
    if not taken or taken + picture.count("\n") <= shutil.get_terminal_size().lines:
        click.echo(picture, nl=False, color=colour)
