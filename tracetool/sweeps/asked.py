"""A grid as people write it: lists and ranges with units."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError
from tracetool.model.topology import Topology
from tracetool.schedules import parse_names, tuning_of
from tracetool.schedules.heeded import takers_of
from tracetool.schedules.names import check_schedules
from tracetool.sweeps.grid import Grid
from tracetool.sweeps.ranges import (
    parse_bandwidths,
    parse_distances,
    parse_latencies,
    parse_numbers,
    parse_sizes,
    parse_warm_ups,
)
from tracetool.whatif.wording import p2p_mode, placed, read_dc_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.scenario import Scenario
    from tracetool.reconstruction import Reconstruction


def grid(
    found: Reconstruction,
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
        found: A reconstructed Run.
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
    placed_there = replace(asked, scenario=shared, dcs=tuple(places(text, found) for text in maps))
    placed_there.check(len(found.observed.global_ranks))
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


def _modes(text: str) -> tuple[P2PMode, ...]:
    return tuple(dict.fromkeys(p2p_mode(name.strip()) for name in text.split(",")))


def places(text: str, found: Reconstruction) -> Topology:
    """Where the ranks of a recording sit by a map.

    Raises:
        BadTopology: If it leaves a rank of the pipeline out.
    """
    return placed(Topology(), read_dc_map(text), found)
