"""greedy: list scheduling over the measured costs, the links and the memory limit.

Source: CrossPipe's greedy schedule (arXiv 2507.00217, section 4.2); what differs is said in ``list_scheduling``.
The shortest of 15 orders (of 5 where backwards are whole) is taken.
Shape: any p, v, m and placement.
Memory: within the limit, as far as one microbatch at a time fits it.
Bubble: no closed form; at zero delay and with memory enough, (p - 1)(f + b) with whole backwards.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape, command_or_call
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.list_scheduling import best_listed


def build(shape: PipelineShape, options: ScheduleOptions) -> Schedule:
    """The best listed order.

    Raises:
        UnsupportedShape: Without costs, or with those of another shape.
    """
    problem = options.problem
    if problem is None or problem.shape != shape:
        raise UnsupportedShape(
            "'greedy' needs costs of that shape: its order follows from them.",
            hint=command_or_call("tracetool replay TRACES --schedule greedy", "tt.answer(found, 'greedy')"),
        )
    return Schedule("greedy", shape, best_listed(problem, options.judge), blocking=False)


SCHEDULE = ScheduleKind(
    name="greedy",
    summary="list scheduling over measured costs, links and memory: what is ready first runs first",
    source="after arXiv 2507.00217, section 4.2",
    constraints="any p, v, m; needs a trace",
    bubble="none in closed form",
    in_flight="as the memory limit allows",
    build=build,
    needs_costs=True,
    is_listed=True,
)
