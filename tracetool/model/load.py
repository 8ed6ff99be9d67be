"""How a device slows down under sustained load: its power control lowers the clock, and lets it rise again in bubbles.

Seen on H100 (700 W): stages that compute without a pause take 10 % longer after some 50 ms, stages that idle a fifth
of the time 2 to 4 %, and the first microbatches after a pause nothing. Steps with less idle time are slower besides
(the device is warmer): the same step of 16 microbatches by 1 % per microbatch than of 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SustainedLoad:
    """Averages of the load, a moving one and that of the whole step, and the slowdown they bring.

    Load 1 is a backward that computes without a pause or a communication kernel beside it; beside one, which keeps
    SMs from computing, the load is as much less as the work takes longer.

    Attributes:
        settle_ns: Time constant of the average.
        threshold: Load up to which nothing slows down.
        slope: Share of time added per unit of load beyond it.
        step_threshold: The same for the average over steps.
        step_slope: The same.
        forward_load: Load of a forward.
        start_load: Load when a step starts, after optimizer and synchronisation.
        device: Part of the device's name that it was seen on.
    """

    settle_ns: int
    threshold: float
    slope: float
    step_threshold: float
    step_slope: float
    forward_load: float
    start_load: float
    device: str = ""

    def load_of(self, kind: ActionKind) -> float:
        """Load of an action that runs at full pace."""
        return self.forward_load if kind is ActionKind.FORWARD else 1.0

    def scaled(self, forwards: float, backwards: float) -> SustainedLoad:
        """The same where forwards and backwards bring such shares of their load.

        Load keeps its unit, that of a backward: what it is held against and what it costs change instead.
        """
        if backwards <= 0:
            return replace(self, slope=0.0, step_slope=0.0)
        return replace(
            self,
            threshold=self.threshold / backwards,
            slope=self.slope * backwards,
            step_threshold=self.step_threshold / backwards,
            step_slope=self.step_slope * backwards,
            forward_load=self.forward_load * forwards / backwards,
            start_load=self.start_load / backwards,
        )

    def after(self, load: float, duration_ns: int, brought: float) -> float:
        """The average after so much time at a load."""
        return brought + (load - brought) * math.exp(-duration_ns / self.settle_ns)

    def factor(self, load: float, duration_ns: int, brought: float, step_load: float) -> float:
        """How much longer an action takes than without slowdown.

        Args:
            load: Moving average when it starts.
            duration_ns: What it takes without.
            brought: Load of the action itself.
            step_load: Average of the rank's step.
        """
        middle = (load + self.after(load, duration_ns, brought)) / 2
        moving = self.slope * max(0.0, middle - self.threshold)
        return 1.0 + moving + self.step_slope * max(0.0, step_load - self.step_threshold)


_HOPPER_700_W = SustainedLoad(
    25_000_000, threshold=0.75, slope=0.255, step_threshold=0.7, step_slope=0.1, forward_load=1.1, start_load=0.3
)

KNOWN_LOADS: Mapping[str, SustainedLoad] = {
    # Least squares over every action of rt1f1b_m8, gpipe_m8 and 1f1b_m8: what is left varies by 1.1 % (without: 2.8 %).
    # The part of the step: one H100 that ran the same layers with 4 to 64 microbatches and pauses of 10 to 200 ms.
    # There (tests/data/load), time constant and threshold came out the same, and the slope between 0.25 and 0.29.
    "H100": replace(_HOPPER_700_W, device="H100"),
    # The same chip at the same power. Two H200 that ran 4 to 32 microbatches (tests/data/h200-pp2): steps within 2.1 %
    # of what one trace of 8 predicts with H100's figures, within 6.6 % without any.
    "H200": replace(_HOPPER_700_W, device="H200"),
}
"""By what the device's name contains."""


def known_load(device_name: str | None) -> SustainedLoad | None:
    """The behaviour of a device model; None if none of it is known."""
    return next((load for part, load in KNOWN_LOADS.items() if part in (device_name or "")), None)
