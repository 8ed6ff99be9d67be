"""What of a recorded job can be chosen on a fleet: axes, each fixed, listed or left, and the ways that they span.

What a recording does not tell the costs of (other degrees, recomputation) is no axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tracetool.advice.cotune import equal_sizes, scaling_of
from tracetool.errors import BadTopology, Option, ScenarioError, UnknownName
from tracetool.explore.failures import slow_factors
from tracetool.explore.space import placement_rules
from tracetool.model.pipeline import BY_EDGE
from tracetool.model.scenario import LINK_SHARINGS, Scenario
from tracetool.network.placement import DIMENSIONS
from tracetool.schedules import SCHEDULES, kind_of
from tracetool.schedules.names import takes_chunks
from tracetool.units import format_count
from tracetool.whatif.best import default_schedules, recorded_schedule
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from tracetool.advice.cotune import SizesScaling
    from tracetool.costs.rescaled import MicrobatchSize
    from tracetool.explore.failures import SlowGroup
    from tracetool.explore.space import AxisName, Values
    from tracetool.model.pipeline import LayerOverlap, P2PMode, Pipeline
    from tracetool.model.scenario import LinkSharing
    from tracetool.model.topology import Topology
    from tracetool.network.collectives import Algorithm
    from tracetool.network.file import NetworkChoice
    from tracetool.network.traffic import Traffic
    from tracetool.reconstruction import Reconstruction


class RecordedWay(NamedTuple):
    """What is chosen of a recorded job beside the schedule and its depth.

    Attributes:
        placement: The rule by which ranks are put on devices.
        p2p: How transfers are issued; None as the recording shows.
        chunks: Stages per rank that schedules of several are cut into; None for as few as they take.
        collectives: How collectives of data-parallel groups run.
        sharing: How pipelines share the links.
        routing: Share of the outermost tier's bandwidth that routing reaches.
        compression: Bytes over the outermost tier, of what was to be sent; below 1 it changes what is computed.
        microbatch: Sequences of a microbatch, at as many tokens a step; None as recorded.
    """

    placement: str
    p2p: P2PMode | None = None
    chunks: int | None = None
    collectives: Algorithm = "auto"
    sharing: LinkSharing = "temporal"
    routing: float = 1.0
    compression: float = 1.0
    microbatch: int | None = None

    @property
    def text(self) -> str:
        """How the fleet is used, in words."""
        parts = [f"placed {self.placement or ','.join(DIMENSIONS)}"]
        if self.collectives != "auto":
            parts.append(f"gradients reduced by {self.collectives}")
        if self.microbatch is not None:
            parts.append(f"microbatches of {self.microbatch}")
        if self.sharing == "spatial":
            parts.append("pipelines share links evenly")
        if self.routing != 1:
            parts.append(f"routing reaches {self.routing:.0%}")
        if self.compression != 1:
            parts.append(f"compressed to {self.compression:.0%} (changes numerics)")
        return ", ".join(parts)

    def choice(self, network: NetworkChoice) -> NetworkChoice:
        """The network as it is used."""
        tiers = network.network.tiers
        factor = self.compression / self.routing
        if factor != 1:
            tiers = (*tiers[:-1], tiers[-1].narrowed(factor))
        return replace(
            network,
            network=replace(network.network, tiers=tiers),
            placement=self.placement,
            algorithms={**network.algorithms, "dp": self.collectives},
        )


WAY_AXES: tuple[AxisName, ...] = (
    "placement", "p2p", "chunks", "collectives", "sharing", "routing", "compression", "microbatch",
)  # fmt: skip
"""Fields of ``RecordedWay``."""
RECORDED_AXES: tuple[AxisName, ...] = ("schedule", "depth", *WAY_AXES)
"""What of a recorded job can be chosen."""
_NOT_OWN = frozenset({"chunks", "routing", "compression"})
"""Axes along which nothing is tried by itself."""


@dataclass(frozen=True)
class RecordedSpace:
    """What is searched.

    Attributes:
        recording: The recording.
        choice: The fleet; its placement and algorithms are what the recorded job is taken to have there.
        given: Values of axes that were fixed or listed.
        left: Axes that stay as the recording and the fleet's file have them.
        hbm_bytes: Memory of a rank; None for no limit.
        overlaps: How layers inside actions run (``tracetool.overlap.actions``); as recorded if there are none.
        sizes: What recorded microbatches are made of; None if that is not known, and others cannot be had.
        traffic: What the job's ranks send each other in a step; None if that was not asked for.
        unlike: Where pipelines of the job differ in their costs, one of each kind, and the numbers of all of it.
        slow: Groups of devices that compute more slowly.

    Raises:
        ScenarioError: If an axis is none of a recording's, or both given and left.
    """

    recording: Reconstruction
    choice: NetworkChoice
    given: Mapping[AxisName, Values] = field(default_factory=dict)
    left: frozenset[AxisName] = frozenset()
    hbm_bytes: int | None = None
    overlaps: tuple[LayerOverlap, ...] = ()
    sizes: MicrobatchSize | None = None
    traffic: Traffic | None = None
    unlike: tuple[tuple[Reconstruction, tuple[int, ...]], ...] = ()
    slow: tuple[SlowGroup, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what a recording does not tell."""
        unknown = sorted((self.given.keys() | self.left) - set(RECORDED_AXES))
        if unknown:
            raise ScenarioError(
                f"a recording tells the costs of what was run: {', '.join(unknown)} stays as recorded.",
                hint=f"axes are {', '.join(RECORDED_AXES)}; a model's file has the others (tracetool explore "
                "MODEL.toml)",
            )
        both = sorted(self.left & self.given.keys())
        if both:
            raise ScenarioError(f"{both[0]} is both given and left as it is.", hint="say one of both")
        if self.choice.file:
            raise ScenarioError(
                f"{self.choice.file} places one job alone.", hint="give placement as a rule in the network's file"
            )
        self._check_chunks()
        if self.unlike and self.overlaps:
            raise ScenarioError(
                "pipelines of this recording differ in their costs, and what overlap inside layers changes is known of "
                "one alone.",
                hint="leave out the overlap of layers",
            )
        if self.sizes is None and "microbatch" in self.given:
            raise ScenarioError(
                "a trace does not tell the sizes of its microbatches.",
                hint=f"add {Option.MBS} and {Option.SEQ} of the recording",
            )

    def _check_chunks(self) -> None:
        values, recorded = self.given.get("chunks", ()), self.recording.pipeline.observed.shape.chunks
        if values and recorded > 1:
            raise ScenarioError(
                f"the recording has {recorded} stages per rank already, which are not cut again.",
                hint="leave chunks out",
            )
        for value in values:
            if not self.schedules(value):
                raise ScenarioError(
                    f"none of {', '.join(self.values('schedule'))} has {format_count(value, 'stage')} per rank.",
                    hint="leave chunks out, or try interleaved, zb-v, hanayo" if value > 1 else "leave chunks out",
                )

    def schedules(self, chunks: int | None) -> Values:
        """Those that go with a number of stages per rank; all where none is said."""
        names = self.values("schedule")
        if chunks is None:
            return names
        kinds = zip(names, map(kind_of, names), strict=True)
        return tuple(name for name, kind in kinds if (takes_chunks(kind) if chunks > 1 else kind.least_chunks == 1))

    @property
    def bounds(self) -> frozenset[str]:
        """Ways of layers that nothing was measured to reach."""
        return frozenset(one.way for one in self.overlaps if one.is_bound)

    @property
    def base(self) -> RecordedWay:
        """As recorded, where the fleet's file puts it."""
        return RecordedWay(self.choice.placement, collectives=self.choice.algorithms.get("dp", "auto"))

    @property
    def start(self) -> RecordedWay:
        """The base, but for axes that were given without its value: these have the first that was named."""
        base = self.base._asdict()
        tried = {axis: self.values(axis) for axis in WAY_AXES}
        return RecordedWay(**{axis: base[axis] if base[axis] in tried[axis] else tried[axis][0] for axis in WAY_AXES})

    @property
    def baseline(self) -> str:
        """The recorded order by name."""
        return recorded_schedule(self.recording.pipeline.observed, None)

    def values(self, axis: AxisName) -> Values:
        """What is tried along an axis; of schedule and depth, the base is what the recording has."""
        if axis in self.given:
            as_recorded = self.sizes.sequences if axis == "microbatch" and self.sizes is not None else None
            return tuple(None if value == as_recorded else value for value in self.given[axis])
        base: Values = {"schedule": (self.baseline,), "depth": (None,)}.get(axis) or (getattr(self.base, axis),)
        if axis in self.left or axis in _NOT_OWN:
            return base
        pipeline = self.recording.pipeline
        # Their orders follow from the recording's costs, the fleet's links and the limit of memory.
        listed = (name for name in SCHEDULES.names() if SCHEDULES.get(name).is_listed)
        own: Mapping[str, Values] = {
            "placement": placement_rules(self.choice.network),
            "schedule": (*default_schedules(pipeline.observed), *listed),
            "p2p": () if pipeline.p2p in BY_EDGE else ("per-edge",),
            "sharing": LINK_SHARINGS,
            "microbatch": tuple(size.sequences for size in self._equal_sizes),
        }
        return tuple(dict.fromkeys((*base, *own.get(axis, ()))))

    @cached_property
    def _equal_sizes(self) -> tuple[MicrobatchSize, ...]:
        """Other sizes of microbatches of as many tokens a step, at the recorded length of sequences."""
        if self.sizes is None:
            return ()
        tokens = self.sizes.tokens * self.recording.pipeline.observed.shape.microbatches
        alike = (size for size in equal_sizes(self.sizes, tokens) if size.length == self.sizes.length)
        return tuple(size for size in alike if size != self.sizes)

    @property
    def kinds(self) -> tuple[Reconstruction, ...]:
        """Of each kind of pipelines one."""
        return tuple(recording for recording, _ in self.unlike) or (self.recording,)

    @cached_property
    def _scalings(self) -> dict[int, SizesScaling]:
        return {}

    def pipeline_at(self, way: RecordedWay, recording: Reconstruction) -> Pipeline:
        """A kind of pipelines with microbatches of a way's size."""
        if way.microbatch is None or self.sizes is None:
            return recording.pipeline
        if id(recording) not in self._scalings:
            self._scalings[id(recording)] = scaling_of(recording, self.sizes)
        return self._scalings[id(recording)].at(replace(self.sizes, sequences=way.microbatch))

    def slowness(self, topology: Topology, recording: Reconstruction) -> list[tuple[float, ...]]:
        """How many times as long actions of pipeline ranks take: of each pipeline of a kind that none is slower than.

        Args:
            topology: Where the job is.
            recording: One of the kind.
        """
        own, seating = recording.observed.global_ranks, topology.seating
        if not self.slow or seating is None:
            return [(1.0,) * len(own)]
        factors = slow_factors(seating.network, list(seating.device_of.values()), self.slow)
        factor_of = dict(zip(seating.device_of, factors, strict=True))
        places = [place for place in recording.coordinates if place.rank in factor_of]
        numbers = next((numbers for one, numbers in self.unlike if one is recording), None)
        replicas = {place.dp or 0 for place in places if numbers is None or place.pipeline in numbers}
        lines = {replica: [1.0] * len(own) for replica in sorted(replicas)}
        for place in places:
            if (line := lines.get(place.dp or 0)) is not None:
                stage = own.index(place.rank) if place.rank in own else place.pp or 0
                # All ranks of a stage wait for each other.
                line[stage] = max(line[stage], factor_of[place.rank])
        sorts = dict.fromkeys(map(tuple, lines.values()))
        return [
            one
            for one in sorts
            if not any(other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in sorts)
        ]

    @cached_property
    def _met_bytes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def tier_bytes(self, way: RecordedWay) -> tuple[int, ...] | None:
        """Bytes that the recorded order moves over each tier where a way puts it, from the inside out.

        Raises:
            BadTopology: If it does not fit on the fleet.
        """
        seating = None if self.traffic is None else seated(way.choice(self.choice), self.recording).seating
        if seating is None or self.traffic is None:
            return None
        if way.placement not in self._met_bytes:
            devices = [seating.device_of.get(rank, 0) for rank in range(self.traffic.ranks)]
            self._met_bytes[way.placement] = tuple(self.traffic.met_bytes(seating.network, devices))
        *inner, outer = self._met_bytes[way.placement]
        return (*inner, round(outer * way.compression))

    def price_of(self, step_ns: int, tier_bytes: tuple[int, ...] | None) -> float | None:
        """What a step costs; None without a price, or where its bytes are not known."""
        price = self.choice.price
        return None if price is None or tier_bytes is None else price.of_step(step_ns, tier_bytes)

    def ways(self, left_out: Counter[str]) -> Iterator[tuple[RecordedWay, Scenario]]:
        """Everything that is tried beside schedule and depth, each once, that of the start first.

        Args:
            left_out: Counts what does not fit on the fleet, by reason.

        Raises:
            BadTopology: If nothing fits.
        """
        trouble: BadTopology | UnknownName | None = None
        known, refused, start = set(), set(), self.start
        every = product(*(self.values(axis) for axis in WAY_AXES))
        tried = [RecordedWay(**dict(zip(WAY_AXES, values, strict=True))) for values in every]
        for way in sorted(tried, key=lambda way: way != start):
            try:
                scenario = self.scenario_of(way)
            except (BadTopology, UnknownName) as error:
                refused.add(way.placement)
                trouble = error
                continue
            if (scenario, way.chunks) not in known:
                known.add((scenario, way.chunks))
                yield way, scenario
        if refused:
            left_out["placements that do not fit"] += len(refused)
        if not known and trouble is not None:
            raise trouble

    def scenario_of(self, way: RecordedWay) -> Scenario:
        """What a way is replayed in.

        Raises:
            BadTopology: If the job does not fit on the fleet.
            UnknownName: If there is no such tier or dimension.
        """
        topology = seated(way.choice(self.choice), self.recording)
        scenario = Scenario(
            topology, self.hbm_bytes, way.p2p, microbatches=self._microbatches(way), link_sharing=way.sharing
        )
        return scenario if scenario.pipelines_on_link > 1 else replace(scenario, link_sharing="temporal")

    def _microbatches(self, way: RecordedWay) -> int | None:
        """Of a step, for as many tokens as recorded; None as recorded."""
        if self.sizes is None or way.microbatch is None:
            return None
        microbatches, rest = divmod(
            self.sizes.sequences * self.recording.pipeline.observed.shape.microbatches, way.microbatch
        )
        if rest or not microbatches:
            raise ScenarioError(
                f"microbatches of {way.microbatch} do not divide the sequences of the recorded step.",
                hint=f"{', '.join(str(size.sequences) for size in self._equal_sizes)} would",
            )
        return microbatches
