"""Random schedules, links and costs for tests of the replay engine, as class durations instead of pipelines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.routed import routed
from hypothesis import strategies as st

from tracetool.errors import UnsupportedShape
from tracetool.model.load import SustainedLoad
from tracetool.model.pipeline import P2P_MODES
from tracetool.model.schedule import PipelineShape
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays.compiled import Compiled
from tracetool.replays.flow import Slowdown
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Placement, Schedule
    from tracetool.replays.flow import Int32s

ENGINES = ["plain"] if find_spec("tracetool.replays._engine") is None else ["plain", "compiled"]

SHAPES: tuple[tuple[str, int, Placement], ...] = (
    ("1f1b", 1, "loop"), ("gpipe", 1, "loop"), ("geopipe", 1, "loop"), ("zb-h1", 1, "loop"),
    ("interleaved", 2, "loop"), ("interleaved", 3, "loop"), ("zb-v", 2, "v"), ("dualpipe", 2, "bidirectional"),
    ("dualpipev", 2, "v"), ("chimera", 2, "bidirectional"), ("hanayo", 2, "v"), ("looped-bfs", 2, "loop"),
)  # fmt: skip
"""Schedules with stages per rank and placement."""


@dataclass(frozen=True)
class EngineCase:
    """A schedule with places; what its classes cost is drawn by ``durations``."""

    schedule: Schedule
    mode: P2PMode
    topology: Topology
    buffered: bool
    longest: int

    def compiled(self) -> Compiled:
        return Compiled(self.schedule, self.mode, self.topology, buffered=self.buffered)

    def durations(self, compiled: Compiled, random: np.random.Generator, scenarios: int) -> Any:
        """Classes by scenarios; short ones make many ties."""
        drawn = random.integers(0, self.longest + 1, (compiled.classes, scenarios))
        drawn[0] = 0
        for way in compiled.ways:
            if way.path is None:
                drawn[way.arrive] = 0
        for heads in _heads_by_link(compiled):
            drawn[heads] = drawn[heads[0]]
        return drawn

    def varying(self, compiled: Compiled, random: np.random.Generator) -> Int32s:
        """Some classes, in any order, for their durations to differ from scenario to scenario."""
        some = random.permutation(compiled.classes)[: int(random.integers(0, compiled.classes + 1))].tolist()
        for heads in _heads_by_link(compiled):
            if not set(heads).isdisjoint(some):
                some += set(heads).difference(some)
        return np.array(some, np.int32)

    def slowdown(self, compiled: Compiled, durations: Any, random: np.random.Generator) -> Slowdown:
        actions = len(compiled.graph.flow.actions)
        alone = durations[1 : actions + 1]
        loads = []
        for _ in self.schedule.orders:
            settle = int(random.integers(1, 10 * self.longest + 2))
            threshold, slope, step_threshold, step_slope = random.random(4).tolist()
            load = SustainedLoad(settle, threshold, slope, step_threshold, step_slope, 1.2, 0.3)
            loads.append(load if random.random() < 0.5 else None)
        return Slowdown(alone + random.integers(0, self.longest + 1, actions), tuple(loads))


def _heads_by_link(compiled: Compiled) -> list[list[int]]:
    """Classes of what passes each link ahead of another one: its latency is one for all, so that none overtakes."""
    heads: dict[Link, list[int]] = defaultdict(list)
    for way in compiled.ways:
        for (head, _), link in zip(way.further, way.path or (), strict=False):
            heads[link].append(head)
    return list(heads.values())


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule that exists for a small random shape."""
    name, chunks, placement = draw(st.sampled_from(SHAPES))
    p, m = draw(st.integers(1, 6)), draw(st.integers(1, 10))
    extra = tuple(sorted(draw(st.lists(st.integers(0, 2), min_size=p, max_size=p)), reverse=True))
    shape = PipelineShape(p, m, chunks, placement)
    try:
        return build_schedule(name, shape, extra_forwards=extra if name == "geopipe" else None)
    except UnsupportedShape:
        return build_schedule("1f1b", PipelineShape(p, m))


@st.composite
def engine_cases(draw: st.DrawFn) -> EngineCase:
    """DCs may come back further down the pipeline, so that several pairs of ranks share a link."""
    schedule = draw(schedules())
    p = schedule.shape.ranks
    seats = draw(st.lists(st.integers(0, draw(st.integers(0, 2))), min_size=p, max_size=p))
    dcs = tuple(f"dc{seat}" for seat in (sorted(seats) if draw(st.booleans()) else seats))
    pairs = [(a, b) for a in sorted(set(dcs)) for b in sorted(set(dcs)) if a != b]
    topology = Topology(dcs, tuple(Link(a, b, 1, 0) for a, b in pairs))
    if draw(st.booleans()):  # over up to three links each, which other pairs may pass as well
        count = draw(st.integers(1, 6))
        numbers = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
        links = [Link(f"x{number}", f"y{number}", 1, 0) for number in range(count)]
        topology = routed(dcs, links, {pair: draw(numbers) for pair in pairs})
    mode = draw(st.sampled_from(P2P_MODES))
    return EngineCase(schedule, mode, topology, draw(st.booleans()), draw(st.sampled_from([1, 3, 20, 10**7])))
