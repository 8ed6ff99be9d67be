"""From a column of a grid to its points."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from tracetool.errors import ScenarioError, ScheduleError
from tracetool.model.notice import Notice, NoticeCode, SubjectKind
from tracetool.model.pipeline import max_if_known
from tracetool.replays import p2p_of
from tracetool.replays.evaluation import stages_for
from tracetool.replays.problem import pose
from tracetool.schedules import build_schedule, needs_costs, tuning_of
from tracetool.sweeps.replays import Replays
from tracetool.sweeps.results import SweepPoint
from tracetool.units import format_count, format_size
from tracetool.whatif.accuracy import known_error
from tracetool.whatif.best import rests_on
from tracetool.whatif.memory_limit import PEAK_ERROR_RATIO, all_fit, is_near_the_limit, most_lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.model.topology import Topology
    from tracetool.sweeps.grid import LinkColumn, Swept
    from tracetool.whatif.accuracy import KnownError
    from tracetool.whatif.depth import Depth, WarmUps


@dataclass(frozen=True, slots=True)
class ColumnPiece:
    """A column, or part of one, for one worker.

    Attributes:
        pipeline: What was measured, its layers as the column has them.
        column: The points.
        chunks: Stages per rank that schedules of several get; None for as few as they take.
        time_limit_s: For optimal: how long to search, for each point.
        own_error: By how much replay misses the recording, where errors of predictions like its own are known.
    """

    pipeline: Pipeline
    column: LinkColumn
    chunks: int | None = None
    time_limit_s: float = 5.0
    own_error: float | None = None

    @property
    def name(self) -> str:
        """What is done, in a few words."""
        return f"sweep {self.column.schedule} over {format_count(self.column.size, 'point')}"


def evaluate(piece: ColumnPiece, advance: Callable[[int], None]) -> list[SweepPoint]:
    """Replay all points of a column; those that cannot be are kept with the reason.

    Args:
        piece: The column and what it is about.
        advance: OrderFacts how many points are done.
    """
    points = Evaluator(piece).points(piece.column.links)
    advance(len(points))
    return points


@dataclass(slots=True)
class KnownOrders:
    """What is known of a schedule, whatever its links, memory limit and warm-up are.

    Attributes:
        replays: Its replays; None before the first.
        facts: By its extra forwards, what holds of an order over all links.
    """

    replays: Replays | None = None
    facts: dict[Depth | None, OrderFacts] = field(default_factory=dict)


class Evaluator:
    """Replays points of a column, over its own or other links; what is known is kept.

    Args:
        piece: The column and what it is about.
        known: What columns of the same schedule, places and microbatches share.
    """

    def __init__(self, piece: ColumnPiece, known: KnownOrders | None = None) -> None:
        self._piece = piece
        self._column = piece.column
        self._microbatches = piece.column.scenario.microbatches or piece.pipeline.observed.shape.microbatches
        self._known = KnownOrders() if known is None else known

    def points(self, links: Sequence[Swept]) -> list[SweepPoint]:
        """A point for each link and memory limit of the column: links outside, limits inside."""
        places = [(one, limit) for one in links for limit in self._column.hbm_bytes]
        try:
            pipeline, shape, _ = stages_for(
                self._piece.pipeline, self._column.schedule, self._piece.chunks, self._microbatches
            )
            if needs_costs(self._column.schedule):
                return [self._made_to_measure(pipeline, shape, place) for place in places]
            if self._known.replays is None:
                build = partial(_order, self._column.schedule, pipeline, shape)
                self._known.replays = Replays(pipeline, shape, build, self._column.scenario)
            return self._replayed(self._known.replays, places)
        except (ScheduleError, ScenarioError) as error:
            return [self._refused(place, error) for place in places]

    def _replayed(self, replays: Replays, places: Sequence[_Place]) -> list[SweepPoint]:
        chosen = self._warm_ups(replays, places)
        wanted: dict[Depth | None, list[Topology]] = {}
        for warm_ups, place in zip(chosen, places, strict=True):
            wanted.setdefault(None if warm_ups is None else warm_ups.chosen, []).append(place[0].topology)
        replays.load(wanted)
        return [self._of(replays, place, warm_ups) for place, warm_ups in zip(places, chosen, strict=True)]

    def _warm_ups(self, replays: Replays, places: Sequence[_Place]) -> Sequence[WarmUps | None]:
        tuning = tuning_of(self._column.schedule)
        if tuning is None:
            return [None] * len(places)
        return replays.warm_ups(tuning, self._column.warm_up, [self._scenario(place) for place in places])

    def _of(self, replays: Replays, place: _Place, warm_ups: WarmUps | None) -> SweepPoint:
        if warm_ups is None:
            return self._point(replays, place, None, None)
        point = self._point(replays, place, warm_ups.chosen, warm_ups.remark if warm_ups.limited_by_hbm else None)
        closer = None
        if warm_ups.closer is not None:
            limit = warm_ups.closer_remark if warm_ups.closer_limited_by_hbm else None
            closer = self._point(replays, place, warm_ups.closer, limit)
        return replace(point, unlimited_ns=warm_ups.unlimited_ns, closer=closer)

    def _made_to_measure(self, pipeline: Pipeline, shape: PipelineShape, place: _Place) -> SweepPoint:
        """A point whose order is made for its links and limit."""
        scenario = self._scenario(place)
        try:
            build = partial(_made_for, self._piece, pipeline, shape, scenario)
            replays = Replays(pipeline, shape, build, self._column.scenario)
            replays.load({None: [scenario.topology]})
            return self._point(replays, place, None, None)
        except (ScheduleError, ScenarioError) as error:
            return self._refused(place, error)

    def _scenario(self, place: _Place) -> Scenario:
        return replace(self._column.scenario, topology=place[0].topology, hbm_bytes=place[1])

    def _point(self, replays: Replays, place: _Place, extra: Depth | None, why: str | None) -> SweepPoint:
        """A point that was replayed.

        Args:
            replays: Where.
            place: Its links and memory limit.
            extra: Extra forwards.
            why: How the memory limit cut them; None if it did not.
        """
        links, limit = place
        scenario = self._scenario(place)
        order, metrics = replays.order(extra).schedule, replays.metrics(extra, links.topology)
        needs = replays.needs(extra, links.topology)
        feasible = all_fit((need.metrics for need in needs), scenario)
        lacks = [(need.ranks, lack) for need in needs if (lack := most_lacking(need.metrics, scenario)) is not None]
        remarks = [Notice(NoticeCode.WARM_UP, why)] if why else []
        if lacks:
            ranks, (rank, missing) = lacks[0]
            short = ranks[rank]
            text = f"rank {short} lacks {format_size(missing)}"
            remarks = [Notice(NoticeCode.HBM_LACKS, text, subject=SubjectKind.RANK(short))]
        is_near = feasible is True and any(is_near_the_limit(need.metrics, scenario) for need in needs)
        if is_near:
            text = f"within {PEAK_ERROR_RATIO:.0%} of the HBM limit, as far as peaks were seen to be off"
            remarks.append(Notice(NoticeCode.PEAK_NEAR_LIMIT, text))
        mode = p2p_of(order, self._piece.pipeline, scenario)
        return SweepPoint(
            schedule=order.name,
            extra_forwards=order.extra_forwards,
            microbatches=order.shape.microbatches,
            p2p=mode,
            bandwidth_bytes_per_s=links.of_all("bandwidth_bytes_per_s"),
            latency_ns=links.of_all("latency_ns"),
            hbm_bytes=limit,
            is_near_the_limit=is_near,
            dcs=links.topology.dcs,
            step_ns=metrics.step_ns,
            window_ns=metrics.window_ns,
            bubble_ratio=metrics.bubble_ratio,
            peak_bytes=max_if_known(metrics.peak_hbm_bytes),
            feasible=feasible,
            remarks=tuple(remarks),
            needed_bytes=max_if_known(metrics.needed_hbm_bytes),
            scenario=self._column.name,
            overlap=self._column.overlap.way,
            tensor_bandwidth_bytes_per_s=self._column.overlap.bandwidth_bytes_per_s,
            known_error=self._known_error(order, mode, scenario),
            **self._of_order(order, extra, mode),
        )

    def _known_error(self, order: Schedule, mode: P2PMode, scenario: Scenario) -> KnownError | None:
        own = self._piece.own_error
        return None if own is None else known_error(self._piece.pipeline, order, mode, scenario, own)

    def _of_order(self, order: Schedule, extra: Depth | None, mode: P2PMode) -> OrderFacts:
        """What holds of an order over all links: what its predictions rest on, and its digest."""
        facts = None if needs_costs(self._column.schedule) else self._known.facts.get(extra)
        if facts is None:
            reasons = rests_on(self._piece.pipeline, self._column.schedule, order, mode)
            facts = self._known.facts[extra] = {"rests_on": reasons, "order_digest": order.order_digest}
        return facts

    def _refused(self, place: _Place, error: ScheduleError | ScenarioError) -> SweepPoint:
        links, limit = place
        warm_up = self._column.warm_up
        return SweepPoint(
            schedule=self._column.schedule,
            extra_forwards=warm_up if isinstance(warm_up, tuple) else None,
            microbatches=self._microbatches,
            p2p=self._column.scenario.p2p or self._piece.pipeline.p2p,
            bandwidth_bytes_per_s=links.of_all("bandwidth_bytes_per_s"),
            latency_ns=links.of_all("latency_ns"),
            hbm_bytes=limit,
            dcs=links.topology.dcs,
            remarks=(Notice(NoticeCode.NOT_REPLAYED, " ".join(error.message.split())),),
            scenario=self._column.name,
            overlap=self._column.overlap.way,
            tensor_bandwidth_bytes_per_s=self._column.overlap.bandwidth_bytes_per_s,
        )


class OrderFacts(TypedDict):
    """What predictions of an order rest on, and its digest."""

    rests_on: tuple[str, ...]
    order_digest: str


_Place = tuple["Swept", "int | None"]
"""Links and memory limit of a point."""


def _order(name: str, pipeline: Pipeline, shape: PipelineShape, extra: Depth | None) -> Schedule:
    return build_schedule(name, shape, extra_forwards=extra, observed=pipeline.observed)


def _made_for(
    piece: ColumnPiece, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, _extra: Depth | None
) -> Schedule:
    posed = pose(pipeline, shape, scenario)
    return build_schedule(
        piece.column.schedule, shape, problem=posed.problem, judge=posed.judge, time_limit_s=piece.time_limit_s
    )
