"""A grid as people write it: lists and ranges with units.

Values to sweep, as text: lists (``10Gbit/s,25Gbit/s``) and ranges (``10..800Gbit/s``, ``10..800Gbit/s*8``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.errors import BadQuantity, Option, ScenarioError, checked, named
from tracetool.model.topology import Topology
from tracetool.network.file import NetworkChoice, read_network
from tracetool.network.tiers import FIGURES
from tracetool.schedules import parse_names, tuning_of
from tracetool.schedules.names import check_schedules, takers_of
from tracetool.sweeps.grid import Grid
from tracetool.units import (
    format_bits,
    parse_bandwidth_bytes_per_s,
    parse_distance_ns,
    parse_duration_ns,
    parse_size_bytes,
)
from tracetool.whatif.on_network import seated
from tracetool.whatif.wording import p2p_mode, placed, read_dc_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.scenario import Scenario
    from tracetool.network.link import Link
    from tracetool.network.tiers import Figure
    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.grid import WarmUp

_PER_OCTAVE = 4
_MOST_VALUES = 1_000
_DIGITS = 4
_RANGE = re.compile(r"^(?P<low>.+?)\.\.(?P<high>[^*]+)(?:\*(?P<count>\d+))?$")
_UNIT = re.compile(r"[^\d.\s].*$")


def parse_bandwidths(text: str) -> tuple[int, ...]:
    """Read bandwidths in bytes/s.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_bandwidth_bytes_per_s, _PER_OCTAVE)


def parse_latencies(text: str) -> tuple[int, ...]:
    """Read latencies in ns.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_duration_ns, _PER_OCTAVE)


def parse_distances(text: str) -> tuple[int, ...]:
    """Read distances such as ``80km`` or ``10..2000km`` as one-way latencies in ns, at 5 us per km.

    Raises:
        BadQuantity: If one is not in km or a range is none.
    """
    return _values(text, parse_distance_ns, _PER_OCTAVE)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes in bytes.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_size_bytes, _PER_OCTAVE)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers from 1 to 65536; a range doubles from one to the next.

    Raises:
        BadQuantity: If one is none, or a range is none.
    """
    return _values(text, _whole, 1)


def parse_warm_ups(text: str) -> tuple[WarmUp, ...]:
    """Read warm-ups of tuned schedules, separated by ``;``.

    ``auto`` chooses for every link, ``2`` is two forwards per boundary, ``0..4`` none to four of them, and ``2,2,0,0``
    is told per pipeline rank.

    Raises:
        ScenarioError: If one is none of these.
    """
    depths: list[WarmUp] = []
    for part in (part.strip() for part in text.split(";")):
        span = re.fullmatch(r"(\d+)\.\.(\d+)", part)
        if part == "auto":
            depths.append(None)
        elif span is not None and int(span[1]) <= int(span[2]) < _MOST_VALUES:
            depths += range(int(span[1]), int(span[2]) + 1)
        elif re.fullmatch(r"\d+", part):
            depths.append(int(part))
        elif re.fullmatch(r"\d+(,\d+)+", part):
            depths.append(tuple(map(int, part.split(","))))
        else:
            raise ScenarioError(
                f"{part!r} is no number of extra forwards.",
                hint="auto, 0..4 (per boundary) or 2,2,0,0;3,3,0,0 (per rank)",
            )
    return tuple(dict.fromkeys(depths))


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*\d+\s*", text) or not 1 <= int(text) <= 65_536:
        raise BadQuantity(f"{text.strip()!r} is no whole number from 1 to 65536.", hint="as in 8,16,32 or 8..64")
    return int(text)


def _values(text: str, parse: Callable[[str], int], per_octave: int) -> tuple[int, ...]:
    values: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None and ".." in part:
            raise BadQuantity(f"{part.strip()!r} is no range.", hint="name both ends, as in 10..800Gbit/s or 1..40ms*8")
        values += [parse(part)] if match is None else _range(part.strip(), match, parse, per_octave)
    return tuple(dict.fromkeys(values))


def _range(text: str, match: re.Match[str], parse: Callable[[str], int], per_octave: int) -> list[int]:
    """Values at equal ratios, both ends with them; those between are rounded to four digits."""
    unit = _UNIT.search(match["high"].strip())
    own = _UNIT.search(match["low"].strip())
    low = parse(match["low"] if own or unit is None else match["low"] + unit[0])
    high = parse(match["high"])
    if not 0 < low < high:
        raise BadQuantity(
            f"the range {text!r} does not rise from above 0.", hint="write the smaller end first, as in 10..800Gbit/s"
        )
    count = max(1, round(log2(high / low) * int(match["count"] or per_octave)))
    if match["count"] == "0" or count >= _MOST_VALUES:
        raise BadQuantity(
            f"the range {text!r} holds {count + 1 if count >= _MOST_VALUES else 'no'} values.",
            hint=f"'*N' says how many per doubling; at most {_MOST_VALUES} values make a range",
        )
    between = (low * (high / low) ** (step / count) for step in range(1, count))
    return [low, *(int(float(f"{value:.{_DIGITS - 1}e}")) for value in between), high]


