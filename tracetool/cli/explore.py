"""tracetool explore: placement, schedule and network of a job together."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.layers import WAYS_HELP, ways_of
from tracetool.cli.output import (
    FORCE,
    JSON,
    PATH_OR_URL,
    QUIET,
    VERBOSE,
    ProgressBar,
    check_target,
    flag_of,
    following,
    free_name,
    is_given,
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
    from tracetool.explore.judge import Judged
    from tracetool.explore.plan import Workload
    from tracetool.explore.recorded import RecordedExploration
    from tracetool.explore.recorded_space import RecordedSpace
    from tracetool.explore.space import AxisName, Space
    from tracetool.network.file import NetworkChoice
    from tracetool.reports.exploration.json import ExplorationFacts

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH_OR_URL, metavar="MODEL.toml|RUN_OR_TRACES...")
@NETWORK
@click.option(
    "--or",
    "fleets",
    multiple=True,
    type=_FILE,
    metavar="FLEET.toml",
    help="Also on this fleet: what it takes and costs there. Repeatable.",
)
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
@click.option(
    "--overlap",
    metavar="WAY,...",
    help=f"Also layers that overlap collectives and products: {WAYS_HELP}.",
)
@click.option("--mbs", type=click.IntRange(1), metavar="N", help="Of a recording: sequences of its microbatches.")
@click.option("--seq", type=click.IntRange(1), metavar="N", help="Of a recording: tokens of its sequences.")
@click.option("--time-limit", metavar="TIME", help="In this, the best plan so far and what there is time for: 60s.")
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
    paths: tuple[Path, ...],
    network: Path | None,
    fleets: tuple[Path, ...],
    fit: tuple[str, ...],
    fix: tuple[str, ...],
    tried: tuple[str, ...],
    leave: tuple[str, ...],
    hbm: str | None,
    baselines: tuple[Path, ...],
    failures: tuple[str, ...],
    overlap: str | None,
    mbs: int | None,
    seq: int | None,
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
    traces, but for those that a closed-form bound says cannot win. Of a recording, what its measured costs tell is
    searched, and each plan is what replay gives.

    \b
    Axes: tp cp ep pp dp placement schedule depth chunks microbatch recompute
          overlap p2p collectives beside sharing routing compression
    Of a recording: placement schedule depth chunks microbatch overlap p2p
          collectives sharing routing compression

    \b
    Examples:
      tracetool explore model.toml --network fleet.toml
      tracetool explore x.run --network fleet.toml --hbm 80GiB
      tracetool explore model.toml --network fleet.toml --fix tp=8 \\
          --try schedule=1f1b,zb-h1 --leave recompute
    """
    from tracetool.explore.answer import explore as run
    from tracetool.explore.failures import parse_failure, weigh_failures
    from tracetool.explore.file import read_plan
    from tracetool.explore.progress import SearchWork
    from tracetool.explore.recorded import explore_recording
    from tracetool.explore.recorded_search import RecordedWork
    from tracetool.network.file import read_network
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
    if network is None:
        raise ScenarioError("nothing says where the job is to run.", hint="add --network FLEET.toml")
    model, *others = paths
    if model.suffix.lower() != ".toml" or others:
        _refuse(_OF_SHAPES, "a recording has what was measured, and is compared with itself", "name a model's file")
        recorded = _recorded_space(paths, network, (fix, tried, leave), hbm, overlap, (mbs, seq), quiet=quiet)
        elsewhere = [replace(recorded, choice=read_network(path)) for path in fleets]
        failing = [parse_failure(text, recorded.choice.network) for text in failures]
        with ProgressBar(quiet=quiet, doing="replaying", of="ways") as progress:
            explored = explore_recording(
                recorded, others=elsewhere, failures=failing, work=RecordedWork(jobs, executor, ends, state, progress)
            )
        _show_recorded(explored, output, force=force, verbose=verbose, as_json=as_json, quiet=quiet)
        return
    _refuse(_OF_RECORDINGS, "a model's file says them", "name a Run or traces")
    space, (error_ratio, misfits) = _space(model, network, fit, (fix, _with_ways(tried, overlap), leave), hbm)
    on_others = [_elsewhere(space, read_network(path)) for path in fleets]
    compared = {path.stem: read_plan(path, space.base) for path in baselines}
    failing = [parse_failure(text, space.workload.choice.network) for text in failures]
    with ProgressBar(quiet=quiet, doing="searching", of="plans") as progress:
        work = SearchWork(jobs, executor, ends, state, progress, lambda ns: progress.say(f"best {format_duration(ns)}"))
        done = run(space, compared=compared, others=on_others, error_ratio=error_ratio, misfits=misfits, work=work)
    weighed = weigh_failures(space, done.results, failing, ends=ends) if failing else None
    facts = ExplorationFacts(__version__, command_line())
    for path in output:
        write_file(path, _form(path.suffix.lower(), done, facts, weighed), force=force)
        say_written(path)
    if as_json:
        print_result(render_json(done, facts, weighed).decode())
        return
    print_result(render_text(done, weighed, verbose=verbose).decode())
    next_step(_next(done), quiet=quiet)


