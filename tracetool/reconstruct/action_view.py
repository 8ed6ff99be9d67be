"""One action, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruct.layers import Place
    from tracetool.reconstruct.segments import Segment
    from tracetool.reconstruct.split import Part


@dataclass(slots=True)
class ActionView:
    """One action, kernel by kernel.

    Attributes:
        rank: Global rank.
        segment: The action.
        times_ns: What each kernel adds to the action's time, launch gaps included.
        alone_ns: The same without slowdown beside communication kernels.
        beside_ns: Per kernel, for how long a communication kernel was on the device.
        places: Place of each kernel among the layers; None if unknown.
        parts: Of an unsplit backward, the gradient that each kernel computes; None if not known or not asked.
    """

    rank: int
    segment: Segment
    times_ns: list[int]
    alone_ns: list[int]
    beside_ns: list[int]
    places: tuple[Place, ...] | None = None
    parts: list[Part | None] | None = None

    def cost(self, chosen: Sequence[bool] | None = None) -> ActionCost:
        """Time of some of its kernels (of all), without memory."""
        keep = chosen or [True] * len(self.times_ns)
        return ActionCost(
            sum(t for t, kept in zip(self.times_ns, keep, strict=True) if kept),
            uncontended_ns=sum(t for t, kept in zip(self.alone_ns, keep, strict=True) if kept),
        )

    def half(self, kind: ActionKind, layer: int | None = None) -> ActionCost:
        """Time that goes into one gradient (what tells neither goes with the input's), of one layer or of all."""
        parts = self.parts or []
        places: Sequence[Place | None] = self.places or [None] * len(parts)
        return self.cost(
            [
                (part == "weight") == (kind is ActionKind.BACKWARD_WEIGHT)
                and (layer is None or (place is not None and place.layer == layer))
                for part, place in zip(parts, places, strict=True)
            ]
        )