@checked
def grid(
    recording: Reconstruction,
    schedules: str | Sequence[str] | None = None,
    *,
    dc: str | Sequence[str] = (),
    bandwidth: str | None = None,
    latency: str | None = None,
    distance: str | None = None,
    hbm: str | None = None,
    microbatches: str | None = None,
    p2p: str | None = None,
    extra_forwards: str = "auto",
    scenario: Scenario | None = None,
) -> Grid:
    """Make a grid from text; its arguments are the options of ``tracetool sweep``.

    Args:
        recording: A reconstructed Run.
        schedules: Names, in a list or with commas between them; by default all that need no search.
        dc: Where ranks sit, as ``scenario`` takes it; several are compared.
        bandwidth: Of every link that the scenario does not fix: a list such as ``25Gbit/s,100Gbit/s`` or a range such
            as ``10..800Gbit/s``.
        latency: One way, of the same links, as in ``1..40ms``.
        distance: Instead of latency, as in ``80km,400km``.
        hbm: Memory limits per rank, as in ``64GiB,80GiB``.
        microbatches: Per step, as in ``8,16,32``.
        p2p: How transfers are issued, as in ``in-order,per-edge``.
        extra_forwards: Warm-ups of tuned schedules: ``auto``, ``0..4`` per boundary or ``2,2,0,0;3,3,0,0`` per rank.
        scenario: What all points share, with the links that are not swept.

    Raises:
        BadQuantity: If a quantity has no unit, or a range is none.
        BadTopology: If a map does not fit the pipeline.
        ScenarioError: If figures do not belong together.
        UnknownName: If there is no such schedule or p2p mode.

    Example:
        >>> tt.grid(found, "1f1b", dc="0-1,2-3", bandwidth="10..80Gbit/s*1", latency="2ms,10ms").size
        8
    """
    asked = unplaced_grid(
        schedules,
        bandwidth=bandwidth,
        latency=latency,
        distance=distance,
        hbm=hbm,
        microbatches=microbatches,
        p2p=p2p,
        extra_forwards=extra_forwards,
    )
    maps = [dc] if isinstance(dc, str) else dc
    shared = asked.scenario if scenario is None else scenario
    placed_there = replace(asked, scenario=shared, dcs=tuple(places(text, recording) for text in maps))
    placed_there.check(len(recording.observed.global_ranks))
    return placed_there


def unplaced_grid(
    schedules: str | Sequence[str] | None,
    *,
    bandwidth: str | None,
    latency: str | None,
    distance: str | None,
    hbm: str | None,
    microbatches: str | None,
    p2p: str | None,
    extra_forwards: str,
) -> Grid:
    """A grid without the places of ranks, for before a recording is read; see :func:`grid`.

    Raises:
        ScenarioError: As ``grid``.
        UnknownName: As ``grid``.
    """
    if latency is not None and distance is not None:
        raise ScenarioError(f"{Option.LATENCY} and {Option.DISTANCE} say the same thing.", hint="give one of them")
    names = () if schedules is None else tuple(check_schedules(parse_names(schedules)))
    warm_ups = parse_warm_ups(extra_forwards)
    if names and warm_ups != (None,) and not any(map(tuning_of, names)):
        takers = takers_of("extra forwards")
        raise ScenarioError(
            f"extra forwards are {' and '.join(takers)}'s, and {','.join(names)} has none.",
            hint=f"add {' or '.join(takers)} to {Option.SCHEDULES}",
        )
    latencies = () if latency is None else parse_latencies(latency)
    return Grid(
        schedules=names,
        microbatches=() if microbatches is None else parse_numbers(microbatches),
        extra_forwards=warm_ups,
        bandwidths_bytes_per_s=() if bandwidth is None else parse_bandwidths(bandwidth),
        latencies_ns=latencies if distance is None else parse_distances(distance),
        hbm_bytes=() if hbm is None else parse_sizes(hbm),
        p2p=() if p2p is None else _modes(p2p),
    )


_USUAL_BANDWIDTHS = "10Gbit/s,25Gbit/s,50Gbit/s,100Gbit/s,200Gbit/s,400Gbit/s,800Gbit/s"
_USUAL_LATENCIES = "1ms,2ms,5ms,10ms,20ms,40ms"
_LIMITS = 6
_ROUND_GIB = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)


