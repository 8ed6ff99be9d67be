"""Schedules by name: pure order, no times. One small file each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracetool.errors import Option, ScenarioError, checked, command_or_call
from tracetool.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.model.schedule import PipelineShape, Placement, Schedule
    from tracetool.schedules.problem import Orders, Problem


REFERENCE = "1f1b"
"""What others are compared with where nothing tells which schedule was recorded."""
REFERENCE_OF_CHUNKS = "interleaved"
"""What frameworks run of several stages per rank."""

Heeded = Literal["extra forwards", "group", "overlap ratio", "time limit"]


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What a schedule may be told beyond the shape.

    Attributes:
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's.
        observed: The order found in the trace.
        group: Microbatches that interleaved takes through one chunk before the next, as Megatron does.
        problem: Costs, links and memory, for schedules that are made for them.
        time_limit_s: How long a search for such a schedule may take.
        judge: The window in ns of such an order as transfers are really issued; by default receives are posted ahead.
    """

    extra_forwards: tuple[int, ...] | None = None
    observed: Schedule | None = None
    group: int | None = None
    problem: Problem | None = None
    time_limit_s: float = 30.0
    judge: Callable[[Orders], int] | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the extra forwards of a schedule are chosen for links: so many at each DC boundary, by replay.

    Attributes:
        untuned: The schedule whose order it is without any.
        hiding: How many at a boundary hide a delay, as far as a closed form tells: of its time there and back, and that
            of the shortest forward and backward, in ns. Up to twice as many and two are tried.
        per_rank: The extra forwards of each of so many pipeline ranks, where boundaries between ranks r and r + 1,
            keyed by r, have so many.
    """

    untuned: str
    hiding: Callable[[int, int], int]
    per_rank: Callable[[int, Mapping[int, int]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """A schedule as a plug-in.

    Attributes:
        name: Name on the command line.
        summary: One line.
        source: Where the order comes from.
        constraints: On p, v and m.
        bubble: Closed form at equal stages and zero delay (f, b: forward, full backward).
        in_flight: Microbatches whose activations a stage holds at most.
        build: Makes the order.
        aliases: What papers and frameworks call it besides; neither case nor separators matter.
        least_chunks: Stages per rank that it needs at least.
        placement: How it places several stages per rank.
        needs_costs: Whether its order follows from a problem (costs, links, memory), not from the shape alone.
        is_listed: Whether such an order is made by list scheduling: in no time to speak of.
        heeds: What it may be told that most schedules have no use for.
        recognition_rank: Where several are what was recorded, the lowest of its shape names it; None is never sought.
        options_in: With what an order could have been built, if it is this schedule.
        tuning: How its extra forwards are chosen; None if it has none.
        is_compared: Whether predictions of it were compared with recorded steps (``whatif.accuracy``).
        is_compared_recut: Whether those were that cut every recorded stage in two.
        given: The order itself, where that is all there is: it has one shape.
    """

    name: str
    summary: str
    source: str
    constraints: str
    bubble: str
    in_flight: str
    build: Callable[[PipelineShape, ScheduleOptions], Schedule]
    aliases: tuple[str, ...] = ()
    least_chunks: int = 1
    placement: Placement = "loop"
    needs_costs: bool = False
    is_listed: bool = False
    heeds: frozenset[Heeded] = frozenset()
    recognition_rank: int | None = None
    options_in: Callable[[Schedule], Iterable[ScheduleOptions]] = lambda _observed: (ScheduleOptions(),)
    tuning: Tuning | None = None
    is_compared: bool = False
    is_compared_recut: bool = False
    given: Schedule | None = None

    def takes(self, option: Heeded) -> bool:
        """Whether it heeds an option."""
        return option in self.heeds or (option == "extra forwards" and self.tuning is not None)


SCHEDULES: Registry[ScheduleKind] = Registry(
    "schedule",
    {
        "gpipe": "tracetool.schedules.library.gpipe:SCHEDULE",
        "1f1b": "tracetool.schedules.library.one_f_one_b:SCHEDULE",
        "geopipe": "tracetool.schedules.library.geopipe:SCHEDULE",
        "eager-1f1b": "tracetool.schedules.library.eager_one_f_one_b:SCHEDULE",
        "interleaved": "tracetool.schedules.library.interleaved:SCHEDULE",
        "looped-bfs": "tracetool.schedules.library.looped_bfs:SCHEDULE",
        "zb-h1": "tracetool.schedules.library.zero_bubble_h1:SCHEDULE",
        "zb-h2": "tracetool.schedules.library.zero_bubble_h2:SCHEDULE",
        "interleaved-zero-bubble": "tracetool.schedules.library.interleaved_zero_bubble:SCHEDULE",
        "zb-v": "tracetool.schedules.library.zero_bubble_v:SCHEDULE",
        "v-half": "tracetool.schedules.library.v_half:SCHEDULE",
        "v-min": "tracetool.schedules.library.v_min:SCHEDULE",
        "hanayo": "tracetool.schedules.library.hanayo:SCHEDULE",
        "dualpipev": "tracetool.schedules.library.dualpipe_v:SCHEDULE",
        "dualpipe": "tracetool.schedules.library.dualpipe:SCHEDULE",
        "chimera": "tracetool.schedules.library.chimera:SCHEDULE",
        "greedy": "tracetool.schedules.library.greedy:SCHEDULE",
        "optimal": "tracetool.schedules.library.optimal:SCHEDULE",
        "observed": "tracetool.schedules.library.observed:SCHEDULE",
    },
    "tracetool.schedules",
    hint=lambda: (
        f"{command_or_call('tracetool schedules', 'tracetool.schedules.SCHEDULES.names()')} lists all; csv:FILE reads "
        "torch's CSV of actions"
    ),
)


SOURCES: Registry[Callable[[str], ScheduleKind]] = Registry(
    "source of schedules", {"csv": "tracetool.schedules.library.csv_file:kind_of"}, "tracetool.schedule_sources"
)
"""What makes a schedule of what stands behind its name and a colon."""


def parse_names(names: str | Sequence[str]) -> list[str]:
    """Names of schedules: a list of them, or text as in ``1f1b,gpipe``.

    Raises:
        ScenarioError: If there is no name in the text.
    """
    if not isinstance(names, str):
        return list(names)
    parsed = [part.strip() for part in names.split(",") if part.strip()]
    if not parsed:
        raise ScenarioError(f"{Option.SCHEDULES} names no schedule.", hint=f"as in {Option.SCHEDULES('1f1b,geopipe')}")
    return list(dict.fromkeys(parsed))


@checked
def build_schedule(
    name: str,
    shape: PipelineShape,
    *,
    extra_forwards: tuple[int, ...] | None = None,
    observed: Schedule | None = None,
    group: int | None = None,
    problem: Problem | None = None,
    time_limit_s: float = 30.0,
    judge: Callable[[Orders], int] | None = None,
) -> Schedule:
    """Build and check a schedule.

    Args:
        name: A registered name, or ``csv:FILE`` for a file in torch's CSV of actions.
        shape: Ranks and microbatches.
        extra_forwards: Per pipeline rank, for schedules that are tuned.
        observed: The order found in the trace, for ``observed``.
        group: Microbatches per turn of a chunk, for interleaved.
        problem: Costs, links and memory, for schedules that are made for them.
        time_limit_s: How long a search for such a schedule may take.
        judge: The window in ns of such an order as transfers are really issued; by default receives are posted ahead.

    Raises:
        UnknownName: If there is no such schedule.
        UnsupportedShape: If it does not exist for this shape.
        InvalidSchedule: If the order is incomplete.

    Example:
        >>> order = tt.build_schedule("1f1b", tt.PipelineShape(ranks=2, microbatches=3))
        >>> " ".join(map(str, order.orders[0]))
        '0F0 0F1 0B0 0F2 0B1 0B2'
        >>> tt.build_schedule("geopip", found.pipeline.observed.shape)
        Traceback (most recent call last):
        tracetool.errors.UnknownName: no schedule named 'geopip'. Did you mean 'geopipe' or 'gpipe'?
    """
    options = ScheduleOptions(extra_forwards, observed, group, problem, time_limit_s, judge)
    return kind_of(name).build(shape, options).validate()


def kind_of(name: str) -> ScheduleKind:
    """The schedule of a name, or the one that a file holds.

    Raises:
        UnknownName: If there is none.
        InvalidSchedule: If a file cannot be read, or holds no complete order.
    """
    source, _, rest = name.partition(":")
    return SOURCES.get(source)(rest) if is_sourced(name) else SCHEDULES.get(name)


def is_sourced(name: str) -> bool:
    """Whether a name says where an order is, as ``csv:FILE``, and is no registered schedule."""
    source, colon, _ = name.partition(":")
    return bool(colon) and source in SOURCES.names()


def needs_costs(name: str) -> bool:
    """Whether a schedule's order is made anew for every scenario."""
    return not is_sourced(name) and SCHEDULES.get(name).needs_costs


def tuning_of(name: str) -> Tuning | None:
    """How a schedule is tuned to links; None for those that have nothing to choose."""
    return None if is_sourced(name) else SCHEDULES.get(name).tuning
