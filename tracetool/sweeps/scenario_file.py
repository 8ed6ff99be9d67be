"""Named what-ifs in a TOML file.

The structs below are its form: ``schemas/scenario.schema.json`` is made from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import ScenarioError
from tracetool.model.pipeline import P2PMode  # noqa: TC001 - msgspec reads it
from tracetool.model.topology import Topology, parse_link
from tracetool.sweeps.asked import parse_distances
from tracetool.tables.fields import doc, parsed, read_toml
from tracetool.units import parse_bandwidth_bytes_per_s, parse_duration_ns, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracetool.sweeps.grid import Grid

_HINT = "schemas/scenario.schema.json; schemas/README.md has an example"

_Count = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
_Pipelines = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class NamedScenario(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One what-if; what it does not say is as the command line says."""

    name: Annotated[str, msgspec.Meta(min_length=1, description="What it is called in results.")]
    dc: Annotated[str | None, doc("Where ranks sit, as replay takes it: 0-1,2-3.")] = None
    bandwidth: Annotated[str | None, doc("Of every link between DCs that is not in links: 100Gbit/s.")] = None
    latency: Annotated[str | None, doc("One way, of the same links: 2ms.")] = None
    distance: Annotated[str | None, doc("Instead of latency, at 5 us/km: 400km.")] = None
    links: Annotated[list[str], doc("Links of other figures, as replay takes them: dc0-dc1=25Gbit/s,10ms.")] = []
    hbm: Annotated[str | None, doc("Memory limit per rank: 80GiB.")] = None
    p2p: Annotated[P2PMode | None, doc("How transfers are issued.")] = None
    microbatches: Annotated[_Count | None, doc("Microbatches per step.")] = None
    pipelines_on_link: Annotated[
        _Pipelines | None, doc("Equal pipelines that share the links; those of the traces that use them if not said.")
    ] = None


class ScenarioFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Named what-ifs for tracetool sweep --scenario: [[scenario]] tables."""

    scenario: Annotated[list[NamedScenario], msgspec.Meta(min_length=1, description="One per what-if.")]


def read_scenarios(path: Path) -> list[NamedScenario]:
    """Read a file of named what-ifs.

    Raises:
        ScenarioError: If it cannot be read, is no TOML, or a key is unknown, missing or of another type.
    """
    entries = read_toml(path, ScenarioFile, hint=_HINT).scenario
    names = [scenario.name for scenario in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ScenarioError(f"{path}: two scenarios are called {twice!r}.", hint="give each a name of its own")
    return entries


def grids_of(
    scenarios: Sequence[NamedScenario],
    base: Grid,
    places_of: Callable[[str], tuple[str, ...] | Topology],
    path: str,
) -> list[Grid]:
    """A grid per scenario: the base's, with what the scenario says in place of it.

    Args:
        scenarios: Of the file.
        base: What the command line says.
        places_of: Reads a DC map.
        path: Of the file, for messages.

    Raises:
        ScenarioError: If a value cannot be read, naming its key.
    """
    return [
        _grid(scenario, f"{path}: scenario[{number}]", base, places_of) for number, scenario in enumerate(scenarios)
    ]


def _grid(scenario: NamedScenario, at: str, base: Grid, places_of: Callable[[str], tuple[str, ...] | Topology]) -> Grid:
    grid = replace(base, name=scenario.name)
    if scenario.latency is not None and scenario.distance is not None:
        raise ScenarioError(f"{at} has a latency and a distance.", hint="give one of them")
    if scenario.dc is not None:
        grid = replace(grid, dcs=(parsed(f"{at}.dc", scenario.dc, places_of),))
    if scenario.bandwidth is not None:
        figure = parsed(f"{at}.bandwidth", scenario.bandwidth, parse_bandwidth_bytes_per_s)
        grid = replace(grid, bandwidths_bytes_per_s=(figure,))
    if scenario.latency is not None:
        grid = replace(grid, latencies_ns=(parsed(f"{at}.latency", scenario.latency, parse_duration_ns),))
    if scenario.distance is not None:
        grid = replace(grid, latencies_ns=parsed(f"{at}.distance", scenario.distance, parse_distances))
    if scenario.hbm is not None:
        grid = replace(grid, hbm_bytes=(parsed(f"{at}.hbm", scenario.hbm, parse_size_bytes),))
    if scenario.p2p is not None:
        grid = replace(grid, p2p=(scenario.p2p,))
    if scenario.microbatches is not None:
        grid = replace(grid, microbatches=(scenario.microbatches,))
    if scenario.pipelines_on_link is not None:
        grid = replace(grid, scenario=replace(grid.scenario, pipelines=scenario.pipelines_on_link))
    if scenario.links:
        given = [parsed(f"{at}.links[{i}]", text, parse_link) for i, text in enumerate(scenario.links)]
        links = tuple(link for directions in given for link in directions)
        grid = replace(grid, scenario=replace(grid.scenario, topology=replace(grid.scenario.topology, links=links)))
    return grid
