"""Which pipelines of a recording a command is about: one by itself, or all of the job together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import is_given
from tracetool.cli.settings import ahead_of
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.job import SortedPipelines
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

PIPELINE = click.option(
    "--pipeline",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    callback=ahead_of("all_pipelines"),
    help="One of several pipelines by itself; default: 0, of what is about one the slowest rank's.",
)
ALL_PIPELINES = click.option(
    "--all-pipelines",
    is_flag=True,
    help="All pipelines together, joined by their gradient reductions; default where they differ.",
)
_OF_ONE = (
    "pipeline", "each_step", "jitter", "overlap", "tensor_bandwidth", "copy_missing_ranks", "network", "tier",
    "pipelines_on_link",
)  # fmt: skip
"""Options that are about one pipeline."""


def pipeline_number(run: Run) -> int:
    """Number of the pipeline that is reconstructed: as given; where another option is about one, the slowest rank's."""
    from tracetool.reconstruction.job import slow_ranks

    context = click.get_current_context()
    given = {name for name in _OF_ONE if is_given(context, name)}
    slow = slow_ranks(run) if given and not given & {"pipeline", "copy_missing_ranks"} else []
    number: int = slow[0].pipeline if slow else context.params["pipeline"]
    return number


def asked_pipelines(
    run: Run, reconstruction: Reconstruction, change: Callable[[Reconstruction], Reconstruction]
) -> tuple[Reconstruction, SortedPipelines | None]:
    """What was reconstructed: of all pipelines where they are asked for or differ, else of one; and which are alike.

    Args:
        run: The recording.
        reconstruction: What was reconstructed of the pipeline that was named.
        change: What was done to it, for the others.

    Returns:
        None of those that are alike where there is one, or one was chosen.

    Raises:
        ScenarioError: If all were asked for, and something else that is about one of them.
        TraceToolError: If they were, and cannot be reconstructed.
    """
    from tracetool.model.scenario import Scenario
    from tracetool.reconstruction.job import sorted_pipelines
    from tracetool.whatif.job import join_pipelines, pipeline_notes

    context = click.get_current_context()
    given = [name for name in _OF_ONE if is_given(context, name)]
    asked = bool(context.params["all_pipelines"])
    if asked and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ScenarioError(
            f"--all-pipelines takes all pipelines as recorded: it does not go with {flags}.", hint="leave out either"
        )
    if "pipeline" in given or len({place.pipeline for place in reconstruction.coordinates} - {None}) < 2:
        return reconstruction, None
    known = sorted_pipelines(run)
    if asked or (known.differ and not known.left_out and not given):
        whole = join_pipelines(run, reconstruction, change=change)
        return whole, None if whole.pipeline.job is None else whole.pipeline.job.sorted
    if not known.alike:
        return reconstruction, None
    notes = pipeline_notes(reconstruction.notes, known, None, Scenario())
    return replace(reconstruction, notes=tuple(notes)), known
