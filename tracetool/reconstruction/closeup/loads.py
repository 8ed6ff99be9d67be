"""How a rank's device slows down under the load that its own kernels bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.load import known_load
from tracetool.reconstruction.closeup.slowdown import is_tensor_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.load import SustainedLoad
    from tracetool.reconstruction.actions.work import Segment

_TENSOR_SHARES = {True: 0.83, False: 0.72}
"""Least share of matrix products and attention in the kernels of a stage's forwards (True) and backwards, in the
recordings that the behaviour of devices was learned from (rt1f1b_m8, gpipe_m8, 1f1b_m8). Kernels that wait for memory
draw less power: two H200 whose kernels were 40 to 49 % such products (megatron-core, unfused attention) did not slow
down at all at loads that would have cost 8 %."""


def rank_load(device_name: str | None, segments: Iterable[Segment]) -> SustainedLoad | None:
    """How a device slows down with a rank's actions on it; None if nothing is known of it.

    Args:
        device_name: Model of the device.
        segments: The rank's actions.
    """
    load = known_load(device_name)
    if load is None:
        return None
    total, products = {True: 0, False: 0}, {True: 0, False: 0}
    for segment in segments:
        is_forward = segment.kind is ActionKind.FORWARD
        for kernel in segment.kernels:
            if kernel.is_compute and not kernel.is_collective and kernel.name:
                total[is_forward] += kernel.end_ns - kernel.start_ns
                products[is_forward] += (kernel.end_ns - kernel.start_ns) * is_tensor_kernel(kernel.name)
    of_forward, of_backward = (
        min(1.0, products[kind] / total[kind] / least) if total[kind] else 1.0 for kind, least in _TENSOR_SHARES.items()
    )
    return load if of_forward == of_backward == 1 else load.scaled(of_forward, of_backward)
