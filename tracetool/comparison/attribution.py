"""Why a metric changed: the base replayed with one part of the new side at a time.

What a part contributes depends on what else has changed already, so parts are exchanged one after another, in one order
and in the reverse one, and each contributes the mean of its two steps. Together the contributions are the replayed
change, exactly; what was observed beyond it (hosts, waits that replay does not model, steps that vary) is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.comparison.parts import EVERYTHING, Part, holds_memory, mixed, parts_of
from tracetool.comparison.replayed import ReplayedOrder
from tracetool.errors import TraceToolError
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.replays.compiled import Compiled
from tracetool.replays.costing import TaskCosts
from tracetool.replays.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import Pipeline

_AS_RECORDED = Scenario(interference=False)
_Values = dict[str, Fraction]


@dataclass(frozen=True, slots=True)
class Attribution:
    """What a metric's replayed change is made of.

    Attributes:
        base: The metric of the base's typical step, replayed.
        new: That of the new side's.
        contributions: What each part contributes; their sum is new minus base.
    """

    base: Fraction
    new: Fraction
    contributions: Mapping[Part, Fraction]


def attribute(base: Pipeline, new: Pipeline, asked: ReplayedOrder | None = None) -> dict[str, Attribution]:
    """Take the change of each metric of the step apart, and of each rank's peak; what a side does not have is left out.

    Args:
        base: Typical step of the base.
        new: Typical step of the new side.
        asked: What to replay, for its times alone; by default each side's own order.

    Raises:
        TraceToolError: If a side cannot be replayed.
    """
    parts, times = parts_of(base, new), _Times(asked)
    try:
        forward, backward = _steps(base, new, parts, times), _steps(base, new, parts[::-1], times)
    except TraceToolError:
        # Parts of one side that the other's order cannot run.
        parts = [EVERYTHING]
        forward = backward = _steps(base, new, parts, times)
    found = {}
    for name in forward[0]:
        if any(name not in values for values in (*forward, *backward)):
            continue
        rises: dict[Part, Fraction] = dict.fromkeys(parts, Fraction(0))
        for path, order in ((forward, parts), (backward, parts[::-1])):
            for part, before, after in zip(order, path, path[1:], strict=False):
                rises[part] += (after[name] - before[name]) / 2
        found[name] = Attribution(forward[0][name], forward[-1][name], rises)
    return found


def _steps(base: Pipeline, new: Pipeline, parts: Sequence[Part], times: _Times) -> list[_Values]:
    """The metrics of the base, then with each part of the new side more."""
    taken: set[Part] = set()
    peaks = {} if times.asked else _peaks(base)
    found = [times.of(base) | peaks]
    for part in parts:
        taken.add(part)
        pipeline = mixed(base, new, taken)
        peaks = _peaks(pipeline) if not times.asked and holds_memory(base, new, part) else peaks
        found.append(times.of(pipeline) | peaks)
    return found


class _Times:
    """Replays pipelines for their times alone; each order is compiled once."""

    def __init__(self, asked: ReplayedOrder | None) -> None:
        self.asked = asked
        self._compiled: dict[object, Compiled] = {}

    def of(self, pipeline: Pipeline) -> _Values:
        """The metrics that are times, and the share of them that is idle."""
        import numpy as np

        asked = self.asked or ReplayedOrder(pipeline.observed, pipeline.p2p, Topology())
        order = asked.schedule
        key = (order.orders, asked.p2p, pipeline.buffered)
        if key not in self._compiled:
            self._compiled[key] = Compiled(
                order,
                asked.p2p,
                asked.topology,
                buffered=pipeline.buffered,
                interwoven=asked.scenario.interwoven,
                hosts_wait=pipeline.hosts_wait,
            )
        compiled = self._compiled[key]
        graph, costs = compiled.graph, TaskCosts(pipeline, asked.scenario, order)
        durations = np.zeros(compiled.classes, np.int64)
        actions = graph.flow.actions
        durations[1 : len(actions) + 1] = [pipeline.stages[s].costs[kind][j].duration_ns for s, kind, j in actions]
        durations[costs.message_classes(compiled)] = costs.message_ns(compiled, asked.topology)
        ran = compiled.times(durations)
        origin = int(ran.start_ns[graph.compute].min())
        ends = ran.end_ns[graph.compute] - origin
        last = np.zeros(order.shape.ranks, np.int64)
        np.maximum.at(last, graph.flow.rank, ends)
        window, compute = int(ends.max()), int((ends + origin - ran.start_ns[graph.compute]).sum())
        bubble = window - Fraction(compute, order.shape.ranks)
        step = max(window, *(op.end_ns for op in costs.tails(last.tolist())), 0)
        return {
            "step_ns": Fraction(step),
            "window_ns": Fraction(window),
            "compute_ns": Fraction(compute),
            "bubble_ns": bubble,
            "bubble_ratio": bubble / window if window else Fraction(0),
        }


def _peaks(pipeline: Pipeline) -> _Values:
    """The highest allocation of each rank, as far as it is known, and of all."""
    done = evaluate(pipeline, pipeline.observed, _AS_RECORDED)
    ranks = done.replayed.timeline.global_ranks
    peaks = zip(ranks, done.metrics.peak_hbm_bytes, strict=True)
    known = {f"peak_hbm_bytes/rank{rank}": Fraction(peak) for rank, peak in peaks if peak is not None}
    highest = {"peak_hbm_bytes": max(known.values())} if len(known) == len(ranks) else {}
    return highest | known
