"""What a way to overlap loses, and to what: the same call again with one thing in the way less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from tracetool.overlap.prediction import NO_HOST_NS, call_time, last_end_ns
from tracetool.overlap.products import ProductRate
from tracetool.overlap.simulation import Physics
from tracetool.overlap.variants import issue_calls, side_of

if TYPE_CHECKING:
    from tracetool.overlap.machine import Machine
    from tracetool.overlap.measured import Timing
    from tracetool.overlap.products import ProductShape, ProductTime
    from tracetool.overlap.variants import LayerShape


class LossCause(Enum):
    """What is in the way; the value says it to people."""

    HOST = "calls of the host and launches"
    SMS = "SMs that communication holds or waits for"
    SMALL = "small products, less efficient than the whole"
    COPIES = "copies and additions"
    RENDEZVOUS = "ranks that wait for each other"


@dataclass(frozen=True, slots=True)
class Loss:
    """What one thing in the way costs a call.

    Attributes:
        cause: What it is.
        lost_ns: How much shorter the call is without it alone: losses hide behind each other, and do not add up.
    """

    cause: LossCause
    lost_ns: float


@dataclass(frozen=True, slots=True)
class _EvenProducts(ProductRate):
    """Products of which a part takes its share of the whole.

    Attributes:
        whole_rows: Rows of the whole.
    """

    whole_rows: int = 1

    def time(self, shape: ProductShape, *, alone: bool = False) -> ProductTime:
        """The time of a product; ``alone`` as in ``ProductRate``."""
        whole = ProductRate.time(self, replace(shape, rows=self.whole_rows), alone=alone)
        share = whole.alone_ns * shape.rows / self.whole_rows
        return replace(ProductRate.time(self, shape, alone=alone), alone_ns=share)


_NO_LAUNCHES = Physics(launch_ns=0, follow_ns=0, event_ns=0)
_NO_SMS = Physics(lost_per_block=0, moving_factor=1)
_LEAST_RATIO = 0.01
"""Of a call, what is lost at least to be told."""


def losses(variant: str, shape: LayerShape, machine: Machine, timing: Timing) -> tuple[Loss, ...]:
    """What is in the way of a call, what costs most first; what costs less than one part in a hundred is left out.

    Args:
        variant: The way.
        shape: The layer.
        machine: What runs it.
        timing: How calls are timed.

    Raises:
        BadQuery: If the variant cannot be run; see ``variants.refusal``.
    """
    full_ns = call_time(variant, shape, machine, timing).call_ns
    even = _EvenProducts(
        **{name: getattr(machine.products, name) for name in ProductRate.__dataclass_fields__}, whole_rows=shape.tokens
    )

    def call_ns(of: Machine, physics: Physics, late: tuple[bool, ...] = (False, True)) -> float:
        program = issue_calls(variant, shape, of, calls=timing.calls, ahead_ns=timing.host_ahead_ns)
        return (last_end_ns(program, late, physics) - timing.host_ahead_ns) / timing.calls

    usual = Physics()
    # Beside what is taken away everything else is as in a call whose ranks differ: their mean is not taken here.
    base_ns = call_ns(machine, usual)
    without = {
        LossCause.HOST: call_ns(replace(machine, call_ns=NO_HOST_NS), _NO_LAUNCHES),
        LossCause.SMS: call_ns(machine, _NO_SMS),
        LossCause.SMALL: call_ns(replace(machine, products=even), usual),
        LossCause.COPIES: call_ns(replace(machine, memory_bytes_per_ns=float("inf")), usual),
        LossCause.RENDEZVOUS: call_ns(machine, usual, (False,)),
    }
    every_loss = (Loss(cause, base_ns - each) for cause, each in without.items())
    shown = [loss for loss in every_loss if loss.lost_ns >= _LEAST_RATIO * full_ns]
    return tuple(sorted(shown, key=lambda loss: -loss.lost_ns)) if side_of(variant) else ()
