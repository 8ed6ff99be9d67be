"""optimal: the order of the shortest window over measured costs, links and memory, by constraint programming.

Source: the optimisation problem of CrossPipe (arXiv 2507.00217, section 4.1), written anew for OR-tools' CP-SAT.
Searched are the start of every action and of every message over a link; microbatches are alike, so those of one
stage and kind keep their order. It starts from the best of greedy and 1F1B; the order returned is never longer than
those, and the remark says how far below it an order could still be.
Shape: any p, v, m and placement; up to some hundred actions are solved in seconds, beyond that expect a gap.
Memory: within the limit, as far as one microbatch at a time fits it.
Bubble: no closed form; at zero delay and with memory enough, (p - 1)(f + b) with whole backwards.

The constraint model of ``optimal``: intervals for actions and messages, one at a time on a rank and on a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import MissingPackage, Option, UnsupportedShape, command_or_call, installing
from tracetool.model.action import Action
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.list_scheduling import listed
from tracetool.schedules.orders import warm_up_then_alternate
from tracetool.schedules.problem import F, start_times_ns, window_ns, with_halves

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver, IntervalVar, IntVar

    from tracetool.model.action import ActionKind
    from tracetool.schedules.problem import Orders, Problem

_WORK_PER_S = 0.25
"""CP-SAT's own count of work that a second buys; measured 0.25 to 0.27 on two busy cores."""

_STRATEGIES = 8
"""CP-SAT interleaves so many searches; what they find does not depend on the number of cores."""


class Outcome(NamedTuple):
    """What a search came to: an order if it found any, a bound, and whether the clock ended it."""

    orders: Orders | None
    bound_ns: int
    by_clock: bool


