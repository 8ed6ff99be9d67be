"""Why a metric changed: the base replayed with one part of the new side at a time.

What a part contributes depends on what else has changed already, so parts are exchanged one after another, in one order
and in the reverse one, and each contributes the mean of its two steps. Together the contributions are the replayed
change, exactly; what was observed beyond it (hosts, waits that replay does not model, steps that vary) is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.compare.parts import EVERYTHING, Part, mixed, parts_of
from tracetool.errors import TraceToolError
from tracetool.metrics import measure
from tracetool.model.scenario import Scenario
from tracetool.replay import replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import Pipeline

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


def attribute(base: Pipeline, new: Pipeline) -> dict[str, Attribution]:
    """Take the change of each metric of the step apart, and of each rank's peak; what a side does not have is left out.

    Args:
        base: Typical step of the base.
        new: Typical step of the new side.

    Raises:
        TraceToolError: If a side cannot be replayed.
    """
    parts = parts_of(base, new)
    try:
        forward, backward = _steps(base, new, parts), _steps(base, new, parts[::-1])
    except TraceToolError:
        # Parts of one side that the other's order cannot run.
        parts = [EVERYTHING]
        forward = backward = _steps(base, new, parts)
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


def _steps(base: Pipeline, new: Pipeline, parts: Sequence[Part]) -> list[_Values]:
    """The metrics of the base, then with each part of the new side more."""
    taken: set[Part] = set()
    found = [_values(base)]
    for part in parts:
        taken.add(part)
        found.append(_values(mixed(base, new, taken)))
    return found


def _values(pipeline: Pipeline) -> _Values:
    done = replay(pipeline, pipeline.observed, Scenario(interference=False))
    metrics = measure(done.timeline)
    values = {name: Fraction(getattr(metrics, name)) for name in ("step_ns", "window_ns", "compute_ns")}
    ranks = len(metrics.rank_compute_ns)
    values["bubble_ns"] = metrics.window_ns - Fraction(metrics.compute_ns, ranks)
    values["bubble_ratio"] = values["bubble_ns"] / metrics.window_ns if metrics.window_ns else Fraction(0)
    peaks = zip(done.timeline.global_ranks, metrics.peak_hbm_bytes, strict=True)
    known = {f"peak_hbm_bytes/rank{rank}": Fraction(peak) for rank, peak in peaks if peak is not None}
    highest = {"peak_hbm_bytes": max(known.values())} if len(known) == ranks else {}
    return values | highest | known
