"""What a device holds: weights, gradients and optimizer, what microbatches keep, and what an action needs besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.estimates.training import Training
    from tracetool.estimates.transformer import Recompute, Transformer
    from tracetool.model.action import Action
    from tracetool.model.pipeline import Pipeline, StageProfile

WEIGHT_BYTES = 2
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12
"""Master weights and two moments of Adam: mixed precision as in Megatron-LM, 18 bytes a parameter in all."""


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters of a stage that one device has.

    Attributes:
        shared: Those that all data-parallel ranks have.
        experts: Those that one in so many expert-parallel ranks has.
    """

    shared: int
    experts: int

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.shared + self.experts


def held(model: Transformer, training: Training, stage: int) -> Held:
    """Parameters of one device of a stage."""
    last = training.stages * training.chunks - 1
    layers = model.layers // (last + 1)
    shared = layers * model.shared_parameters
    shared += model.embedding_parameters if stage == 0 else 0
    if stage == last:
        shared += model.head_parameters
        # A tied head has a copy of the embedding where it sits on another rank.
        apart = training.shape.rank_of(0) != training.shape.rank_of(last)
        shared += model.vocabulary * model.hidden if model.tied and apart else 0
    experts = layers * model.expert_parameters // training.expert
    return Held(shared // training.tensor, experts // training.tensor)


def static_bytes(has: Held, training: Training) -> int:
    """Weights, gradients and optimizer of what one device has."""
    always = (WEIGHT_BYTES + GRADIENT_BYTES) * has.parameters
    if not training.sharded_optimizer:
        return always + OPTIMIZER_BYTES * has.parameters
    return (
        always
        + OPTIMIZER_BYTES * has.shared // (training.data * training.context)
        + OPTIMIZER_BYTES * has.experts // (training.data * training.context // training.expert)
    )


def kept_bytes(model: Transformer, training: Training, recompute: Recompute | None = None) -> int:
    """What one device keeps of a layer from a microbatch's forward to its backward."""
    how = recompute or training.recompute
    batch, sequence, tensor = training.batch, training.sequence, training.tensor
    kept = model.activation_bytes(batch, sequence, how)
    if not training.sequence_parallel:
        kept += (tensor - 1) * model.whole_bytes(batch, sequence, how)
    return kept // (tensor * training.context)


def transient_bytes(model: Transformer, training: Training, *, is_last: bool) -> int:
    """What an action needs on a device while it runs: a layer computed anew, and the head's scores (2 + 4 bytes)."""
    anew = 0
    if training.recompute != "none":
        anew = kept_bytes(model, training, "none") - kept_bytes(model, training)
    scores = 6 * training.batch * training.sequence * model.vocabulary if is_last and training.has_head else 0
    return anew + scores // (training.tensor * training.context)


def peaks_bytes(pipeline: Pipeline) -> tuple[int, ...]:
    """Highest allocation of each rank: what actions hold depends on their order alone, not on when they run."""
    return tuple(
        _peak_bytes(rank.static_bytes or 0, order, pipeline.stages)
        for rank, order in zip(pipeline.ranks, pipeline.observed.orders, strict=True)
    )


def _peak_bytes(static: int, order: Sequence[Action], stages: Sequence[StageProfile]) -> int:
    level = highest = static
    for action in order:
        cost = stages[action.stage].costs[action.kind][0]
        highest = max(highest, level + (cost.peak_bytes or 0))
        level += cost.held_bytes or 0
    return highest
