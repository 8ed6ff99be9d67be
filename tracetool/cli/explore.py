"""tracetool explore: placement, schedule and network of a job together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import (
    FORCE,
    JSON,
    QUIET,
    VERBOSE,
    ProgressBar,
    check_target,
    following,
    next_step,
    print_result,
    say_written,
    write_file,
)
from tracetool.cli.question import command_line
from tracetool.cli.topology import NETWORK
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.estimates.estimating import Job
    from tracetool.explore.answer import Exploration
    from tracetool.explore.failures import Failures
    from tracetool.explore.plan import Workload
    from tracetool.explore.space import Space
    from tracetool.reports.exploration.json import ExplorationFacts

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.toml")
@NETWORK
@click.option(
    "--fit", multiple=True, metavar="NAME", help="A measured run of the file to fit the efficiency on. Repeatable."
)
@click.option("--fix", multiple=True, metavar="AXIS=VALUE", help="Take this value alone: tp=8. Repeatable.")
@click.option(
    "--try", "tried", multiple=True, metavar="AXIS=VALUE,...", help="Try these: schedule=1f1b,zb-h1. Repeatable."
)
@click.option("--leave", multiple=True, metavar="AXIS,...", help="Leave as the model's file has it. Repeatable.")
@click.option("--hbm", metavar="SIZE", help="Memory that a device may use; default: all of it.")
@click.option(
    "--baseline", "baselines", multiple=True, type=_FILE, metavar="PLAN.toml", help="Compare with this. Repeatable."
)
@click.option(
    "--failure",
    "failures",
    multiple=True,
    metavar="wan.bandwidth=50%@2%",
    help="Also with a tier that has less, a lost rail (rail.links=7/8) or a slow group (dc1.speed=80%), for a share of "
    "the time. Repeatable.",
)
@click.option("--time-limit", metavar="TIME", help="After this the best plan so far is the answer: 60s.")
@click.option("--state", type=_FILE, metavar="FILE", help="Keep the search here, and go on from it if it is there.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Worker processes; default: as sensible.")
@click.option("--executor", metavar="dask://HOST:PORT", help="Work on a Dask cluster.")
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also a page (.html), a picture (.png, .svg, .pdf) or .json. Repeatable.",
)
@FORCE
@VERBOSE
@JSON
@QUIET
def explore(
    model: Path,
    network: Path | None,
    fit: tuple[str, ...],
    fix: tuple[str, ...],
    tried: tuple[str, ...],
    leave: tuple[str, ...],
    hbm: str | None,
    baselines: tuple[Path, ...],
    failures: tuple[str, ...],
    time_limit: str | None,
    state: Path | None,
    jobs: int | None,
    executor: str | None,
    output: tuple[Path, ...],
    *,
    force: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search placement, schedule and network of a job together for its fastest plan.

    Plans have the devices and sequences per step of the model's file. Each is replayed by the engine that replays
    traces, but for those that a closed-form bound says cannot win.

    \b
    Axes: tp cp ep pp dp placement schedule depth chunks microbatch recompute p2p
          collectives beside sharing routing compression

    \b
    Examples:
      tracetool explore model.toml --network fleet.toml
      tracetool explore model.toml --network fleet.toml --fix tp=8 \\
          --try schedule=1f1b,zb-h1 --leave recompute
    """
    from tracetool.explore.answer import explore as run
    from tracetool.explore.failures import parse_failure, weigh_failures
    from tracetool.explore.file import read_plan
    from tracetool.explore.progress import SearchWork
    from tracetool.reports.exploration.json import ExplorationFacts, render_json
    from tracetool.reports.exploration.text import render_text
    from tracetool.reports.picture import PICTURE_SUFFIXES
    from tracetool.units import format_duration, parse_duration_ns
    from tracetool.version import __version__

    for path in output:
        check_target(path, force=force)
        if path.suffix.lower() not in (*PICTURE_SUFFIXES, ".html", ".json"):
            raise ScenarioError(
                f"an exploration is not written to {path.suffix or 'files without suffix'}: {path}.",
                hint=f"use .html, .json, {', '.join(PICTURE_SUFFIXES)}",
            )
    ends = None if time_limit is None else time.monotonic() + parse_duration_ns(time_limit) / 1e9
    space, error_ratio = _space(model, network, fit, fix, tried, leave, hbm)
    compared = {path.stem: read_plan(path, space.base) for path in baselines}
    failing = [parse_failure(text, space.workload) for text in failures]
    with ProgressBar(quiet=quiet, doing="searching", of="plans") as progress:
        work = SearchWork(jobs, executor, ends, state, progress, lambda ns: progress.say(f"best {format_duration(ns)}"))
        done = run(space, compared=compared, error_ratio=error_ratio, work=work)
    weighed = weigh_failures(space, done.found, failing) if failing else None
    facts = ExplorationFacts(__version__, command_line())
    for path in output:
        write_file(path, _form(path.suffix.lower(), done, facts, weighed), force=force)
        say_written(path)
    if as_json:
        print_result(render_json(done, facts, weighed).decode())
        return
    print_result(render_text(done, weighed, verbose=verbose).decode())
    next_step(_next(done), quiet=quiet)


def _form(suffix: str, done: Exploration, facts: ExplorationFacts, weighed: Failures | None) -> bytes:
    from tracetool.reports.exploration.json import render_json
    from tracetool.reports.exploration.page import render_page
    from tracetool.reports.exploration.picture import overview_picture
    from tracetool.reports.picture import PICTURE_SUFFIXES

    if suffix in PICTURE_SUFFIXES:
        return overview_picture(done, PICTURE_SUFFIXES[suffix])
    return render_page(done, facts, weighed) if suffix == ".html" else render_json(done, facts, weighed)


def _next(done: Exploration) -> str:
    if done.best is None:
        return following("explore", "--try", "recompute=full", without=("tried",))
    return following("explore", "-v")


def _space(
    model: Path,
    network: Path | None,
    fit: tuple[str, ...],
    fix: tuple[str, ...],
    tried: tuple[str, ...],
    leave: tuple[str, ...],
    hbm: str | None,
) -> tuple[Space, float | None]:
    from tracetool.estimates.file import read_model
    from tracetool.explore.checks import checked_space
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.space import Space, parse_axis, read_axes
    from tracetool.network.file import read_network
    from tracetool.units import parse_size_bytes

    if network is None:
        raise ScenarioError("nothing says where the job is to run.", hint="add --network FLEET.toml")
    choice = read_network(network)
    asked = read_model(model, fit, choice)
    device = asked.job.device
    workload = Workload(asked.job.model, device, choice, device.hbm_bytes if hbm is None else parse_size_bytes(hbm))
    left = frozenset(parse_axis(name.strip()) for text in leave for name in text.split(",") if name.strip())
    base = JobPlan(asked.job.training, choice.placement, choice.algorithms.get("dp", "auto"))
    space = Space(workload, base, read_axes(fix, tried), left)
    return checked_space(space), _error_ratio(asked.measured, asked.fitted, workload)


def _error_ratio(measured: tuple[Job, ...], fitted: tuple[str, ...], workload: Workload) -> float | None:
    """The largest error of the file's measured runs that nothing was fitted on; None if there is none."""
    from tracetool.estimates.many import estimate_many

    errors = [
        abs(done.error_ratio or 0.0) for done in estimate_many(measured, workload.choice) if done.name not in fitted
    ]
    return max(errors, default=None)
