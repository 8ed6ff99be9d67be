"""tracetool sweep: which schedule, over which link, within which memory?"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tracetool.cli.layers import WAYS_HELP, ways_of, with_ways
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
    say_written,
    write_file,
)
from tracetool.cli.question import CHUNKS, ask, question_options
from tracetool.cli.settings import ahead_of
from tracetool.cli.topology import read_choice
from tracetool.errors import BadQuantity, ScenarioError
from tracetool.model.notice import Notice, NoticeCode
from tracetool.tables.results import P2P_MODE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.cli.question import Question, Words
    from tracetool.sweeps import Grid, Sweep, SweepPoint
    from tracetool.sweeps.scenario_file import NamedScenario


@click.command()
@PATHS
@click.option(
    "--schedule",
    shell_complete=complete_schedules,
    metavar="NAME,...",
    help="Schedules to choose among; default: all that need no search. 'tracetool schedules' lists them.",
)
@click.option("--dc", multiple=True, metavar="MAP", help="Where ranks sit, as replay takes it; several are compared.")
@click.option(
    "--bandwidth",
    metavar="10..800Gbit/s",
    callback=ahead_of("link"),
    help="Of every link between DCs that --link does not fix: a list, or a range at equal ratios, four values per "
    "doubling (10..800Gbit/s*8: eight).",
)
@click.option(
    "--latency",
    metavar="1..40ms",
    callback=ahead_of("link", "distance"),
    help="One way, of the same links; a list or a range.",
)
@click.option(
    "--distance",
    metavar="80km,400km",
    callback=ahead_of("link", "latency"),
    help="Instead of --latency: 5 us per km of fibre, one way.",
)
@click.option("--hbm", metavar="64GiB,80GiB", help="Memory limits per rank.")
@click.option("--microbatches", metavar="8,16,32", help="Per step; a list, or a range that doubles (8..64).")
@click.option("--p2p", metavar="MODE,...", help=f"How transfers are issued: {P2P_MODE_NAMES}; several are compared.")
@click.option(
    "--extra-forwards",
    default="auto",
    show_default=True,
    metavar="N;N;...",
    help="geopipe: auto chooses for every link; 0..4 tries so many per DC boundary; 2,2,0,0;3,3,0,0 lists per rank.",
)
@click.option(
    "--overlap", metavar="WAY,...", help=f"How layers overlap their collectives and matrix products: {WAYS_HELP}."
)
@click.option(
    "--tensor-bandwidth",
    metavar="25..450GB/s",
    help="Of the links between the ranks of a tensor parallel group, each way: a list or a range.",
)
@click.option("--scenario", type=click.Path(path_type=Path), metavar="WAN.toml", help="Named what-ifs, one by one.")
@click.option("--price-per-gbit", metavar="120EUR", help="Of links, per Gbit/s: marks the Pareto front.")
@click.option("--no-knees", is_flag=True, help="Do not seek knees between the points.")
@click.option(
    "--tier",
    multiple=True,
    metavar="dc.bandwidth=100..800Gbit/s",
    help="A figure of a tier of --network: bandwidth, latency, oversubscription, size or connections. Repeatable.",
)
@CHUNKS
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
    help="Also write all points, the form by the suffix: .parquet, .csv, .json; or a picture: .png, .svg, .pdf.",
)
@FORCE
@VERBOSE
@JSON
@QUIET
def sweep(
    paths: tuple[Path, ...],
    schedule: str | None,
    dc: tuple[str, ...],
    bandwidth: str | None,
    latency: str | None,
    distance: str | None,
    hbm: str | None,
    microbatches: str | None,
    p2p: str | None,
    extra_forwards: str,
    overlap: str | None,
    tensor_bandwidth: str | None,
    scenario: Path | None,
    price_per_gbit: str | None,
    tier: tuple[str, ...],
    chunks: int | None,
    time_limit: str,
    jobs: int | None,
    executor: str | None,
    output: tuple[Path, ...],
    *,
    no_knees: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
    **words: Any,
) -> None:
    """Replay a Run, or raw traces, under every combination of schedules, links and limits.

    \b
    Examples:
      tracetool sweep x.run --dc 0-1,2-3 --bandwidth 10..800Gbit/s \\
          --latency 1..40ms --hbm 80GiB
      tracetool sweep x.run --schedule 1f1b,geopipe,zb-h1 --dc 0-1,2-3 \\
          --bandwidth 25Gbit/s,100Gbit/s --distance 80km
      tracetool sweep x.run --scenario wan.toml --price-per-gbit 120EUR \\
          -o sweep.parquet
      tracetool sweep traces/ --schedule 1f1b --overlap none,slice:4,p2p \\
          --tensor-bandwidth 25..450GB/s
    """
    from tracetool.ingestion.executors import check_address
    from tracetool.reports.sweep.json import render_json
    from tracetool.reports.sweep.text import render_text
    from tracetool.sweeps import sweep as run_sweep
    from tracetool.sweeps.asked import parse_bandwidths, unplaced_grid
    from tracetool.sweeps.pareto import parse_price
    from tracetool.sweeps.scenario_file import read_scenarios
    from tracetool.units import NS_PER_KM, parse_duration_ns

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
    tensor_bandwidths = parse_bandwidths(tensor_bandwidth) if tensor_bandwidth else ()
    ways = ways_of(overlap, links=bool(tensor_bandwidths))
    price = None if price_per_gbit is None else parse_price(price_per_gbit)
    scenarios = None if scenario is None else read_scenarios(scenario)
    if scenarios is None:
        grid.check_figures()
    if executor is not None:
        check_address(executor)
    question = ask(paths, _shared_words(words), quiet=quiet, has_maps=True, shapes=bool(ways))
    recorded, overlaps = with_ways(question, ways, tensor_bandwidths)
    grid = replace(grid, overlaps=overlaps)
    grids = _on_network(_grids(grid, question, dc, scenarios, scenario), question, tier, words)
    with ProgressBar(quiet=quiet, doing="replaying", of="points") as progress:
        swept = run_sweep(
            recorded,
            grids,
            progress=progress,
            jobs=jobs,
            executor=executor,
            chunks=chunks,
            time_limit_s=parse_duration_ns(time_limit) / 1e9,
            knees=not no_knees,
            price=price,
        )
    if distance is not None or any(named.distance is not None for named in scenarios or ()):
        swept = replace(
            swept,
            notes=(
                *swept.notes,
                Notice(NoticeCode.DISTANCES, f"distances are latencies of {NS_PER_KM / 1e3:g} us per km, one way"),
            ),
        )
    facts = question.facts()
    for path in output:
        write_file(path, _form(path)(swept, facts, price), force=force)
        say_written(path)
    if as_json:
        click.echo(render_json(swept, facts, price).decode(), nl=False)
        return
    kept = next((str(path) for path in output if path.suffix.lower() in (".parquet", ".csv", ".json")), None)
    keeping = following("sweep", "-o", free_name("sweep.parquet"))
    after = (_replay_of(_best_points(swept), paths) if kept is not None else keeping) or following("info")
    text = render_text(swept, facts, price, verbose=verbose, kept=kept or _KEPT, after=after)
    click.echo(text.decode(), nl=False)
    next_step(after, quiet=quiet)


_KEPT = "-o sweep.parquet"

_SHARED = click.Command("shared")
question_options(_SHARED)
# The shared options come in their own order, but for those that are lists here.
_OWN = {option.name for option in sweep.params}
sweep.params[-5:-5] = [option for option in reversed(_SHARED.params) if option.name not in _OWN]


def _best_points(swept: Sweep) -> list[SweepPoint]:
    """What is best in each scenario, the shortest first."""
    points = [each.point for each in swept.best if each.point is not None]
    return sorted(points, key=lambda point: point.step_ns_per_microbatch or 0)


def _replay_of(best: Sequence[SweepPoint], paths: tuple[Path, ...]) -> str | None:
    """The command that replays the best point, with what was asked of it as typed.

    None if no point fits, it is of a named scenario or of other links inside layers, or its map of DCs cannot be
    written in ranges.
    """
    from tracetool.model.topology import parse_dc_map, parse_link
    from tracetool.network.link import Link
    from tracetool.reports.sweep import map_of
    from tracetool.units import parse_bandwidth_bytes_per_s, parse_distance_ns, parse_duration_ns, parse_size_bytes

    point = next(iter(best), None)
    context = click.get_current_context()
    words = context.params
    if point is None or point.scenario is not None or point.tensor_bandwidth_bytes_per_s is not None:
        return None
    places = words["dc"][0] if len(words["dc"]) == 1 else map_of(point.dcs)
    if point.dcs and len(words["dc"]) > 1 and parse_dc_map(places) != point.dcs:
        return None
    asked = ["--schedule", point.schedule]
    if point.extra_forwards is not None:
        asked += ["--extra-forwards", ",".join(map(str, point.extra_forwards))]
    asked += ["--microbatches", str(point.microbatches)] if is_given(context, "microbatches") else []
    asked += ["--p2p", point.p2p] if is_given(context, "p2p") else []
    asked += ["--overlap", point.overlap] if is_given(context, "overlap") else []
    if point.dcs and words["network"] is None:
        asked += ["--dc", places]
    bandwidth, latency = point.bandwidth_bytes_per_s, point.latency_ns
    if bandwidth is not None and latency is not None and words["network"] is None:
        exact = Link("", "", bandwidth, latency).figures.split(",")
        rate = _typed(words["bandwidth"], parse_bandwidth_bytes_per_s, bandwidth) or exact[0]
        late = _typed(words["latency"], parse_duration_ns, latency)
        figures = f"{rate},{late or _typed(words['distance'], parse_distance_ns, latency) or exact[1]}"
        fixed = {frozenset((link.src_dc, link.dst_dc)) for text in words["link"] for link in parse_link(text)}
        pairs = dict.fromkeys(frozenset(pair) for pair in pairwise(point.dcs) if pair[0] != pair[1])
        for pair in (pair for pair in pairs if pair not in fixed):
            asked += ["--link", f"{'-'.join(sorted(pair))}={figures}"]
    if words["chunks"] is not None:
        asked += ["--chunks", str(words["chunks"])]
    if point.hbm_bytes is not None:
        asked += ["--hbm", _typed(words["hbm"], parse_size_bytes, point.hbm_bytes) or f"{point.hbm_bytes}B"]
    picture = free_name("gantt.png")
    return shlex.join(["tracetool", "replay", *map(str, paths), *asked, *_given_words(), "-o", picture])


def _typed(listed: str | None, parse: Callable[[str], int], value: int) -> str | None:
    """The value of a list as it was typed; None if it is one of a range."""
    for part in (listed or "").split(","):
        with suppress(BadQuantity):
            if parse(part) == value:
                return part.strip()
    return None


def _given_words() -> list[str]:
    """The shared options that were given, as given."""
    context = click.get_current_context()
    words: list[str] = []
    for option in _SHARED.params:
        if option.name in _OWN or not is_given(context, option.name):
            continue
        value = context.params[option.name or ""]
        for one in value if isinstance(value, tuple) else (value,):
            words += [option.opts[0]] if one is True else [option.opts[0], str(one)]
    return words


def _shared_words(words: dict[str, Any]) -> Words:
    """The shared options as ``replay`` has them, without those that are lists here."""
    of_lists: dict[str, Any] = {"dc": None, "hbm": None, "p2p": None, "microbatches": None}
    return cast("Words", words | of_lists)


def _grids(
    grid: Grid, question: Question, maps: tuple[str, ...], scenarios: list[NamedScenario] | None, path: Path | None
) -> list[Grid]:
    """The grid with the places of the ranks, or one for each named scenario."""
    from tracetool.sweeps.asked import places
    from tracetool.sweeps.scenario_file import grids_of

    recording = question.recording
    grid = replace(grid, scenario=question.scenario, dcs=tuple(places(text, recording) for text in maps))
    return [grid] if scenarios is None else grids_of(scenarios, grid, lambda text: places(text, recording), str(path))


def _on_network(grids: list[Grid], question: Question, tiers: tuple[str, ...], words: dict[str, Any]) -> list[Grid]:
    """The grids, or one for each combination of figures of tiers."""
    from tracetool.sweeps.asked import over_tiers

    if not tiers:
        return grids
    network = read_choice(words["network"], words["collective"])
    if network is None or len(grids) > 1 or grids[0].name is not None:
        raise ScenarioError(
            "--tier is about the tiers of a network, without named scenarios.",
            hint="add --network n.toml, and leave --scenario out",
        )
    return over_tiers(grids[0], network, tiers, question.recording)


def _form(path: Path) -> Callable[..., bytes]:
    """What writes a file of this suffix.

    Raises:
        ScenarioError: If nothing does.
    """
    from tracetool.reports.picture import PICTURE_SUFFIXES
    from tracetool.reports.sweep.json import render_csv, render_json, render_parquet

    suffix = path.suffix.lower()
    forms: dict[str, Callable[..., bytes]] = {".parquet": render_parquet, ".csv": render_csv, ".json": render_json}
    if suffix in PICTURE_SUFFIXES:
        from tracetool.reports.sweep.lines import render_sweep

        return lambda swept, _facts, _price: render_sweep(swept, PICTURE_SUFFIXES[suffix])
    if suffix not in forms:
        raise ScenarioError(
            f"a sweep is not written to {path.suffix or 'files without suffix'}: {path}.",
            hint="use .parquet, .csv, .json, .png, .svg or .pdf",
        )
    return forms[suffix]