_OF_SHAPES = ("fit", "baselines")
_OF_RECORDINGS = ("mbs", "seq")
"""Options that are about jobs of one kind alone."""


def _refuse(names: tuple[str, ...], why: str, hint: str) -> None:
    """Refuse options that are about other jobs.

    Raises:
        ScenarioError: If one was given.
    """
    context = click.get_current_context()
    options = [option for option in context.command.params if isinstance(option, click.Option)]
    given = [flag_of(each) for each in options if each.name in names and is_given(context, each.name)]
    if given:
        raise ScenarioError(f"{', '.join(given)} cannot be: {why}.", hint=f"{hint}, or leave it out")


def _recorded_space(
    paths: tuple[Path, ...],
    network: Path,
    axes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    hbm: str | None,
    overlap: str | None,
    batch: tuple[int | None, int | None],
    *,
    quiet: bool,
) -> RecordedSpace:
    from tracetool.costs.rescaled import MicrobatchSize
    from tracetool.explore.recorded_space import RecordedSpace
    from tracetool.explore.space import read_axes
    from tracetool.ingestion.runs import open_run
    from tracetool.network.file import read_network
    from tracetool.overlap.actions import layer_overlaps
    from tracetool.reconstruction import reconstruct
    from tracetool.units import parse_size_bytes
    from tracetool.whatif.job import unlike_pipelines
    from tracetool.whatif.on_network import job_traffic

    sequences, length = batch
    if (sequences is None) != (length is None):
        raise ScenarioError("--mbs and --seq belong together.", hint="add both, as in --mbs 1 --seq 2048")
    fixed, tried, leave = axes
    choice, given, left = read_network(network), read_axes(fixed, tried), _left(leave) - {"overlap"}
    asked = given.pop("overlap", ())
    ways = ways_of(overlap if not asked else ",".join(asked))
    limit = None if hbm is None else parse_size_bytes(hbm)
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress, keep=("args",) if ways else ())
    recording = reconstruct(run)
    overlaps, notes = layer_overlaps(run, ways) if ways else ((), ())
    overlaps = tuple(each for each in overlaps if not asked or each.way in asked)
    recording = replace(recording, notes=(*recording.notes, *notes))
    sizes = None if sequences is None or length is None else MicrobatchSize(sequences, length)
    traffic = job_traffic(run, recording).traffic
    recording, unlike = unlike_pipelines(run, recording)
    return RecordedSpace(
        recording, choice, given=given, left=left, hbm_bytes=limit, overlaps=overlaps, sizes=sizes, traffic=traffic,
        unlike=unlike,
    )  # fmt: skip


def _show_recorded(
    done: RecordedExploration, output: tuple[Path, ...], *, force: bool, verbose: bool, as_json: bool, quiet: bool
) -> None:
    from tracetool.reports import CallFacts
    from tracetool.reports.exploration.page import render_recorded_page
    from tracetool.reports.exploration.picture import overview_picture
    from tracetool.reports.exploration.recorded import render_recorded_json, render_recorded_text
    from tracetool.reports.picture import PICTURE_SUFFIXES
    from tracetool.version import __version__

    facts = CallFacts(__version__, command_line())
    for path in output:
        suffix = path.suffix.lower()
        if suffix in PICTURE_SUFFIXES:
            form = overview_picture(done, PICTURE_SUFFIXES[suffix])
        else:
            form = render_recorded_page(done, facts) if suffix == ".html" else render_recorded_json(done, facts)
        write_file(path, form, force=force)
        say_written(path)
    if as_json:
        print_result(render_recorded_json(done, facts).decode())
        return
    print_result(render_recorded_text(done, verbose=verbose).decode())
    next_step(_replay_of(done), quiet=quiet)


