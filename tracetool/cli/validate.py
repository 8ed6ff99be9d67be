"""tracetool validate: how far do predictions from a Run lie from measured steps?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import JSON, PATH_OR_URL, QUIET, VERBOSE, ProgressBar, next_step, print_result
from tracetool.cli.pipelines import ALL_PIPELINES, PIPELINE, asked_pipelines
from tracetool.cli.question import borrow_slowdown, command_line
from tracetool.errors import CheckFailed
from tracetool.model.schedule import OBSERVED

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction
    from tracetool.validation import Validation


@click.command()
@click.argument("run", type=PATH_OR_URL, metavar="RUN_OR_TRACES")
@click.argument("measured", type=click.Path(path_type=Path), metavar="MEASURED.json")
@click.option(
    "--memory-from",
    type=PATH_OR_URL,
    metavar="RUN_OR_TRACES",
    help="Another recording of the same model, whose memory figures are taken.",
)
@click.option(
    "--costs-from",
    type=PATH_OR_URL,
    metavar="RUN_OR_TRACES",
    help="Another recording of the same stages, whose slowdown beside communication is taken.",
)
@click.option("--max-mape", metavar="2%", help="Exit with 1 if the mean absolute error is larger.")
@click.option("--max-error", metavar="5%", help="Exit with 1 if any row's error is larger.")
@click.option("--step", type=int, help="Step to measure; default: the complete one of median length.")
@PIPELINE
@ALL_PIPELINES
@VERBOSE
@JSON
@QUIET
def validate(
    run: Path,
    measured: Path,
    memory_from: Path | None,
    costs_from: Path | None,
    max_mape: str | None,
    max_error: str | None,
    step: int | None,
    pipeline: int,
    *,
    all_pipelines: bool,  # noqa: ARG001 - read with the other options of it
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Predict measured steps from one Run, or raw traces, and compare.

    The file lists configurations of the recorded model with the step times (and peaks) they took without a profiler:
    schemas/measured.schema.json. Nothing is fitted to them.

    \b
    Examples:
      tracetool validate x.run measured.json
      tracetool validate x.run measured.json --memory-from with_memory.run --json
      tracetool validate x.run measured.json --max-mape 2% --max-error 5%
    """
    from tracetool.ingestion.runs import open_run
    from tracetool.reconstruction import reconstruct
    from tracetool.reports.checks.validation import InputInfo, render_json, render_text, validation_facts
    from tracetool.units import parse_share_ratio
    from tracetool.validation import Sources
    from tracetool.validation import validate as compare
    from tracetool.validation.measured import read_measurements

    limits = [
        ("mean absolute error", None if max_mape is None else parse_share_ratio(max_mape)),
        ("largest error", None if max_error is None else parse_share_ratio(max_error)),
    ]
    measurements = read_measurements(measured)
    with ProgressBar(quiet=quiet) as progress:
        opened = [open_run([path], progress) for path in (run, memory_from) if path is not None]
        other = None if costs_from is None else open_run([costs_from], progress)
    recordings = [reconstruct(each, step=step if each is opened[0] else None, pipeline=pipeline) for each in opened]

    def slowed(one: Reconstruction) -> Reconstruction:
        return one if costs_from is None or other is None else borrow_slowdown(one, other, costs_from)

    recordings[0], _ = asked_pipelines(opened[0], slowed(recordings[0]), slowed)
    with ProgressBar(quiet=quiet, doing="predicting", of="rows") as progress:
        done = compare(Sources(*recordings), measurements, progress)
    names = [str(path) for path in (run, memory_from) if path is not None]
    facts = validation_facts(
        names,
        [each.manifest for each in opened],
        InputInfo(name=str(measured), digest=measurements.digest),
        command_line(),
    )
    form = render_json(done, facts) if as_json else render_text(done, facts, verbose=verbose)
    print_result(form.decode())
    if not as_json:
        several = recordings[0].pipeline.observed.shape.chunks > 1
        names_to_try = OBSERVED if several else "1f1b,geopipe"
        next_step(f"tracetool replay {shlex.quote(str(run))} --schedule {names_to_try}", quiet=quiet)
    _check(done, limits)


def _check(done: Validation, limits: list[tuple[str, float | None]]) -> None:
    """Fail where an error is above the limit given for it, naming each."""
    over = []
    for (name, limit), error in zip(limits, (done.mape_ratio, done.max_error_ratio), strict=True):
        if limit is None:
            continue
        if error is None:
            raise CheckFailed(f"no row could be compared, so the {name} is unknown.", hint="see the rows' reasons")
        if error > limit:
            over.append(f"the {name} is {error:.2%}, allowed are {limit:.2%}")
    if over:
        raise CheckFailed("; ".join(over) + ".")
