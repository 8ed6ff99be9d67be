"""Where a schedule stops gaining from its links: the knee, the latency it hides, and what hiding more costs.

All of it is found by replay, everything else held, and hangs on no other point of the grid:

- *Knee*: the smallest bandwidth from which on, at any, twice the bandwidth shortens the step by less than
  ``KNEE_RATIO`` of itself, ``T(b) - T(2b) < 1 % of T(b)``.
- *Hidden latency*: the largest one-way latency L at which the step is within ``KNEE_RATIO`` of its floor,
  ``T(L) <= 1.01 (T_free + D(L))``, over links whose bandwidth costs nothing. T_free is the step with free links; D(L)
  is what one microbatch spends on links on its way down the stages and back, which no order can hide: the step is
  then (m + p - 1)(f + B) + 2c for one boundary, c one way over it (derived model of this tool).
- *HBM per hidden millisecond*: from a warm-up at hand to one forward more per boundary, the largest growth of a
  rank's memory over the growth of the hidden latency. With equal stages one forward more hides (f + B) / 2.

T is the step as a replay over those links takes it: a warm-up that is left to be chosen is chosen for each of them, by
the rule of ``depth``. ``bend`` searches; to ``TOLERANCE_RATIO``, latencies to 1 us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleError
from tracetool.model.notice import Notice, NoticeCode
from tracetool.replays.evaluation import stages_for
from tracetool.schedules import build_schedule, needs_costs, tuning_of
from tracetool.sweeps.bend import (
    KNEE_RATIO,
    MOST_LATENCY_NS,
    UNLIMITED_BYTES_PER_S,
    Took,
    bandwidth_knee,
    drive,
    hidden_latency,
)
from tracetool.sweeps.evaluate import ColumnPiece, Evaluator, KnownOrders
from tracetool.sweeps.grid import Swept
from tracetool.sweeps.replays import memory_need
from tracetool.sweeps.results import Knee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import PipelineShape
    from tracetool.model.topology import Topology
    from tracetool.sweeps.bend import Figures, Seek
    from tracetool.sweeps.results import SweepPoint

_LATENCIES = 5
"""Knees are sought at so many of the swept latencies at most: the ends, and others evenly between."""


def seek(piece: ColumnPiece, advance: Callable[[int], None], *, bandwidth_alone: bool = False) -> list[Knee]:
    """The knees of a column: one per memory limit and latency (at most five of the swept ones).

    There are none where no link was swept, where every link has an order made for it (``needs_costs``), and where the
    schedule cannot be replayed.

    Args:
        piece: The column, its links all that were swept.
        advance: Told when it is done.
        bandwidth_alone: Whether nothing but the bandwidth is sought, which takes a third of the time.
    """
    column = piece.column
    swept = [links.latency_ns for links in column.links if links.latency_ns is not None]
    knees: list[Knee] = []
    same: list[_Bend] | None = None
    known = KnownOrders()
    for limit in column.hbm_bytes if swept and not needs_costs(column.schedule) else ():
        place = _Place(replace(piece, column=replace(column, hbm_bytes=(limit,))), swept, known)
        try:
            same = place.bends(bandwidth_alone=bandwidth_alone) if same is None or place.is_deepening else same
            knees += place.knees(same)
        except ScheduleError:
            break  # its points say why
    advance(1)
    return knees


@dataclass(frozen=True, slots=True)
class _Bend:
    """What was sought at one latency."""

    latency_ns: int
    bandwidth: int | None = None
    hidden_ns: int | None = None
    hbm_bytes_per_ms: int | None = None
    remarks: tuple[Notice, ...] = ()


class _Place:
    """A column under one memory limit."""

    def __init__(self, piece: ColumnPiece, latencies: Iterable[int], known: KnownOrders) -> None:
        self._piece = piece
        self._known = known
        self._evaluator = Evaluator(piece, known)
        every = sorted(set(latencies))
        spread = min(_LATENCIES, len(every))
        self._latencies = [every[i * (len(every) - 1) // max(1, spread - 1)] for i in range(spread)]

    @property
    def is_deepening(self) -> bool:
        """Whether the order hangs on the memory limit."""
        column = self._piece.column
        return tuning_of(column.schedule) is not None and column.warm_up is None

    def bends(self, *, bandwidth_alone: bool) -> list[_Bend]:
        """What there is to say at each latency.

        Raises:
            ScheduleError: If the schedule cannot be replayed.
        """
        seeks: dict[int, Seek] = {latency: bandwidth_knee(latency) for latency in self._latencies}
        results = drive(seeks, self._took)
        if bandwidth_alone:
            return [_Bend(latency, results[latency]) for latency in self._latencies]
        hidden = self.hidden_ns()
        costs = self._hbm_costs()
        about = {
            MOST_LATENCY_NS: Notice(NoticeCode.HIDES_ALL, "hides every latency looked at"),
            0: Notice(
                NoticeCode.HIDES_NONE,
                f"links that stay as given keep the step more than {KNEE_RATIO:.0%} above its floor, whatever the "
                "latency of the others",
            ),
        }.get(hidden)
        return [
            _Bend(latency, results[latency], hidden or None, cost, tuple(filter(None, (about, why))))
            for latency, (cost, why) in zip(self._latencies, costs, strict=True)
        ]

    def hidden_ns(self) -> int:
        """The latency that is hidden; 0 if none is."""
        floor_ns = self._floor()
        return drive({None: hidden_latency(floor_ns)}, self._took)[None] or 0

    def _took(self, figures: Iterable[Figures]) -> list[Took]:
        """What the step takes over each of some links."""
        return [Took(point.step_ns or 0, point.extra_forwards) for point in self._points(figures)]

    def _points(self, figures: Iterable[Figures]) -> list[SweepPoint]:
        return _known(self._evaluator.points([self._piece.column.ways.at(*each) for each in figures]))

    def _floor(self) -> Callable[[int], int]:
        """What a step takes at least at a latency: with free links, and one microbatch's way over the links."""
        piece, column = self._piece, self._piece.column
        pipeline, shape, _ = stages_for(
            piece.pipeline, column.schedule, piece.chunks, column.scenario.microbatches or _microbatches(piece)
        )
        free = Swept(None, None, column.ways.at(0, UNLIMITED_BYTES_PER_S).topology.without_delays())
        free_ns = _known(self._evaluator.points([free]))[0].step_ns or 0
        return lambda latency_ns: (
            free_ns + _way_ns(pipeline, shape, column.ways.at(latency_ns, UNLIMITED_BYTES_PER_S).topology)
        )

    def _hbm_costs(self) -> list[tuple[int | None, Notice | None]]:
        """Per latency, a tuned schedule's memory per further hidden ms, or why it is unknown."""
        column = self._piece.column
        tuning = tuning_of(column.schedule)
        if tuning is None:
            return [(None, None)] * len(self._latencies)
        at = [
            point.extra_forwards or ()
            for point in self._points([(latency, UNLIMITED_BYTES_PER_S) for latency in self._latencies])
        ]
        boundaries = column.links[0].topology.boundaries()
        more = tuning.per_rank(len(column.ways.dcs), dict.fromkeys(boundaries, 1))
        pairs = {extra: tuple(a + b for a, b in zip(extra, more, strict=True)) for extra in at}
        hidden = {}
        for extra in {*pairs, *pairs.values()}:
            fixed = replace(self._piece, column=replace(column, warm_up=extra, hbm_bytes=(None,)))
            hidden[extra] = _Place(fixed, self._latencies, self._known).hidden_ns()
        return [self._hbm_cost(extra, pairs[extra], hidden) for extra in at]

    def _hbm_cost(
        self, extra: tuple[int, ...], deeper: tuple[int, ...], hidden: Mapping[tuple[int, ...], int]
    ) -> tuple[int | None, Notice | None]:
        if not (hidden[extra] or hidden[deeper]):
            return None, None  # links that stay as given are in the way
        if hidden[deeper] >= MOST_LATENCY_NS or hidden[deeper] <= hidden[extra]:
            return None, Notice(NoticeCode.DEPTH_IDLE, f"one forward more than +{max(extra)} hides no longer latency")
        grown = self._growth(extra, deeper)
        if grown is None:
            return None, Notice(NoticeCode.MEMORY_UNKNOWN, "memory is unknown")
        return round(grown * 10**6 / (hidden[deeper] - hidden[extra])), None

    def _growth(self, extra: tuple[int, ...], deeper: tuple[int, ...]) -> int | None:
        """By how many bytes the rank grows whose memory grows most, of all pipelines that are replayed together."""
        grown = [self._growth_of(one, extra, deeper) for one in self._piece.pipeline.together]
        known = [each for each in grown if each is not None]
        return max(known) if len(known) == len(grown) else None

    def _growth_of(self, pipeline: Pipeline, extra: tuple[int, ...], deeper: tuple[int, ...]) -> int | None:
        scenario = self._piece.column.scenario
        name = self._piece.column.schedule
        shape = replace(pipeline.observed.shape, microbatches=scenario.microbatches or _microbatches(self._piece))
        needs = [
            memory_need(pipeline, build_schedule(name, shape, extra_forwards=one), scenario).peak_bytes
            for one in (extra, deeper)
        ]
        grown = [b - a for a, b in zip(*needs, strict=True) if a is not None and b is not None]
        return max(grown) if len(grown) == shape.ranks else None

    def knees(self, bends: Sequence[_Bend]) -> list[Knee]:
        """The knees, with what was held."""
        column = self._piece.column
        over = [column.ways.at(latency, UNLIMITED_BYTES_PER_S) for latency in self._latencies]
        return [_knee(self._piece, point, one) for point, one in zip(self._evaluator.points(over), bends, strict=True)]


