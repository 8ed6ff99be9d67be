"""Where a schedule stops gaining from its links: the knee, the latency it hides, and what hiding more costs.

All of it is found by replay between the points of the grid, everything else held:

- *Knee*: the bandwidth from which on twice the bandwidth shortens the step by less than ``KNEE_RATIO`` of itself,
  ``T(b) - T(2b) < 1 % of T(b)``. It is sought at octaves from the top (a schedule may have several flat places), then
  within the octave to ``TOLERANCE_RATIO``.
- *Hidden latency*: the largest one-way latency L at which the step is within ``KNEE_RATIO`` of its floor,
  ``T(L) <= 1.01 (T_free + D(L))``. T_free is the step with free links; D(L) is what one microbatch spends on links on
  its way down the stages and back (latency and occupancy), which no order can hide: the T_min of schedules.md 4.4,
  (m + p - 1)(f + B) + 2c for one boundary (derived model of this tool). To ``TOLERANCE_RATIO`` and 1 us.
  A warm-up that is chosen for every link is chosen here by what still gains half of ``KNEE_RATIO``, not by what a
  measurement could tell apart: it is asked how far the schedule reaches.
- *HBM per hidden millisecond*: from geopipe's warm-up at hand to one forward more per boundary, the largest growth of a
  rank's memory over the growth of the hidden latency. With equal stages one forward more hides (f + B) / 2.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tracetool.errors import ScheduleError
from tracetool.replay.stages import stages_for
from tracetool.schedules import build_schedule
from tracetool.schedules.geopipe import extra_per_rank
from tracetool.sweep.column import Swept
from tracetool.sweep.evaluate import Evaluator, Piece, needs_costs
from tracetool.sweep.memory import memory_need
from tracetool.sweep.results import Knee

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import PipelineShape
    from tracetool.model.topology import Topology
    from tracetool.sweep.results import SweepPoint

KNEE_RATIO = 0.01
"""A gain below this share of the step counts as none."""

TOLERANCE_RATIO = 0.002
"""Bandwidths and latencies are found to this share of themselves."""

MOST_LATENCY_NS = 1000 << 18
"""No latency above it (0.26 s; once round the earth is 0.2 s) is looked at."""

_LATENCIES = 5
"""Knees are sought at so many of the swept latencies at most: the ends, and others evenly between."""

_LEAST_LATENCY_NS = 1000
_OCTAVES = 8
_BLOCK = 5
_SLOWEST, _FASTEST = 1_000, 10**15
"""Bandwidths in bytes/s within which a knee is sought."""

_Pair = tuple[int, int]
"""Latency in ns, bandwidth in bytes/s."""

_Key = TypeVar("_Key", bound="Hashable")
_Seek = Generator[list[_Pair], list[int], int | None]
"""Yields links to replay, takes the step over each, returns what was sought; None if there is none."""


def bandwidth_knee(latency_ns: int, lowest: int, highest: int) -> _Seek:
    """Seek the knee at one latency, beginning between two bandwidths in bytes/s.

    Returns:
        The bandwidth; None if there is none (a step that does not hang on it).
    """
    base, octaves = max(_SLOWEST, lowest // 4), max(1, (highest // max(1, lowest)).bit_length()) + 4
    while True:
        chain = [base << octave for octave in range(octaves + 1)]
        steps = yield [(latency_ns, bandwidth) for bandwidth in chain]
        gains = [i for i in range(octaves) if _gains(steps[i], steps[i + 1])]
        if gains and gains[-1] < octaves - 1:
            return (yield from _narrowed(latency_ns, chain[gains[-1]], chain[gains[-1] + 1]))
        if (base == _SLOWEST and not gains) or chain[-1] > _FASTEST:
            return None
        base = chain[-2] if gains else max(_SLOWEST, base >> _OCTAVES)
        octaves = _OCTAVES


def _gains(step_ns: int, faster_ns: int) -> bool:
    return step_ns - faster_ns >= KNEE_RATIO * step_ns


def _narrowed(latency_ns: int, gaining: int, idle: int) -> _Seek:
    """The knee between a bandwidth below it and one above it."""
    while idle - gaining > TOLERANCE_RATIO * idle:
        inner = [gaining + (idle - gaining) * part // 4 for part in (1, 2, 3)]
        steps = yield [(latency_ns, bandwidth * times) for bandwidth in inner for times in (1, 2)]
        gain = [b for b, one, two in zip(inner, steps[::2], steps[1::2], strict=True) if _gains(one, two)]
        gaining = max(gain, default=gaining)
        idle = min((b for b in inner if b > gaining), default=idle)
    return idle


def hidden_latency(bandwidth: int, floor_ns: Callable[[int], int]) -> _Seek:
    """Seek the largest latency that is hidden over links of a bandwidth in bytes/s.

    Args:
        bandwidth: Of the links.
        floor_ns: What the step takes at least at a latency.

    Returns:
        The latency; ``MOST_LATENCY_NS`` if even that is hidden, 0 if not even a microsecond: then the bandwidth alone
        keeps the step above its floor.
    """

    def hides(latency_ns: int, step_ns: int) -> bool:
        floor = floor_ns(latency_ns)
        return step_ns - floor <= KNEE_RATIO * floor

    over = 0
    for first in range(0, 19, _BLOCK):
        # Long latencies take deep warm-ups to choose from: they are looked at only if the shorter ones are hidden.
        chain = [_LEAST_LATENCY_NS << octave for octave in range(first, min(first + _BLOCK, 19))]
        steps = yield [(latency, bandwidth) for latency in chain]
        over = next((latency for latency, step in zip(chain, steps, strict=True) if not hides(latency, step)), 0)
        if over:
            break
    if not over:
        return MOST_LATENCY_NS
    hidden = over // 2
    if over == _LEAST_LATENCY_NS:
        return 0
    while over - hidden > max(_LEAST_LATENCY_NS, TOLERANCE_RATIO * over):
        inner = [hidden + (over - hidden) * part // 4 for part in (1, 2, 3)]
        steps = yield [(latency, bandwidth) for latency in inner]
        over = min((a for a, step in zip(inner, steps, strict=True) if not hides(a, step)), default=over)
        hidden = max((a for a in inner if a < over), default=hidden)
    return hidden


def seek(piece: Piece, advance: Callable[[int], None]) -> list[Knee]:
    """The knees of a column: one per memory limit and latency (at most five of the swept ones).

    There are none where no link was swept, where every link has an order made for it (``needs_costs``), and where the
    schedule cannot be replayed.

    Args:
        piece: The column, its links all that were swept.
        advance: Told when it is done.
    """
    column = piece.column
    figures = [(k.latency_ns, k.bandwidth_bytes_per_s) for k in column.links]
    swept = [(latency, bandwidth) for latency, bandwidth in figures if latency is not None and bandwidth is not None]
    knees: list[Knee] = []
    same: list[_Found] | None = None
    for limit in column.hbm_bytes if swept and not needs_costs(column.schedule) else ():
        place = _Place(replace(piece, column=replace(column, hbm_bytes=(limit,))), swept)
        try:
            same = place.found() if same is None or place.is_deepening else same
            knees += place.knees(same)
        except ScheduleError:
            break  # its points say why
    advance(1)
    return knees


@dataclass(frozen=True, slots=True)
class _Found:
    """What was sought at one latency."""

    latency_ns: int
    bandwidth: int | None = None
    hidden_ns: int | None = None
    hbm_bytes_per_ms: int | None = None
    remark: str | None = None


class _Place:
    """A column under one memory limit."""

    def __init__(self, piece: Piece, swept: Sequence[_Pair]) -> None:
        self._piece = piece
        self._evaluator = Evaluator(piece, KNEE_RATIO / 2)
        self._swept = swept
        self._bandwidths = [bandwidth for _, bandwidth in swept]
        self._top = max(self._bandwidths)
        every = sorted({latency for latency, _ in swept})
        spread = min(_LATENCIES, len(every))
        self._latencies = [every[i * (len(every) - 1) // max(1, spread - 1)] for i in range(spread)]

    @property
    def is_deepening(self) -> bool:
        """Whether the order hangs on the memory limit."""
        column = self._piece.column
        return column.schedule.lower() == "geopipe" and column.warm_up is None

    def found(self) -> list[_Found]:
        """What there is to say at each latency.

        Raises:
            ScheduleError: If the schedule cannot be replayed.
        """
        low = min(self._bandwidths)
        seeks: dict[int | None, _Seek] = {b: bandwidth_knee(b, low, self._top) for b in self._latencies}
        seeks[None] = hidden_latency(self._top, self.floor())
        results = drive(seeks, self.steps)
        hidden = results[None]
        costs = self._hbm_costs()
        about = {
            MOST_LATENCY_NS: "hides every latency looked at",
            0: f"at {self._top * 8e-9:.4g} Gbit/s the bandwidth alone keeps the step more than {KNEE_RATIO:.0%} above "
            "its floor, whatever the latency",
        }.get(hidden or 0)
        return [
            _Found(latency, results[latency], hidden or None, cost, _joined(about, why))
            for latency, (cost, why) in zip(self._latencies, costs, strict=True)
        ]

    def steps(self, pairs: Iterable[_Pair]) -> list[int]:
        """The step over each of some links."""
        return [point.step_ns or 0 for point in self._points(pairs)]

    def _points(self, pairs: Iterable[_Pair]) -> list[SweepPoint]:
        return _known(self._evaluator.points([self._piece.column.ways.at(*pair) for pair in pairs]))

    def floor(self) -> Callable[[int], int]:
        """What a step takes at least at a latency: with free links, and one microbatch's way over the links."""
        piece, column = self._piece, self._piece.column
        pipeline, shape, _ = stages_for(
            piece.pipeline, column.schedule, piece.chunks, column.scenario.microbatches or _microbatches(piece)
        )
        free = Swept(None, None, column.ways.at(0, self._top).topology.without_delays())
        free_ns = _known(self._evaluator.points([free]))[0].step_ns or 0
        return lambda latency_ns: free_ns + _way_ns(pipeline, shape, column.ways.at(latency_ns, self._top).topology)

    def _hbm_costs(self) -> list[tuple[int | None, str | None]]:
        """Per latency, geopipe's memory per further hidden ms, or why it is unknown."""
        column = self._piece.column
        if column.schedule.lower() != "geopipe":
            return [(None, None)] * len(self._latencies)
        at = [point.extra_forwards or () for point in self._points([(b, self._top) for b in self._latencies])]
        boundaries = column.links[0].topology.boundaries()
        more = extra_per_rank(len(column.ways.dcs), dict.fromkeys(boundaries, 1))
        pairs = {extra: tuple(a + b for a, b in zip(extra, more, strict=True)) for extra in at}
        hidden = {}
        for extra in {*pairs, *pairs.values()}:
            fixed = _Place(replace(self._piece, column=replace(column, warm_up=extra, hbm_bytes=(None,))), self._swept)
            hidden[extra] = drive({None: hidden_latency(self._top, fixed.floor())}, fixed.steps)[None] or 0
        return [self._hbm_cost(extra, pairs[extra], hidden) for extra in at]

    def _hbm_cost(
        self, extra: tuple[int, ...], deeper: tuple[int, ...], hidden: Mapping[tuple[int, ...], int]
    ) -> tuple[int | None, str | None]:
        if not (hidden[extra] or hidden[deeper]):
            return None, None  # the bandwidth is in the way
        if hidden[deeper] >= MOST_LATENCY_NS or hidden[deeper] <= hidden[extra]:
            return None, f"one forward more than +{max(extra)} hides no longer latency"
        grown = self._growth(extra, deeper)
        if grown is None:
            return None, "memory is unknown"
        return round(grown * 10**6 / (hidden[deeper] - hidden[extra])), None

    def _growth(self, extra: tuple[int, ...], deeper: tuple[int, ...]) -> int | None:
        """By how many bytes the rank grows whose memory grows most."""
        pipeline, scenario = self._piece.pipeline, self._piece.column.scenario
        shape = replace(pipeline.observed.shape, microbatches=scenario.microbatches or _microbatches(self._piece))
        needs = [
            memory_need(pipeline, build_schedule("geopipe", shape, extra_forwards=one), scenario).peak_bytes
            for one in (extra, deeper)
        ]
        grown = [b - a for a, b in zip(*needs, strict=True) if a is not None and b is not None]
        return max(grown) if len(grown) == shape.ranks else None

    def knees(self, found: Sequence[_Found]) -> list[Knee]:
        """The knees, with what was held."""
        column = self._piece.column
        over = self._evaluator.points([column.ways.at(latency, self._top) for latency in self._latencies])
        return [_knee(self._piece, point, one, self._top) for point, one in zip(over, found, strict=True)]


