"""tracetool sweep: which schedule, over which link, within which memory?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tracetool.cli.output import FORCE, JSON, PATHS, QUIET, check_target, next_step, write_file
from tracetool.cli.question import ask, question_options
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as RichProgress

    from tracetool.cli.question import Question, Words
    from tracetool.sweep import Grid
    from tracetool.sweep.scenario_file import NamedScenario


@click.command()
@PATHS
@click.option(
    "--schedule",
    default="1f1b,geopipe",
    show_default=True,
    metavar="NAME,...",
    help="Schedules; 'tracetool schedules' lists them.",
)
@click.option("--dc", multiple=True, metavar="MAP", help="Where ranks sit, as replay takes it; several are compared.")
@click.option(
    "--bandwidth",
    metavar="10..800Gbit/s",
    help="Of every link between DCs that --link does not fix: a list, or a range at equal ratios, four values per "
    "doubling (10..800Gbit/s*8: eight).",
)
@click.option("--latency", metavar="1..40ms", help="One way, of the same links; a list or a range.")
@click.option("--distance", metavar="80km,400km", help="Instead of --latency: 5 us per km of fibre, one way.")
@click.option("--hbm", metavar="64GiB,80GiB", help="Memory limits per rank.")
@click.option("--microbatches", metavar="8,16,32", help="Per step; a list, or a range that doubles (8..64).")
@click.option("--p2p", metavar="MODE,...", help="How transfers are issued: grouped, in-order, per-edge.")
@click.option(
    "--extra-forwards",
    default="auto",
    show_default=True,
    metavar="N;N;...",
    help="geopipe: auto chooses for every link; 0..4 tries so many per DC boundary; 2,2,0,0;3,3,0,0 lists per rank.",
)
@click.option("--scenario", type=click.Path(path_type=Path), metavar="WAN.toml", help="Named what-ifs, one by one.")
@click.option("--price-per-gbit", metavar="120EUR", help="Of links, per Gbit/s: marks the Pareto front.")
@click.option("--no-knees", is_flag=True, help="Do not seek knees between the points.")
@click.option("--chunks", type=click.IntRange(2, 64), metavar="V", help="Stages per rank, as replay takes it.")
@click.option(
    "--time-limit", default="5s", show_default=True, metavar="5s", help="optimal: how long to search for each point."
)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Worker processes; default: as sensible.")
@click.option("--executor", metavar="dask://HOST:PORT", help="Work on a Dask cluster.")
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write all points, the form by the suffix: .parquet, .csv or .json.",
)
@FORCE
@JSON
@QUIET
def sweep(
    paths: tuple[Path, ...],
    schedule: str,
    dc: tuple[str, ...],
    bandwidth: str | None,
    latency: str | None,
    distance: str | None,
    hbm: str | None,
    microbatches: str | None,
    p2p: str | None,
    extra_forwards: str,
    scenario: Path | None,
    price_per_gbit: str | None,
    chunks: int | None,
    time_limit: str,
    jobs: int | None,
    executor: str | None,
    output: tuple[Path, ...],
    *,
    no_knees: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **words: Any,
) -> None:
    """Replay a Run, or raw traces, under every combination of schedules, links and limits.

    \b
    Examples:
      tracetool sweep x.run --dc 0-1,2-3 --bandwidth 10..800Gbit/s --latency 1..40ms --hbm 80GiB
      tracetool sweep x.run --schedule 1f1b,geopipe,zb-h1 --dc 0-1,2-3 --bandwidth 25Gbit/s,100Gbit/s --distance 80km
      tracetool sweep x.run --scenario wan.toml --price-per-gbit 120EUR -o sweep.parquet
    """
    from tracetool.ingest.executors import check_address
    from tracetool.reports.sweep import render_json
    from tracetool.reports.sweep_text import render_text
    from tracetool.sweep import sweep as run_sweep
    from tracetool.sweep.asked import unplaced_grid
    from tracetool.sweep.pareto import parse_price
    from tracetool.sweep.scenario_file import read_scenarios
    from tracetool.units import parse_duration_ns

    for path in output:
        _form(path)
        check_target(path, force=force)
    grid = unplaced_grid(
        schedule,
        bandwidth=bandwidth,
        latency=latency,
        distance=distance,
        hbm=hbm,
        microbatches=microbatches,
        p2p=p2p,
        extra_forwards=extra_forwards,
    )
    price = None if price_per_gbit is None else parse_price(price_per_gbit)
    scenarios = None if scenario is None else read_scenarios(scenario)
    if scenarios is None:
        grid.check_figures()
    if executor is not None:
        check_address(executor)
    question = ask(paths, _shared_words(words), quiet=quiet)
    grids = _grids(grid, question, dc, scenarios, scenario)
    with _PointBar(quiet=quiet) as progress:
        found = run_sweep(
            question.found,
            grids,
            progress=progress,
            jobs=jobs,
            executor=executor,
            chunks=chunks,
            time_limit_s=parse_duration_ns(time_limit) / 1e9,
            knees=not no_knees,
            price=price,
        )
    facts = question.facts()
    for path in output:
        write_file(path, _form(path)(found, facts, price), force=force)
        click.echo(f"wrote {path}", err=True)
    click.echo((render_json if as_json else render_text)(found, facts, price).decode(), nl=False)
    if not as_json:
        after = "-o sweep.parquet" if not output else "--json"
        next_step(f"{facts.command} {after}", quiet=quiet)


_SHARED = click.Command("shared")
question_options(_SHARED)
# The shared options come in their own order, but for those that are lists here.
_OWN = {option.name for option in sweep.params}
sweep.params[-4:-4] = [option for option in reversed(_SHARED.params) if option.name not in _OWN]


def _shared_words(words: dict[str, Any]) -> Words:
    """The shared options as ``replay`` has them, without those that are lists here."""
    of_lists: dict[str, Any] = {"dc": None, "hbm": None, "p2p": None, "microbatches": None}
    return cast("Words", words | of_lists)


def _grids(
    grid: Grid, question: Question, maps: tuple[str, ...], scenarios: list[NamedScenario] | None, path: Path | None
) -> list[Grid]:
    """The grid with the places of the ranks, or one for each named scenario."""
    from tracetool.sweep.asked import places
    from tracetool.sweep.scenario_file import grids_of

    found = question.found
    grid = replace(grid, scenario=question.scenario, dcs=tuple(places(text, found) for text in maps))
    return [grid] if scenarios is None else grids_of(scenarios, grid, lambda text: places(text, found), str(path))


def _form(path: Path) -> Callable[..., bytes]:
    """What writes a file of this suffix.

    Raises:
        ScenarioError: If nothing does.
    """
    from tracetool.reports.sweep import render_csv, render_json, render_parquet

    forms: dict[str, Callable[..., bytes]] = {".parquet": render_parquet, ".csv": render_csv, ".json": render_json}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise ScenarioError(
            f"a sweep is not written to {path.suffix or 'files without suffix'}: {path}.",
            hint="use .parquet, .csv or .json",
        )
    return form


class _PointBar:
    """A bar of points done, with time left, on stderr; shown only on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self._bar: RichProgress | None = None
        self._advance: Callable[[int], None] = lambda _count: None

    def start(self, total: int) -> None:
        """Show the bar."""
        if not self._shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        bar = Progress(
            "replaying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        task = bar.add_task("replaying", total=total)
        bar.start()
        self._bar = bar
        self._advance = lambda count: bar.advance(task, count)

    def advance(self, count: int) -> None:
        """Move the bar."""
        self._advance(count)

    def __enter__(self) -> _PointBar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
