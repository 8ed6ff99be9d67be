"""Whether the setting fits the memory of the devices, by micro-batch size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.studies.geopipe.optimum import depth_limit
from tracetool.studies.geopipe.sweep import peak_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.studies.geopipe.sweep import Setting


@dataclass(frozen=True, slots=True)
class Need:
    """What the stage that needs most needs of a device's memory.

    Attributes:
        batch: Sequences per microbatch.
        static_bytes: Weights, gradients and optimizer of the first stage.
        activation_bytes: What one microbatch keeps there.
        peak_bytes: Highest allocation of any stage with 1F1B.
        deeper_peak_bytes: The same with one extra forward at each boundary.
        fits: Whether 1F1B fits.
        depth_limit: Extra forwards at each boundary that fit; None if 1F1B does not.
    """

    batch: int
    static_bytes: int
    activation_bytes: int
    peak_bytes: int
    deeper_peak_bytes: int
    fits: bool
    depth_limit: int | None


def needs(setting: Setting, microbatches: int, split: Sequence[int], batches: Sequence[int]) -> tuple[Need, ...]:
    """What each micro-batch size needs, by formula: static + microbatches in flight + what an action needs besides."""
    found = []
    for batch in batches:
        at = replace(setting, training=replace(setting.training, batch=batch))
        pipeline = at.pipeline(setting.training.efficiency_ratio, microbatches)
        peak = max(peak_bytes(pipeline, 0, split))
        fits = peak <= setting.hbm_bytes
        found.append(
            Need(
                batch=batch,
                static_bytes=pipeline.ranks[0].static_bytes or 0,
                activation_bytes=pipeline.stages[0].activation_bytes() or 0,
                peak_bytes=peak,
                deeper_peak_bytes=max(peak_bytes(pipeline, 1, split)),
                fits=fits,
                depth_limit=depth_limit(pipeline, split, setting.hbm_bytes) if fits else None,
            )
        )
    return tuple(found)