class Search:
    """One problem as a constraint model.

    Args:
        problem: Costs, links and memory.
        start: An order that fits, to start from.
        horizon_ns: Its window.
    """

    def __init__(self, problem: Problem, start: Orders, horizon_ns: int) -> None:
        from ortools.sat.python.cp_model import CpModel

        self._problem = problem
        self._horizon = horizon_ns
        self._model = CpModel()
        self._starts: dict[Action, IntVar] = {}
        self._add_actions(start)
        self._add_flow()
        self._add_memory()
        self._add_window()

    def _add_actions(self, start: Orders) -> None:
        """Every action at its hinted time, one at a time on a rank, microbatches in turn."""
        times = start_times_ns(self._problem, start)
        for order, hinted in zip(start, times, strict=True):
            for action, hint in zip(order, hinted, strict=True):
                at = self._model.new_int_var(0, self._horizon - self._duration(action), str(action))
                self._starts[action] = at
                self._model.add_hint(at, hint)
        for order in start:
            self._model.add_no_overlap([self._interval(self._starts[a], self._duration(a), str(a)) for a in order])
        for action, at in self._starts.items():
            before = self._starts.get(action._replace(microbatch=action.microbatch - 1))
            if before is not None:
                self._model.add(at >= before + self._duration(action))

    def _duration(self, action: Action) -> int:
        return self._problem.duration_ns(action.stage, action.kind)

    def _interval(self, at: IntVar, duration: int, name: str) -> IntervalVar:
        return self._model.new_fixed_size_interval_var(at, duration, f"run {name}")

    def _add_flow(self) -> None:
        """Inputs before what needs them; messages one at a time on a link."""
        problem, on_link = self._problem, dict[str, list["IntervalVar"]]()
        for action, at in self._starts.items():
            end = at + self._duration(action)
            following = self._next_on_stage(action)
            if following is not None:
                self._model.add(self._starts[following] >= end)
            to = problem.sent(action.stage, action.kind)
            if to is None:
                continue
            target, hop = to
            wanted = self._starts[action._replace(stage=target)]
            if hop.link is None or hop.occupancy_ns == 0:
                self._model.add(wanted >= end + hop.delay_ns)
                continue
            moves = self._model.new_int_var(0, self._horizon, f"move {action}")
            self._model.add(moves >= end)
            self._model.add(wanted >= moves + hop.delay_ns)
            on_link.setdefault(hop.link, []).append(self._interval(moves, hop.occupancy_ns, f"message {action}"))
        for messages in on_link.values():
            self._model.add_no_overlap(messages)

    def _next_on_stage(self, action: Action) -> Action | None:
        """What the same stage does next with the microbatch without a message in between."""
        stage, kind, _ = action
        kinds: tuple[ActionKind, ...] = self._problem.kinds
        place = kinds.index(kind)
        if place + 1 == len(kinds) or (kind is F and stage + 1 < self._problem.shape.stages):
            return None
        return action._replace(kind=kinds[place + 1])

    def _add_memory(self) -> None:
        """What microbatches hold, from the start of the forward to the end of what frees it, within each room."""
        for mine, room in zip(self._problem.stages_of, self._problem.usable_bytes, strict=True):
            if room is None:
                continue
            held: list[IntervalVar] = []
            sizes: list[int] = []
            for stage in mine:
                self._add_turns(stage, room)
                for kind in self._problem.kinds[1:]:
                    freed = -self._problem.change_bytes(stage, kind)
                    if freed:
                        held += [self._in_flight(stage, kind, j) for j in range(self._problem.shape.microbatches)]
                        sizes += [freed] * self._problem.shape.microbatches
            self._model.add_cumulative(held, sizes, room)

    def _add_turns(self, stage: int, room: int) -> None:
        """What follows from the room for a stage alone, said plainly: a forward waits for earlier backwards.

        A microbatch holds no less until an action of a kind has ended than the kinds from there on free.
        """
        kinds = self._problem.kinds
        for place, kind in enumerate(kinds[1:], start=1):
            held = -sum(self._problem.change_bytes(stage, later) for later in kinds[place:])
            if held <= 0:
                continue
            for j in range(room // held, self._problem.shape.microbatches):
                freeing = Action(stage, kind, j - room // held)
                forward = self._starts[Action(stage, F, j)]
                self._model.add(forward >= self._starts[freeing] + self._duration(freeing))

    def _in_flight(self, stage: int, until: ActionKind, microbatch: int) -> IntervalVar:
        last = Action(stage, until, microbatch)
        size = self._model.new_int_var(0, self._horizon, f"time to {last}")
        end = self._starts[last] + self._duration(last)
        return self._model.new_interval_var(self._starts[Action(stage, F, microbatch)], size, end, f"hold to {last}")

    def _add_window(self) -> None:
        window = self._model.new_int_var(min(self._problem.bound_ns(), self._horizon), self._horizon, "window")
        last = self._problem.kinds[-1]
        for stage in range(self._problem.shape.stages):
            action = Action(stage, last, self._problem.shape.microbatches - 1)
            self._model.add(window >= self._starts[action] + self._duration(action))
        self._model.minimize(window)
        self._model.add_hint(window, self._horizon)

    def run(self, time_limit_s: float) -> Outcome:
        """Search until proven, out of work or out of time; the same every time unless the clock ends it."""
        from ortools.sat.python.cp_model import FEASIBLE, OPTIMAL, CpSolver

        solver = CpSolver()
        solver.parameters.num_workers = _STRATEGIES
        solver.parameters.interleave_search = True
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = time_limit_s * _WORK_PER_S
        solver.parameters.max_time_in_seconds = time_limit_s
        status = solver.solve(self._model)
        by_clock = status != OPTIMAL and solver.wall_time >= time_limit_s
        orders = self._orders(solver) if status in {OPTIMAL, FEASIBLE} else None
        return Outcome(orders, int(solver.best_objective_bound), by_clock)

    def _orders(self, solver: CpSolver) -> Orders:
        ranks: list[list[tuple[int, int, int, Action]]] = [[] for _ in self._problem.stages_of]
        for action, at in self._starts.items():
            # Actions that take no time may share their start: those that take none go first, in their own order.
            place = self._problem.kinds.index(action.kind)
            key = (solver.value(at), self._duration(action), place, action)
            ranks[self._problem.shape.rank_of(action.stage)].append(key)
        return tuple(tuple(action for *_, action in sorted(keys)) for keys in ranks)


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
    known = listed(problem)
    if problem.shape.chunks == 1:
        known += [_deeper_1f1b(problem, extra) for extra in range(_most_extra(problem) + 1)]
    return [orders for orders in dict.fromkeys(known) if problem.fits(orders)]


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
    best = outcome.orders
    if best is None or window_ns(problem, best) >= window:
        best = start
    return Solved(best, window_ns(problem, best), max(bound, outcome.bound_ns), outcome.by_clock)


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
            hint=command_or_call("tracetool replay TRACES --schedule optimal", "tt.answer(found, 'optimal')"),
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
            hint=f"{installing('optimal')}, or take {Option.SCHEDULES('greedy')}",
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