def _knee(piece: ColumnPiece, point: SweepPoint, bend: _Bend) -> Knee:
    column = piece.column
    lacking = [replace(one, text=f"does not fit: {one.text}") for one in point.remarks if point.feasible is False]
    return Knee(
        schedule=point.schedule,
        bandwidth_bytes_per_s=bend.bandwidth,
        hidden_latency_ns=bend.hidden_ns,
        hbm_bytes_per_hidden_ms=bend.hbm_bytes_per_ms,
        remarks=(*bend.remarks, *lacking),
        extra_forwards=None if column.warm_up is None else point.extra_forwards,
        microbatches=point.microbatches,
        p2p=point.p2p,
        hbm_bytes=point.hbm_bytes,
        dcs=point.dcs,
        at_latency_ns=bend.latency_ns,
        at_bandwidth_bytes_per_s=UNLIMITED_BYTES_PER_S,
        scenario=column.name,
        overlap=point.overlap,
        tensor_bandwidth_bytes_per_s=point.tensor_bandwidth_bytes_per_s,
    )


def _known(points: list[SweepPoint]) -> list[SweepPoint]:
    """All of them.

    Raises:
        ScheduleError: If one was refused.
    """
    for point in points:
        if point.step_ns is None:
            raise ScheduleError(point.reason or "not replayed")
    return points


def _microbatches(piece: ColumnPiece) -> int:
    return piece.pipeline.observed.shape.microbatches


def _way_ns(pipeline: Pipeline, shape: PipelineShape, topology: Topology) -> int:
    """What a microbatch spends on links between DCs on its way down all stages and back."""
    way, stage = 0, 0
    while (following := shape.next(stage)) is not None:
        here, there = shape.rank_of(stage), shape.rank_of(following)
        sent = pipeline.stages[shape.profile_of(stage)].forward_payload_bytes or 0
        back = pipeline.stages[shape.profile_of(following)].backward_payload_bytes or 0
        for path, payload in ((topology.path(here, there), sent), (topology.path(there, here), back)):
            if path is not None:
                way += path.latency_ns + path.occupancy_ns(payload)
        stage = following
    return way
