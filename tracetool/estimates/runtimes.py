"""Models whose plans are known by name, as Sailor's fork of Megatron-DeepSpeed trains them: all in 32 bit.

Sizes are those of the published configurations with the vocabulary padded as the fork pads it; what a layer keeps is
counted in its ``opt_model.py`` and ``gpt_neo_model.py`` (eth-easl/sailor, ``third_party/Megatron-DeepSpeed``).
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES = 4
"""Of an entry of anything."""
PARAMETER_BYTES = 16
"""Weight, gradient and two moments of Adam."""
OUTSIDE_BYTES = 4 << 30
"""Device memory outside of torch's allocator: contexts of CUDA and buffers of NCCL's communicators (world, tensor,
data and pipeline parallel). Assumed, of the order of what 14 measured plans leave over (3.9 to 4.9 GiB of OPT-350M): no
file tells it, and the plans' peaks are of the whole device. It is the one figure that is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeModel:
    """A model as a runtime trains it.

    Attributes:
        name: As plans call it.
        layers: Layers, without embedding and head.
        hidden: Hidden size h.
        heads: Attention heads.
        sequence: Tokens per sequence.
        layer_parameters: Of a layer.
        embedding_parameters: Ahead of the layers.
        head_parameters: After them.
        scored: Entries that the loss has of each token, over all tensor-parallel ranks; of a model that ends in its
            last norm the loss is over the hidden state, which each rank has whole.
        whole_head: Whether each rank has all of them.
        kept_whole: Hidden states that each tensor-parallel rank keeps of a layer: inputs and outputs of both norms;
            dropout masks, a byte each.
        kept_shared: Those that ranks share: queries, keys, values (3), context (1), inside of the MLP (4 each time).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    layer_parameters: int
    embedding_parameters: int
    head_parameters: int
    scored: int
    whole_head: bool
    kept_whole: float
    kept_shared: float

    def state_bytes(self, batch: int) -> int:
        """The hidden state of a microbatch: what a message carries."""
        return BYTES * batch * self.sequence * self.hidden

    def scores_bytes(self, batch: int, tensor: int) -> int:
        """Attention's probabilities of a layer, on one rank."""
        return BYTES * batch * self.heads // tensor * self.sequence * self.sequence

    def logits_bytes(self, batch: int, tensor: int) -> int:
        """What the loss is computed of, on one rank."""
        return BYTES * batch * self.sequence * self.scored // (1 if self.whole_head else tensor)

    def kept_bytes(self, batch: int, tensor: int) -> int:
        """What one rank keeps of a layer from a microbatch's forward to its backward."""
        states = self.kept_whole + self.kept_shared / tensor
        return round(states * self.state_bytes(batch)) + self.scores_bytes(batch, tensor)


RUNTIME_MODELS = {
    model.name: model
    for model in (
        RuntimeModel(
            name="OPT-350", layers=24, hidden=1024, heads=16, sequence=2048, layer_parameters=12_596_224,
            embedding_parameters=53_608_448, head_parameters=50_304 * 1024 + 2 * 1024, scored=50_304,
            whole_head=False, kept_whole=4, kept_shared=8,
        ),
        RuntimeModel(
            name="GPT-Neo-2.7", layers=32, hidden=2560, heads=20, sequence=2048, layer_parameters=78_676_480,
            embedding_parameters=134_021_120, head_parameters=2 * 2560, scored=2560, whole_head=True,
            kept_whole=4.5, kept_shared=12,
        ),
    )
}  # fmt: skip
"""OPT: Zhang et al., arXiv 2205.01068, table 1 (350M, with norms ahead of each block in this fork). GPT-Neo: Black et
al., 2021, ``gpt-neo-2.7B``; its attention drops out nothing, each block one hidden state twice."""