def _knee(piece: Piece, point: SweepPoint, found: _Found, top: int) -> Knee:
    column = piece.column
    does_not_fit = f"does not fit: {point.reason}" if point.feasible is False else None
    return Knee(
        schedule=point.schedule,
        bandwidth_bytes_per_s=found.bandwidth,
        hidden_latency_ns=found.hidden_ns,
        hbm_bytes_per_hidden_ms=found.hbm_bytes_per_ms,
        remark=_joined(found.remark, does_not_fit),
        extra_forwards=None if column.warm_up is None else point.extra_forwards,
        microbatches=point.microbatches,
        p2p=point.p2p,
        hbm_bytes=point.hbm_bytes,
        dcs=point.dcs,
        at_latency_ns=found.latency_ns,
        at_bandwidth_bytes_per_s=top,
        scenario=column.name,
    )


def drive(seeks: Mapping[_Key, _Seek], steps: Callable[[list[_Pair]], list[int]]) -> dict[_Key, int | None]:
    """Run searches side by side, so that what all of them ask for is replayed at once.

    Args:
        seeks: The searches.
        steps: The step over each of some links.
    """
    found: dict[_Key, int | None] = {}
    asked: dict[_Key, list[_Pair]] = {}
    known: dict[_Pair, int] = {}
    answers: dict[_Key, list[int] | None] = dict.fromkeys(seeks)
    while answers:
        for key, answer in list(answers.items()):
            try:
                asked[key] = next(seeks[key]) if answer is None else seeks[key].send(answer)
            except StopIteration as done:
                found[key] = done.value
                del answers[key]
        pairs = [pair for pair in dict.fromkeys(p for key in answers for p in asked[key]) if pair not in known]
        known.update(zip(pairs, steps(pairs) if pairs else [], strict=True))
        answers = {key: [known[pair] for pair in asked[key]] for key in answers}
    return found


def _known(points: list[SweepPoint]) -> list[SweepPoint]:
    """All of them.

    Raises:
        ScheduleError: If one was refused.
    """
    for point in points:
        if point.step_ns is None:
            raise ScheduleError(point.reason or "not replayed")
    return points


def _joined(*remarks: str | None) -> str | None:
    return "; ".join(filter(None, remarks)) or None


def _microbatches(piece: Piece) -> int:
    return piece.pipeline.observed.shape.microbatches


def _way_ns(pipeline: Pipeline, shape: PipelineShape, topology: Topology) -> int:
    """What a microbatch spends on links between DCs on its way down all stages and back."""
    way, stage = 0, 0
    while (following := shape.next(stage)) is not None:
        here, there = shape.rank_of(stage), shape.rank_of(following)
        sent = pipeline.stages[shape.profile_of(stage)].forward_payload_bytes or 0
        back = pipeline.stages[shape.profile_of(following)].backward_payload_bytes or 0
        for link, payload in ((topology.link(here, there), sent), (topology.link(there, here), back)):
            if link is not None:
                way += link.latency_ns + link.occupancy_ns(payload)
        stage = following
    return way