def grid_around(asked: Sequence[Scenario], schedules: Sequence[str], needed_bytes: Sequence[int]) -> Grid:
    """A grid of links and limits that people use, and of those that are asked about.

    Swept are the links of the first scenario that are as narrow and as long as its narrowest; the others stay.

    Args:
        asked: Scenarios that differ in the figures of their links.
        schedules: Those to choose among.
        needed_bytes: What plans need: limits lie between the least and the most of it.
    """
    first, links = asked[0], asked[0].topology.links

    def figures(link: Link) -> tuple[int, int]:
        return link.bandwidth_bytes_per_s, -link.latency_ns

    narrowest = min(map(figures, links))
    swept = tuple((link.src_dc, link.dst_dc) for link in links if figures(link) == narrowest)
    offered = [link for each in asked for link in each.topology.links if (link.src_dc, link.dst_dc) in swept]
    fixed = tuple(link for link in links if (link.src_dc, link.dst_dc) not in swept)
    limits = {each.hbm_bytes for each in asked if each.hbm_bytes is not None} | set(_limits(needed_bytes))
    return Grid(
        schedules=tuple(schedules),
        scenario=replace(first, topology=replace(first.topology, links=fixed), hbm_bytes=None),
        bandwidths_bytes_per_s=_with(parse_bandwidths(_USUAL_BANDWIDTHS), (o.bandwidth_bytes_per_s for o in offered)),
        latencies_ns=_with(parse_latencies(_USUAL_LATENCIES), (o.latency_ns for o in offered)),
        hbm_bytes=(*sorted(limits), None),
        between=swept,
    )


def _with(usual: Iterable[int], asked: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*usual, *asked}))


def _limits(needed_bytes: Sequence[int]) -> list[int]:
    """A few round sizes from below the least need to above the most."""
    if not needed_bytes:
        return []
    low, high = min(needed_bytes), max(needed_bytes)
    steps = (round(size * 2**30) for size in _ROUND_GIB)
    step = next((step for step in steps if -(-high // step) - (low - 1) // step < _LIMITS), high)
    return [n * step for n in range(max(1, (low - 1) // step), -(-high // step) + 1)]


def _modes(text: str) -> tuple[P2PMode, ...]:
    return tuple(dict.fromkeys(p2p_mode(name.strip()) for name in text.split(",")))


def over_tiers(
    grid: Grid, network: NetworkChoice | str | Path, tiers: str | Sequence[str], recording: Reconstruction
) -> list[Grid]:
    """The grid on a network, once for each combination of figures of its tiers.

    Args:
        grid: Everything else.
        network: The network, or the TOML file of one.
        tiers: Figures to sweep, as in ``dc.bandwidth=100..800Gbit/s``; of bandwidth, latency, oversubscription, size
            and connections of any tier.
        recording: A reconstructed Run: where its ranks are on the network.

    Returns:
        Grids that are named by the figures.

    Raises:
        ScenarioError: If an axis cannot be read.
        BadTopology: If the job does not fit the network by some figure.
        UnknownName: If there is no such tier or figure.

    Example:
        >>> from pathlib import Path
        >>> tier = '[[tier]]\\nname = "{}"\\nsize = {}\\nbandwidth = "{}"\\n'
        >>> _ = Path("m.toml").write_text(tier.format("hb", 2, "450GB/s") + tier.format("dc", 4, "25Gbit/s"))
        >>> [grid.name for grid in tt.over_tiers(tt.grid(found, "1f1b"), "m.toml", "dc.latency=1ms,10ms", found)]
        ['dc 1 ms', 'dc 10 ms']
    """
    choice = network if isinstance(network, NetworkChoice) else read_network(Path(network))
    axes = [_tier_axis(text, choice) for text in ([tiers] if isinstance(tiers, str) else tiers)]
    grids = []
    for figures in product(*axes):
        changed = choice
        for tier, figure, value, _ in figures:
            changed = changed.with_figure(tier, figure, value)
        topology = seated(changed, recording)
        name = ", ".join(text for *_, text in figures) or None
        grids.append(replace(grid, name=name, scenario=replace(grid.scenario, topology=topology)))
    return grids


def _tier_axis(text: str, choice: NetworkChoice) -> list[tuple[str, Figure, float, str]]:
    """Values of one figure of one tier, each with what it is called."""
    name, is_pair, values = text.partition("=")
    tier, is_figure, asked = name.strip().partition(".")
    if not is_pair or not is_figure:
        raise ScenarioError(
            f"{text!r} is no figure of a tier.", hint=f"write it as in {Option.TIER('dc.bandwidth=100..800Gbit/s')}"
        )
    choice.network.number(tier)
    figure = named("figure of a tier", asked, FIGURES)
    if figure == "bandwidth":
        return [(tier, figure, value, f"{tier} {format_bits(value)}") for value in parse_bandwidths(values)]
    if figure == "latency":
        parse = parse_distances if values.rstrip().endswith("km") else parse_latencies
        return [(tier, figure, value, f"{tier} {value / 1e6:g} ms") for value in parse(values)]
    if figure != "oversubscription":
        return [(tier, figure, value, f"{tier}.{figure} {value}") for value in parse_numbers(values)]
    return [(tier, figure, value, f"{tier} {value:g}:1") for value in map(_ratio, values.split(","))]


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e6:
        raise BadQuantity(f"oversubscription is {text.strip()!r}.", hint="a number from 1, as in 2")
    return value


def places(text: str, recording: Reconstruction) -> Topology:
    """Where the ranks of a recording sit by a map.

    Raises:
        BadTopology: If it leaves a rank of the pipeline out.
    """
    return placed(Topology(), read_dc_map(text), recording)
