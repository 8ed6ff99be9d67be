"""One action, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.actions.work import Segment
    from tracetool.reconstruction.closeup.layers import LayerPlace
    from tracetool.reconstruction.closeup.split import Part


class Sum(NamedTuple):
    """Some kernels of an action together: how many, their time, and that without and with slowdown all along."""

    kernels: int
    duration_ns: int
    alone_ns: int
    contended_ns: int

    def plus(self, other: Sum) -> Sum:
        """Both together."""
        return Sum(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def cost(self) -> ActionCost:
        """The time, without memory."""
        return ActionCost(self.duration_ns, uncontended_ns=self.alone_ns, contended_ns=self.contended_ns)


_NOTHING = Sum(0, 0, 0, 0)


@dataclass(slots=True)
class ActionView:
    """One action, kernel by kernel.

    Attributes:
        rank: Global rank.
        segment: The action.
        times_ns: What each kernel adds to the action's time, launch gaps included.
        alone_ns: The same without slowdown beside communication kernels.
        contended_ns: The same with a communication kernel beside them all along.
        beside_ns: Per kernel, for how long a communication kernel was on the device.
        beside_messages_ns: The same for sends and receives alone.
        late_ns: Per kernel, for how long its start waited for a launch that is no part of the action's own cost.
        places: Place of each kernel among the layers; None if unknown.
        parts: Of a backward, the gradient that each kernel computes; None if not known.
    """

    rank: int
    segment: Segment
    times_ns: list[int]
    alone_ns: list[int]
    contended_ns: list[int]
    beside_ns: list[int]
    beside_messages_ns: list[int]
    late_ns: Sequence[int]
    places: tuple[LayerPlace, ...] | None = None
    parts: list[Part | None] | None = None
    _sums: dict[tuple[int | None, bool], Sum] = field(default_factory=dict)

    def layer(self, layer: int) -> Sum:
        """Its kernels in one layer."""
        sums = self._summed()
        return sums.get((layer, True), _NOTHING).plus(sums.get((layer, False), _NOTHING))

    def half(self, kind: ActionKind, layer: int) -> Sum:
        """Those of them that go into one gradient; what tells neither goes with the input's."""
        return self._summed().get((layer, kind is ActionKind.BACKWARD_WEIGHT), _NOTHING)

    def whole_half(self, kind: ActionKind) -> Sum:
        """All its kernels that go into one gradient."""
        chosen = kind is ActionKind.BACKWARD_WEIGHT
        total = _NOTHING
        for (_, is_weight), of_layer in self._summed().items():
            if is_weight == chosen:
                total = total.plus(of_layer)
        return total

    def _summed(self) -> dict[tuple[int | None, bool], Sum]:
        """By layer and whether it is for weights. Made when first asked for: nothing may change after that."""
        if not self._sums:
            layers = [None] * len(self.times_ns) if self.places is None else [place.layer for place in self.places]
            parts = self.parts or [None] * len(layers)
            rows = zip(layers, parts, self.times_ns, self.alone_ns, self.contended_ns, strict=True)
            for layer, part, time, alone, contended in rows:
                key = (layer, part == "weight")
                self._sums[key] = self._sums.get(key, _NOTHING).plus(Sum(1, time, alone, contended))
        return self._sums
