"""Of each action's time, the part that stays when its microbatch grows: as its kernels tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from tracetool.model.action import ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.costs.rescaled import Place
    from tracetool.reconstruction import Reconstruction

_SUMS = "AccumulateGrad"
"""Autograd node that adds a weight gradient to those of the microbatches before: as large whatever the microbatch."""


class Fixed(NamedTuple):
    """What stays.

    Attributes:
        times_ns: Per action; empty if no kernels are known.
        sums_found: Whether sums of weight gradients were told apart.
    """

    times_ns: dict[Place, int]
    sums_found: bool


def fixed_parts(found: Reconstruction) -> Fixed:
    """Gaps between kernels, and the sums of weight gradients, of every action of the step."""
    times: dict[Place, int] = {}
    for stage, kind, microbatch, duration, kernels in action_times(found):
        times[stage, ActionKind(kind), microbatch] = max(0, duration - kernels)
    sums_found = False
    for segments in found.segments.values():
        for segment in segments:
            sums = sum(k.end_ns - k.start_ns for k in segment.kernels if _SUMS in (k.node_name or ""))
            sums_found = sums_found or sums > 0
            place = (segment.stage, segment.kind, segment.microbatch)
            times[place] = times.get(place, 0) + sums
    return Fixed(times, sums_found)


def action_times(found: Reconstruction) -> Iterator[tuple[int, str, int, int, int]]:
    """Stage, kind, microbatch, duration and time of kernels (ns) of every action of the step."""
    rows = (row for row in found.tables.get("costs", ()) if row[0] == found.pipeline.step)
    return cast("Iterator[tuple[int, str, int, int, int]]", ((row[2], row[3], row[4], row[5], row[6]) for row in rows))
