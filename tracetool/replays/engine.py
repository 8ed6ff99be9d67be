"""Run a task graph, event by event: in C where it was built, else in Python (``loop``), with the same result.

The compiled engine, where it was built: the same results as the plain one, many times as fast.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScheduleDeadlock, TraceToolError, UnknownName
from tracetool.replays.flow import FORWARD
from tracetool.replays.graph import TaskKind
from tracetool.replays.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from tracetool.replays.flow import Floats, Int8s, Int32s, Int64s, Slowdown
    from tracetool.replays.graph import TaskGraph

CHOICE = "TRACETOOL_ENGINE"


def compiled_engine() -> ModuleType | None:
    """The module ``_engine``; None if it was not built or is turned off by ``TRACETOOL_ENGINE=plain``.

    Raises:
        TraceToolError: If ``TRACETOOL_ENGINE=compiled`` insists on it but it is not there.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", "plain", "compiled"}:
        raise UnknownName("engine", choice, ["plain", "compiled"], hint=f"set {CHOICE} to plain, compiled or nothing")
    if choice == "plain":
        return None
    try:
        return import_module("tracetool.replays._engine")
    except ImportError as error:
        if choice != "compiled":
            return None
        raise TraceToolError(
            f"the compiled engine is not there: {error}.",
            hint=f"install tracetool where a C compiler is, or unset {CHOICE}",
        ) from error


@dataclass(frozen=True, slots=True)
class Times:
    """When each task ran, by task number; a MOVE over a link starts when the link takes the message."""

    start_ns: Int64s
    end_ns: Int64s


def run(graph: TaskGraph, durations: Int64s, link_of: Int32s, name: str, slowdown: Slowdown | None = None) -> Times:
    """Run a task graph.

    Args:
        graph: Tasks and what they wait for.
        durations: Per task, its duration in ns; of a compute, by itself.
        link_of: Per task, the number of the link that it occupies; -1 for none.
        name: What is run, for messages.
        slowdown: By what computes take longer, if they do.

    Returns:
        Start and end of every task, in ns from the start of the first one.

    Raises:
        ScheduleDeadlock: If tasks are left that wait for each other, naming them per rank.
    """
    left, times, work = _run(graph, durations, link_of, slowdown)
    if slowdown is not None and any(slowdown.loads) and not slowdown.step_loads and not left:
        # How long the step is decides how warm devices are, and that how long it is: once more is near enough.
        window = int(times.end_ns[graph.compute].max() - times.start_ns[graph.compute].min())
        step_loads = tuple(of_rank / max(1, window) for of_rank in work)
        left, times, _ = _run(graph, durations, link_of, replace(slowdown, step_loads=step_loads))
    if left:
        raise ScheduleDeadlock(
            f"{name} cannot finish: every rank waits.\n" + _stuck(graph, times.start_ns.tolist()),
            hint=f"another {Option.P2P} mode may let it run",
        )
    return times


def _run(
    graph: TaskGraph, durations: Int64s, link_of: Int32s, slowdown: Slowdown | None
) -> tuple[int, Times, Sequence[float]]:
    """How many tasks could not start, when the others ran, and the work of each rank's device."""
    import numpy as np

    native = compiled_engine()
    if native is None:
        loop = Loop(graph, durations, link_of, slowdown)
        left = loop.run()
        return left, Times(np.array(loop.start, np.int64), np.array(loop.end, np.int64)), loop.work()
    times = Times(np.empty(graph.tasks, np.int64), np.empty(graph.tasks, np.int64))
    rows, links = graph.successors, int(link_of.max(initial=-1)) + 1
    work = np.zeros(0 if slowdown is None else len(slowdown.loads))
    slow = None if slowdown is None else (slowdown.contended, *_devices(graph, slowdown), work)
    heads = _heads(graph)
    left = native.run(rows.first, rows.at, durations, link_of, links, heads, times.start_ns, times.end_ns, slow)
    return left, times, work.tolist()


def _heads(graph: TaskGraph) -> Int32s | None:
    """Per task, the one that begins when it starts; -1 for none, None if it is so with all of them."""
    import numpy as np

    onward = graph.onward
    if not len(onward.head):
        return None
    heads = np.full(graph.tasks, -1, np.int32)
    heads[onward.leaving] = onward.head
    return heads


def _devices(graph: TaskGraph, slowdown: Slowdown) -> tuple[Int8s, Int32s, Int32s, Floats]:
    """What the compiled engine wants to know of slowdown: task kinds and ranks, who leaves, and load by rank."""
    import numpy as np

    averages = slowdown.step_loads or (0.0,) * len(slowdown.loads)
    loads = np.zeros((len(slowdown.loads), 8))
    for rank, (load, average) in enumerate(zip(slowdown.loads, averages, strict=True)):
        if load is not None:
            loads[rank] = (
                load.settle_ns, load.threshold, load.slope, load.step_threshold, load.step_slope,
                load.forward_load, load.start_load, average,
            )  # fmt: skip
    is_forward = graph.flow.kind[graph.subjects] == FORWARD
    kinds = np.where((graph.kinds == TaskKind.COMPUTE) & is_forward, _FORWARD_COMPUTE, graph.kinds).astype(np.int8)
    return kinds, graph.ranks, graph.leaves, loads


_FORWARD_COMPUTE = 6
"""Marks the COMPUTE of a forward among task kinds, as ``_engine_loop.h`` has it."""


def _stuck(graph: TaskGraph, start: list[int]) -> str:
    """Per rank, what it stands at: the message whose other side is not there, or the compute without input."""
    lines = []
    for rank in range(len(graph.flow.schedule.orders)):
        reason = _open_message(graph, start, rank) or _idle_compute(graph, start, rank)
        if reason:
            lines.append(f"  rank {rank} waits {reason}")
    return "\n".join(lines)


def _open_message(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    posts = zip(graph.send_post.tolist(), graph.recv_post.tolist(), strict=True)
    for message, (send, recv) in enumerate(posts):
        for mine, other, verb in ((send, recv, "send"), (recv, send, "receive")):
            if mine < 0 or other < 0 or graph.ranks[mine] != rank:
                continue
            if start[mine] >= 0 and start[other] < 0:
                return f"to {verb} {graph.flow.message(message)}: rank {graph.ranks[other]} is not there yet"
    return None


def _idle_compute(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    for task, kind in enumerate(graph.kinds.tolist()):
        if graph.ranks[task] == rank and kind == TaskKind.COMPUTE and start[task] < 0:
            waits = [int(t) for t in graph.before[graph.after == task] if graph.kinds[t] == TaskKind.ARRIVE]
            inputs = [str(graph.flow.message(graph.subjects[t])) for t in sorted(waits)]
            return f"at {graph.action(task)} for {' and '.join(inputs) or 'an action of its own that comes later'}"
    return None
