"""Which schedule an observed order is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.schedule import Schedule


def recognise(observed: Schedule) -> Schedule | None:
    """The named schedule whose order on every rank equals the observed one, or None.

    With few microbatches several schedules coincide; the plainest one is named.
    """
    shape = observed.shape
    if shape.chunks != 1:
        return None
    warm_ups = []
    for order in observed.orders:
        kinds = [a.kind for a in order]
        first = kinds.index(ActionKind.BACKWARD) if ActionKind.BACKWARD in kinds else len(kinds)
        # The forward just before the first backward belongs to the first (F, B) pair.
        warm_ups.append(first - 1)
    extra = tuple(max(0, n - (shape.ranks - i - 1)) for i, n in enumerate(warm_ups))
    candidates = [build_schedule("1f1b", shape), build_schedule("gpipe", shape)]
    if list(extra) == sorted(extra, reverse=True):
        candidates.append(build_schedule("geopipe", shape, extra_forwards=extra))
    return next((c for c in candidates if c.orders == observed.orders), None)