def _replay_of(done: RecordedExploration) -> str:
    """The command that draws the plan named; one that replay cannot have over the fleet's file is explored anew."""
    from tracetool.model.pipeline import NO_OVERLAP
    from tracetool.reports.exploration.recorded import fleet_changes

    best = done.named
    if best is None or best.way.microbatch is not None or done.space.unlike or fleet_changes(done.space, best.way):
        return following("explore", "-v")
    words = ["--schedule", best.point.schedule]
    if best.point.extra_forwards is not None:
        words += ["--extra-forwards", ",".join(map(str, best.point.extra_forwards))]
    way = best.way
    words += [] if way.p2p is None else ["--p2p", way.p2p]
    words += [] if way.chunks in (None, 1) else ["--chunks", str(way.chunks)]
    words += [] if way.collectives == done.space.base.collectives else ["--collective", f"dp={way.collectives}"]
    words += [] if best.point.overlap == NO_OVERLAP else ["--overlap", best.point.overlap]
    words += [] if way.sharing == "temporal" else ["--link-sharing", way.sharing]
    return following("replay", *words, "-o", free_name("gantt.png"), without={"overlap", "time_limit"})


def _elsewhere(space: Space, choice: NetworkChoice) -> Space:
    """The same job on another fleet."""
    from tracetool.explore.checks import checked_space

    base = replace(space.base, placement=choice.placement, collectives=choice.algorithms.get("dp", "auto"))
    return checked_space(replace(space, workload=replace(space.workload, choice=choice), base=base))


def _with_ways(tried: tuple[str, ...], overlap: str | None) -> tuple[str, ...]:
    """Axes with the ways that layers are to overlap in, and layers as they are."""
    return tried if overlap is None else (*tried, f"overlap={','.join(ways_of(overlap))}")


def _left(leave: tuple[str, ...]) -> frozenset[AxisName]:
    from tracetool.explore.space import parse_axis

    return frozenset(parse_axis(name.strip()) for text in leave for name in text.split(",") if name.strip())


def _form(suffix: str, done: Exploration, facts: ExplorationFacts, weighed: Failures[Judged] | None) -> bytes:
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
    network: Path,
    fit: tuple[str, ...],
    axes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    hbm: str | None,
) -> tuple[Space, tuple[float | None, list[str]]]:
    from tracetool.estimates.file import read_model
    from tracetool.explore.checks import checked_space
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.space import Space, read_axes
    from tracetool.network.file import read_network
    from tracetool.units import parse_size_bytes

    fix, tried, leave = axes
    choice = read_network(network)
    asked = read_model(model, fit, choice)
    device = asked.job.device
    workload = Workload(asked.job.model, device, choice, device.hbm_bytes if hbm is None else parse_size_bytes(hbm))
    base = JobPlan(asked.job.training, choice.placement, choice.algorithms.get("dp", "auto"))
    space = Space(workload, base, read_axes(fix, tried), _left(leave))
    return checked_space(space), _error_ratio(asked.measured, asked.fitted, workload)


def _error_ratio(
    measured: tuple[Job, ...], fitted: tuple[str, ...], workload: Workload
) -> tuple[float | None, list[str]]:
    """The largest error of the file's measured runs that nothing was fitted on, and those that do not fit there."""
    from tracetool.errors import BadTopology
    from tracetool.estimates.many import estimate_many

    errors, misfits = [], []
    for job in measured:
        if job.name in fitted:
            continue
        try:
            (done,) = estimate_many([job], workload.choice)
        except BadTopology:
            misfits.append(job.name)
        else:
            errors.append(abs(done.error_ratio or 0.0))
    return max(errors, default=None), misfits
