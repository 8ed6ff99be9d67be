"""The plans of a recorded job on a fleet: what its measured costs can be replayed as, and the best of them.

Every plan is replayed as ``replay`` and sweeps do it: measured costs, in stages as recorded or cut anew by layers, over
the tiers of a network. What a recording does not tell the costs of (other degrees, recomputation) is no axis.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tracetool.advice.cotune import equal_sizes, scaling_of
from tracetool.errors import BadTopology, Option, ScenarioError, ScheduleError, UnknownName
from tracetool.explore.answer import CHOICES
from tracetool.explore.space import placement_rules
from tracetool.model.notice import Silent, unasked
from tracetool.model.pipeline import BY_EDGE, NO_OVERLAP
from tracetool.model.scenario import LINK_SHARINGS, Scenario
from tracetool.network.placement import DIMENSIONS
from tracetool.schedules import kind_of
from tracetool.sweeps.grid import Grid
from tracetool.sweeps.run import sweep
from tracetool.whatif.best import Chosen, choose, default_schedules, plan_name, recorded_schedule, recorded_test
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracetool.advice.cotune import SizesScaling
    from tracetool.costs.rescaled import MicrobatchSize
    from tracetool.explore.space import AxisName, Values
    from tracetool.model.notice import Notice, Progress
    from tracetool.model.pipeline import LayerOverlap, P2PMode
    from tracetool.model.scenario import LinkSharing
    from tracetool.network.collectives import Algorithm
    from tracetool.network.file import NetworkChoice
    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.results import SweepPoint


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


_WAY_AXES: tuple[AxisName, ...] = (
    "placement", "p2p", "chunks", "collectives", "sharing", "routing", "compression", "microbatch",
)  # fmt: skip
"""Fields of ``RecordedWay``."""
RECORDED_AXES: tuple[AxisName, ...] = ("schedule", "depth", *_WAY_AXES)
"""What of a recorded job can be chosen."""
_NOT_OWN = frozenset({"chunks", "routing", "compression"})
"""Axes along which nothing is tried by itself."""


@dataclass(frozen=True)
class RecordedSpace:
    """What is searched.

    Attributes:
        found: The recording.
        choice: The fleet; its placement and algorithms are what the recorded job is taken to have there.
        given: Values of axes that were fixed or listed.
        left: Axes that stay as the recording and the fleet's file have them.
        hbm_bytes: Memory of a rank; None for no limit.
        overlaps: How layers inside actions run (``tracetool.overlap.actions``); as recorded if there are none.
        sizes: What recorded microbatches are made of; None if that is not known, and others cannot be had.

    Raises:
        ScenarioError: If an axis is none of a recording's, or both given and left.
    """

    found: Reconstruction
    choice: NetworkChoice
    given: Mapping[AxisName, Values] = field(default_factory=dict)
    left: frozenset[AxisName] = frozenset()
    hbm_bytes: int | None = None
    overlaps: tuple[LayerOverlap, ...] = ()
    sizes: MicrobatchSize | None = None

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
        if self.sizes is None and "microbatch" in self.given:
            raise ScenarioError(
                "a trace does not tell the sizes of its microbatches.",
                hint=f"add {Option.MBS} and {Option.SEQ} of the recording",
            )

    @property
    def base(self) -> RecordedWay:
        """As recorded, where the fleet's file puts it."""
        return RecordedWay(self.choice.placement, collectives=self.choice.algorithms.get("dp", "auto"))

    @property
    def baseline(self) -> str:
        """The recorded order by name."""
        return recorded_schedule(self.found.pipeline.observed, None)

    def values(self, axis: AxisName) -> Values:
        """What is tried along an axis; of schedule and depth, the base is what the recording has."""
        if axis in self.given:
            as_recorded = self.sizes.sequences if axis == "microbatch" and self.sizes is not None else None
            return tuple(None if value == as_recorded else value for value in self.given[axis])
        base: Values = {"schedule": (self.baseline,), "depth": (None,)}.get(axis) or (getattr(self.base, axis),)
        if axis in self.left or axis in _NOT_OWN:
            return base
        pipeline = self.found.pipeline
        own: Mapping[str, Values] = {
            "placement": placement_rules(self.choice.network),
            "schedule": tuple(default_schedules(pipeline.observed)),
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
        tokens = self.sizes.tokens * self.found.pipeline.observed.shape.microbatches
        alike = (size for size in equal_sizes(self.sizes, tokens) if size.length == self.sizes.length)
        return tuple(size for size in alike if size != self.sizes)

    @cached_property
    def scaling(self) -> SizesScaling | None:
        """How costs follow the sizes of microbatches; None if these are not known."""
        return None if self.sizes is None else scaling_of(self.found, self.sizes)

    def ways(self, left_out: Counter[str]) -> Iterator[tuple[RecordedWay, Scenario]]:
        """Everything that is tried beside schedule and depth, each once, that of the base first if it is among them.

        Args:
            left_out: Counts what does not fit on the fleet, by reason.

        Raises:
            BadTopology: If nothing fits.
        """
        trouble: BadTopology | UnknownName | None = None
        known = set()
        tried = [RecordedWay(*values) for values in product(*(self.values(axis) for axis in _WAY_AXES))]
        for way in sorted(tried, key=lambda way: way != self.base):
            try:
                topology = seated(way.choice(self.choice), self.found)
            except (BadTopology, UnknownName) as error:
                left_out["placements that do not fit"] += 1
                trouble = error
                continue
            scenario = Scenario(
                topology, self.hbm_bytes, way.p2p, microbatches=self._microbatches(way), link_sharing=way.sharing
            )
            if scenario.pipelines_on_link == 1:
                scenario = replace(scenario, link_sharing="temporal")
            if (scenario, way.chunks) not in known:
                known.add((scenario, way.chunks))
                yield way, scenario
        if not known and trouble is not None:
            raise trouble

    def _microbatches(self, way: RecordedWay) -> int | None:
        """Of a step, for as many tokens as recorded; None as recorded."""
        if self.sizes is None or way.microbatch is None:
            return None
        microbatches, rest = divmod(
            self.sizes.sequences * self.found.pipeline.observed.shape.microbatches, way.microbatch
        )
        if rest or not microbatches:
            raise ScenarioError(
                f"microbatches of {way.microbatch} do not divide the sequences of the recorded step.",
                hint=f"{', '.join(str(size.sequences) for size in self._equal_sizes)} would",
            )
        return microbatches


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """One plan of a recorded job, replayed.

    Attributes:
        way: What was chosen beside the schedule.
        point: The schedule, and what came of it.
    """

    way: RecordedWay
    point: SweepPoint

    @property
    def order_text(self) -> str:
        """Schedule and depth, with stages per rank that were asked for."""
        return plan_name(self.point) + (f" x{self.way.chunks}" if self.way.chunks else "")

    @property
    def text(self) -> str:
        """Schedule, how transfers are issued, and how layers overlap."""
        overlap = "" if self.point.overlap == NO_OVERLAP else f", layers overlap by {self.point.overlap}"
        return f"{self.order_text}, {self.point.p2p} transfers{overlap}"

    @property
    def step_ns(self) -> int:
        """Its step."""
        return self.point.step_ns or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAlone:
    """What a choice reaches.

    Attributes:
        name: What is chosen, all else as in the base.
        best: The best of it; None if nothing of it can run.
    """

    name: str
    best: RecordedPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExploration:
    """The answer to a search over a recording.

    Attributes:
        space: What was searched.
        base: The recorded order on the fleet.
        best: What to run; None if nothing fits.
        as_good: Plans as sure as the best whose steps do not differ from its by more than the error.
        unproven: Plans with shorter steps whose predictions rest on less.
        alone: Each choice alone, all else as in the base.
        one_by_one: All of them, one after another, each kept.
        plans: All that were replayed.
        refused: How many cannot be run, by reason.
        left_out: What was not taken up, by reason.
        open: How many ways were not looked at when the time was up.
        notes: What holds of all: how far replay misses the recording, what was inferred or is missing.
    """

    space: RecordedSpace
    base: RecordedPlan
    best: RecordedPlan | None
    as_good: tuple[RecordedPlan, ...]
    unproven: tuple[RecordedPlan, ...]
    alone: tuple[ChoiceAlone, ...]
    one_by_one: ChoiceAlone
    plans: tuple[RecordedPlan, ...]
    refused: Counter[str]
    left_out: Counter[str]
    open: int
    notes: tuple[Notice, ...]


def explore_recording(
    space: RecordedSpace,
    *,
    jobs: int | None = None,
    executor: str | None = None,
    ends: float | None = None,
    progress: Progress | None = None,
) -> RecordedExploration:
    """Replay every plan of a recorded job on a fleet, and choose by the rule of ``tracetool.whatif.best``.

    Args:
        space: What to search.
        jobs: Worker processes; by default as many as pay.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        ends: When the time is up, of ``time.monotonic``: the best plan so far is the answer.
        progress: Told how many ways to run there are beside schedules, and how many are done.

    Raises:
        BadTopology: If the job does not fit on the fleet.
        ScheduleError: If nothing can be replayed.
    """
    left_out: Counter[str] = Counter()
    ways = list(space.ways(left_out))
    progress = progress or unasked()
    progress.start(1 + len(ways))
    alone = Scenario(seated(space.base.choice(space.choice), space.found), space.hbm_bytes)
    done = sweep(space.found, Grid((space.baseline,), alone), knees=False, jobs=1, progress=Silent())
    base = RecordedPlan(space.base, done.points[0])
    progress.advance(1)
    plans: list[RecordedPlan] = []
    refused: Counter[str] = Counter()
    looked = 0
    for way, scenario in ways:
        if plans and ends is not None and time.monotonic() >= ends:
            break
        looked += 1
        try:
            points = _swept(space, way, scenario, jobs, executor)
        except ScheduleError as error:
            refused[error.message] += 1
            points = ()
        for point in points:
            if point.step_ns is None:
                refused[f"{point.schedule}: {point.reason}"] += 1
            plans += [RecordedPlan(way, one) for one in (point, point.closer) if one is not None and one.step_ns]
        progress.advance(1)
    chosen = _chosen(space, plans)
    plan_of = {id(plan.point): plan for plan in plans}
    return RecordedExploration(
        space=space, base=base, best=None if chosen.best is None else plan_of[id(chosen.best)],
        as_good=tuple(plan_of[id(point)] for point in chosen.as_good),
        unproven=tuple(plan_of[id(point)] for point in chosen.unproven),
        alone=tuple(ChoiceAlone(name=name, best=_changed(space, plans, base, axes)) for name, axes in _CHOICES.items()),
        one_by_one=ChoiceAlone(name="one by one", best=_one_by_one(space, plans, base)), plans=tuple(plans),
        refused=refused, left_out=left_out, open=len(ways) - looked, notes=done.notes,
    )  # fmt: skip


_CHOICES: Mapping[str, frozenset[str]] = {
    **{name: kept for name, axes in CHOICES.items() if (kept := frozenset(axes) & frozenset(RECORDED_AXES))},
    "overlap": frozenset({"overlap"}),
}


def _swept(
    space: RecordedSpace, way: RecordedWay, scenario: Scenario, jobs: int | None, executor: str | None
) -> Sequence[SweepPoint]:
    """All schedules and depths that go with a way, replayed; those that cannot be hold the reason."""
    names = space.values("schedule")
    if way.chunks is not None:
        names = tuple(name for name in names if kind_of(name).least_chunks > 1)
    grid = Grid(names, scenario, extra_forwards=space.values("depth"), overlaps=space.overlaps)
    found = space.found
    if way.microbatch is not None and space.sizes is not None and space.scaling is not None:
        found = replace(found, pipeline=space.scaling.at(replace(space.sizes, sequences=way.microbatch)))
    points = sweep(
        found, grid, knees=False, jobs=jobs, executor=executor, chunks=way.chunks, progress=Silent(), beside=()
    ).points
    return points if found is space.found else [_scaled(point) for point in points]


def _scaled(point: SweepPoint) -> SweepPoint:
    """A point whose costs are extrapolated: no recorded step was like it."""
    rests_on = (*point.rests_on, "microbatches of other sizes")
    closer = None if point.closer is None else _scaled(point.closer)
    return replace(point, known_error=None, rests_on=rests_on, closer=closer)


def _chosen(space: RecordedSpace, plans: Sequence[RecordedPlan]) -> Chosen[SweepPoint]:
    return choose([plan.point for plan in plans], recorded_test(space.found.pipeline), space.baseline)


def _changed(
    space: RecordedSpace, plans: Sequence[RecordedPlan], now: RecordedPlan, axes: Collection[str]
) -> RecordedPlan | None:
    """The best of the plans that are as one of them but for some axes."""
    kept = [axis for axis in _WAY_AXES if axis not in axes]
    alike = [
        plan
        for plan in plans
        if all(getattr(plan.way, axis) == getattr(now.way, axis) for axis in kept)
        and ("schedule" in axes or plan.order_text == now.order_text)
        and ("overlap" in axes or plan.point.overlap == now.point.overlap)
    ]
    best = _chosen(space, alike).best
    return next((plan for plan in alike if plan.point is best), None)


def _one_by_one(space: RecordedSpace, plans: Sequence[RecordedPlan], base: RecordedPlan) -> RecordedPlan:
    now = base
    for axes in _CHOICES.values():
        better = _changed(space, plans, now, axes)
        if better is not None and better.step_ns < now.step_ns:
            now = better
    return now
