"""tracetool replay --equalize: what would the step take without stragglers, and which of them costs most?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tracetool.cli.output import ProgressBar, check_target, next_step, write_file
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path

_TAKEN = frozenset({"paths", "step", "output", "equalize", "force", "as_json", "quiet"})


def report_stragglers(
    paths: tuple[Path, ...], step: int | None, output: tuple[Path, ...], *, force: bool, as_json: bool, quiet: bool
) -> None:
    """Equalize a Run or raw traces, print the report and write it to files.

    Args:
        paths: The Run, or the traces.
        step: Only this step.
        output: Reports to write: .json or .txt.
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
    result = find_stragglers(run, step)
    named = " ".join(str(p) for p in paths)
    facts = run_facts(named, run.manifest, shlex.join(["tracetool", *click.get_current_context().obj]))
    for path in output:
        write_file(path, forms[path.suffix.lower()](result, facts), force=force)
        click.echo(f"wrote {path}", err=True)
    click.echo((render_json if as_json else render_text)(result, facts).decode(), nl=False)
    if not as_json:
        longest = max(result.steps, key=lambda s: (s.measured_ns, -s.number))
        other = "--schedule 1f1b -o gantt.png"
        if len(result.steps) > 1:
            other = f"--equalize --step {longest.number}  # the longest, by averages of that step alone"
        next_step(f"tracetool replay {shlex.quote(named)} {other}", quiet=quiet)


def _refuse_others() -> None:
    """Equalizing is a what-if of its own: the observed order of all pipelines, as measured."""
    context = click.get_current_context()
    given = [
        option.opts[-1]
        for option in context.command.params
        if option.name
        and option.name not in _TAKEN
        and context.get_parameter_source(option.name) not in (ParameterSource.DEFAULT, None)
    ]
    if given:
        raise ScenarioError(
            f"--equalize replays the observed order of all pipelines as measured: it does not go with "
            f"{', '.join(given)}.",
            hint="leave them out; --step chooses a step",
        )
