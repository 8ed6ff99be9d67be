"""optimal: the order of the shortest window over measured costs, links and memory, by constraint programming.

Source: the optimisation problem of CrossPipe (arXiv 2507.00217, section 4.1), written anew for OR-tools' CP-SAT.
Searched are the start of every action and of every message over a link; microbatches are alike, so those of one
stage and kind keep their order. It starts from the best of greedy and 1F1B; the order returned is never longer than
those, and the remark says how far below it an order could still be.
Shape: any p, v, m and placement; up to some hundred actions are solved in seconds, beyond that expect a gap.
Memory: within the limit, as far as one microbatch at a time fits it.
Bubble: no closed form; at zero delay and with memory enough, (p - 1)(f + b) with whole backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING

from tracetool.errors import MissingPackage, Option, UnsupportedShape
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.list_scheduling import listed
from tracetool.schedules.orders import warm_up_then_alternate
from tracetool.schedules.problem import window_ns, with_halves
from tracetool.schedules.search import Search

if TYPE_CHECKING:
    from tracetool.schedules.problem import Orders, Problem


_MOST_EXTRA = 16
"""1F1B with more extra forwards than that is not tried as a start."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The best order found, in the problem's own model (receives posted ahead).

    Attributes:
        orders: The order.
        window_ns: Its window.
        bound_ns: No order has a shorter one.
        by_clock: Whether the clock ended the search, so that another run may find another order.
    """

    orders: Orders
    window_ns: int
    bound_ns: int
    by_clock: bool

    @property
    def gap_ratio(self) -> float:
        """How much shorter an order could be at most, as a share of the window."""
        return 1 - self.bound_ns / self.window_ns if self.window_ns else 0.0


def hints(problem: Problem) -> list[Orders]:
    """Orders to start from that fit the room: listed ones, and where a rank has one stage 1F1B's and deeper ones."""
    found = listed(problem)
    if problem.shape.chunks == 1:
        found += [_deeper_1f1b(problem, extra) for extra in range(_most_extra(problem) + 1)]
    return [orders for orders in dict.fromkeys(found) if problem.fits(orders)]


def _deeper_1f1b(problem: Problem, extra: int) -> Orders:
    """1F1B with so many forwards more for every hop downstream that takes a link."""
    p, m = problem.shape.ranks, problem.shape.microbatches
    crossings = [sum(hop.link is not None for hop in problem.forward_hops[i:]) for i in range(p)]
    orders = tuple(warm_up_then_alternate(i, p - i - 1 + extra * crossings[i], m) for i in range(p))
    return with_halves(problem, orders)


def _most_extra(problem: Problem) -> int:
    """Forwards that hide the longest link, with some to spare; 0 without links."""
    hops = [
        down.delay_ns + up.delay_ns
        for down, up in zip(problem.forward_hops, problem.backward_hops, strict=True)
        if down.link is not None
    ]
    cycle = min(s.forward_ns + s.backward_ns + s.weight_ns for s in problem.stages)
    return min(problem.shape.microbatches, ceil(max(hops) / max(cycle, 1)) + 2, _MOST_EXTRA) if hops else 0


def solve(problem: Problem, time_limit_s: float = 30.0, *, start: Orders | None = None) -> Solved:
    """Search the order of the shortest window.

    Args:
        problem: Costs, links and memory.
        time_limit_s: How long to search; what is found within it does not depend on the machine's speed unless the
            clock ends the search (``by_clock``).
        start: Where to start; by default the best hint.

    Raises:
        MissingPackage: If OR-tools is not installed.
    """
    _require_ortools()
    start = start or min(hints(problem), key=lambda orders: window_ns(problem, orders))
    window, bound = window_ns(problem, start), problem.bound_ns()
    if window <= bound:
        return Solved(start, window, bound, by_clock=False)
    outcome = Search(problem, start, window).run(time_limit_s)
    found = outcome.orders
    if found is None or window_ns(problem, found) >= window:
        found = start
    return Solved(found, window_ns(problem, found), max(bound, outcome.bound_ns), outcome.by_clock)


def build(shape: PipelineShape, options: ScheduleOptions) -> Schedule:
    """The best order, as the options' judge sees it.

    Raises:
        UnsupportedShape: Without costs, or with those of another shape.
        MissingPackage: If OR-tools is not installed.
    """
    problem = options.problem
    if problem is None or problem.shape != shape:
        raise UnsupportedShape(
            "'optimal' needs costs of that shape: its order follows from them.",
            hint="tracetool replay TRACES --schedule optimal",
        )
    solved = solve(problem, options.time_limit_s)
    best, remark = solved.orders, _remark(solved)
    if options.judge is not None:
        best = min([solved.orders, *hints(problem)], key=options.judge)
        if best != solved.orders:
            remark = f"a simpler order is taken, the shorter one as transfers are issued here, not the {remark}"
    return Schedule("optimal", shape, best, blocking=False, remark=remark)


def _remark(solved: Solved) -> str:
    if solved.window_ns <= solved.bound_ns:
        return "order of the proven shortest window with receives posted ahead, at median costs"
    clock = ", cut short by the clock: another run may find another order" if solved.by_clock else ""
    return (
        "order of the shortest window found with receives posted ahead, at median costs; at most "
        f"{solved.gap_ratio:.1%} could still be gained{clock}"
    )


def _require_ortools() -> None:
    if find_spec("ortools") is None:
        raise MissingPackage(
            "the schedule 'optimal' needs OR-tools, which is not installed.",
            hint=f"pip install 'tracetool[optimal]', or take {Option.SCHEDULES('greedy')}",
        )


SCHEDULE = ScheduleKind(
    name="optimal",
    summary="the shortest window over measured costs, links and memory, by constraint programming",
    source="after arXiv 2507.00217, section 4.1; OR-tools CP-SAT",
    constraints="any p, v, m; needs a trace, and OR-tools",
    bubble="none in closed form",
    in_flight="as the memory limit allows",
    build=build,
    needs_costs=True,
    heeds=frozenset({"time limit"}),
)
