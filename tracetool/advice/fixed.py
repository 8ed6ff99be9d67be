"""Of each action's time, the part that stays when its microbatch grows: as its kernels tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions.kernel import ACCUMULATE_NODE

if TYPE_CHECKING:
    from tracetool.costs.rescaled import Place
    from tracetool.reconstruction import Reconstruction


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
    for row in found.costs:
        times[row.stage, ActionKind(row.kind), row.microbatch] = max(0, row.duration_ns - row.kernel_ns)
    sums_found = False
    for segments in found.segments.values():
        for segment in segments:
            sums = sum(k.end_ns - k.start_ns for k in segment.kernels if ACCUMULATE_NODE in (k.node_name or ""))
            sums_found = sums_found or sums > 0
            place = (segment.stage, segment.kind, segment.microbatch)
            times[place] = times.get(place, 0) + sums
    return Fixed(times, sums_found)
