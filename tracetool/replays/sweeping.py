"""The static sweep: end of a node = latest end of those it waits for + its duration, in many scenarios at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.replays.native import compiled_engine

if TYPE_CHECKING:
    from types import ModuleType

    from tracetool.replays.flow import Bools, Bytes, Int32s, Int64s
    from tracetool.replays.plan import NodeOrder


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations by cost class; scenarios share all but a few.

    Attributes:
        base: Per cost class, its duration in ns.
        varying: Classes whose durations differ from scenario to scenario; None if there is one scenario.
        values: Their durations, classes by scenarios.
    """

    base: Int64s
    varying: Int32s | None = None
    values: Int64s | None = None

    @property
    def scenarios(self) -> int:
        """Number of scenarios."""
        return 1 if self.values is None else self.values.shape[1]

    def of(self, scenario: int) -> Int64s:
        """All durations of one scenario."""
        if self.values is None or self.varying is None:
            return self.base
        durations = self.base.copy()
        durations[self.varying] = self.values[:, scenario]
        return durations

    def sums(self, counts: Int64s) -> Int64s:
        """By scenario, all durations so many times each, summed.

        Args:
            counts: Per cost class.
        """
        import numpy as np

        if self.values is None or self.varying is None:
            return np.array([counts @ self.base], np.int64)
        fixed = counts.copy()
        fixed[self.varying] = 0
        sums: Int64s = fixed @ self.base + counts[self.varying] @ self.values
        return sums


def sweep(plan: NodeOrder, durations: Durations, wanted: Int32s) -> tuple[Int64s, Bools]:
    """Sweep over a plan.

    Args:
        plan: The order.
        durations: Of every scenario.
        wanted: Nodes whose ends are asked for.

    Returns:
        Ends of the wanted nodes, by scenarios; and which scenarios break the order of the plan.
    """
    import numpy as np

    count = durations.scenarios
    out = np.empty((len(wanted), count), np.int64)
    failed = np.zeros(count, np.uint8)
    native = compiled_engine()
    if native is None or not count:
        _sweep_levels(plan, durations, wanted, out, failed)
    else:
        _sweep_native(native, plan, durations, wanted.astype(np.int32), out, failed)
    return out, failed.astype(bool)


_LANES = 16
"""Scenarios that the compiled sweep takes at a time."""


def _sweep_native(
    native: ModuleType, plan: NodeOrder, durations: Durations, wanted: Int32s, out: Int64s, failed: Bytes
) -> None:
    import numpy as np

    count = durations.scenarios
    varying = np.empty(0, np.int32) if durations.varying is None else durations.varying.astype(np.int32)
    values = np.empty((0, count), np.int64) if durations.values is None else durations.values
    base = np.ascontiguousarray(durations.base)

    def part(span: tuple[int, int]) -> None:
        native.sweep(
            plan.order, plan.before.first, plan.before.at, plan.class_of, base, varying, values,
            wanted, plan.earlier, plan.later, out, failed, *span,
        )  # fmt: skip

    workers = max(1, min(os.cpu_count() or 1, count // (4 * _LANES)))
    size = -(-count // workers // _LANES) * _LANES
    spans = [(first, min(first + size, count)) for first in range(0, count, size)]
    if len(spans) == 1:
        part(spans[0])
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(part, spans))


_BLOCK = 64
"""Scenarios that the plain sweep takes at a time."""


def _sweep_levels(plan: NodeOrder, durations: Durations, wanted: Int32s, out: Int64s, failed: Bytes) -> None:
    import numpy as np

    first = plan.before.first
    levels = _levels(plan)
    count = durations.scenarios
    for at in range(0, count, _BLOCK):
        until = min(at + _BLOCK, count)
        per_class = np.repeat(durations.base[:, None], until - at, axis=1)
        if durations.varying is not None and durations.values is not None:
            per_class[durations.varying] = durations.values[:, at:until]
        ends = np.empty((len(plan.order), until - at), np.int64)
        for begin, end in levels:
            nodes = plan.order[begin:end]
            ends[nodes] = per_class[plan.class_of[nodes]]
            if first[end] > first[begin]:  # all but the first level wait for something
                earlier = ends[plan.before.at[first[begin] : first[end]]]
                ends[nodes] += np.maximum.reduceat(earlier, first[begin:end] - first[begin], axis=0)
        out[:, at:until] = ends[wanted]
        failed[at:until] = (ends[plan.earlier] >= ends[plan.later]).any(axis=0)


def _levels(plan: NodeOrder) -> list[tuple[int, int]]:
    if plan.levels is None:  # made with the compiled engine: one node at a time
        return [(place, place + 1) for place in range(len(plan.order))]
    bounds = plan.levels.tolist()
    return list(zip(bounds, [*bounds[1:], len(plan.order)], strict=True))
