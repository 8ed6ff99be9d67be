"""Whether two recordings are of one model, as far as both tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline


def mismatch(one: Pipeline, other: Pipeline) -> str | None:
    """In what two Runs' pipelines differ that one's figures could not stand for the other's, or None."""
    for name, a, b in (
        ("pipeline ranks", one.observed.shape.ranks, other.observed.shape.ranks),
        ("layers", known_layers(one), known_layers(other)),
        ("bytes per message", hop_bytes(one), hop_bytes(other)),
    ):
        if a is not None and b is not None and a != b:
            return f"{a:,} {name} in one Run, {b:,} in the other"
    if len(one.stages) != len(other.stages):
        return None
    for stage, (a, b) in enumerate(zip(layers_of_stages(one), layers_of_stages(other), strict=True)):
        if a is not None and b is not None and a != b:
            return f"{a:,} layers on stage {stage} in one Run, {b:,} in the other"
    return None


def layers_of_stages(pipeline: Pipeline) -> list[int | None]:
    """Number of layers that each of a Run's stages holds; None where they are unknown."""
    return [None if stage.layers is None else len(stage.layers.layers) for stage in pipeline.stages]


def known_layers(pipeline: Pipeline) -> int | None:
    """Number of layers that a Run's stages hold; None unless all of them are known."""
    per_stage = layers_of_stages(pipeline)
    known = [count for count in per_stage if count is not None]
    return sum(known) if len(known) == len(per_stage) else None


def hop_bytes(pipeline: Pipeline) -> int | None:
    """Bytes of one activation between stages; None if unknown or not the same everywhere."""
    sizes = {stage.forward_payload_bytes for stage in pipeline.stages[:-1]}
    return sizes.pop() if len(sizes) == 1 else None
