"""Shapes of transformers, dense and mixture-of-experts: what they compute, hold and send, counted from the matrices.

Counts follow Korthikanti et al., arXiv 2205.05198 (operations of section 4 and appendix A, activation bytes of
equations 1 to 6), with grouped key-value heads, gated MLPs, fused attention and experts beside the GPT layer of that
paper. Attention is counted over the whole square of the sequence, as there: a causal kernel may do half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer, in place of its MLP: each token goes to some of them, evenly.

    Attributes:
        count: How many there are.
        top: How many each token goes to.
    """

    count: int
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder.

    Attributes:
        name: What it is called.
        layers: Layers.
        hidden: Hidden size h.
        heads: Attention heads.
        kv_heads: Heads of keys and values; as many as ``heads`` without grouping.
        ffn: Inner size of the MLP, or of one expert.
        vocabulary: Entries of embedding and head.
        gated: Whether the MLP has a gate (SwiGLU, three matrices; RMSNorm, no biases, as Llama) or not (GELU, two
            matrices; LayerNorm, biases, dropout, as GPT).
        fused_attention: Whether attention never writes its scores to memory (FlashAttention).
        positions: Learned positions; 0 for none.
        tied: Whether the head shares the embedding's weights.
        experts: Of every layer; None of a dense model.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    gated: bool
    fused_attention: bool
    positions: int = 0
    tied: bool = False
    experts: Experts | None = None

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.hidden * self.kv_heads // self.heads

    @property
    def attention_weights(self) -> int:
        """Entries of the matrices of attention."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width

    @property
    def mlp_weights(self) -> int:
        """Entries of the matrices of one MLP, or expert."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_weights(self) -> int:
        """Entries of the matrices that each token is multiplied with once: of experts, those that it goes to."""
        return self.attention_weights + (self.experts.top if self.experts else 1) * self.mlp_weights

    @property
    def shared_parameters(self) -> int:
        """Parameters of a layer without its experts: all of a dense one."""
        norms = (2 if self.gated else 4) * self.hidden
        biases = 0 if self.gated else 2 * self.hidden + 2 * self.kv_width
        if self.experts:
            return self.attention_weights + norms + biases + self.hidden * self.experts.count
        return self.attention_weights + norms + biases + self._mlp_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of a layer."""
        return self.experts.count * self._mlp_parameters if self.experts else 0

    @property
    def _mlp_parameters(self) -> int:
        return self.mlp_weights + (0 if self.gated else self.ffn + self.hidden)

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: matrices, norms, and biases where it has any; router and all experts."""
        return self.shared_parameters + self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters ahead of the layers."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters after the layers: the last norm, and the head if it has weights of its own."""
        norm = self.hidden * (1 if self.gated else 2)
        return norm + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    def linear_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer's matrices, forward: two per entry and token."""
        return 2 * batch * sequence * self.layer_weights

    def attention_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer's attention itself, forward: scores and their product with the values."""
        return 4 * batch * sequence * sequence * self.hidden

    def head_flops(self, batch: int, sequence: int) -> int:
        """Operations of the head, forward."""
        return 2 * batch * sequence * self.hidden * self.vocabulary

    def layer_forward_flops(self, batch: int, sequence: int) -> int:
        """Operations of a layer, forward."""
        return self.linear_flops(batch, sequence) + self.attention_flops(batch, sequence)

    def layer_backward_flops(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Operations of a layer, backward, with what is computed anew.

        Twice the forward; a fused attention computes its scores anew in any case (2.5 times its forward: Dao, arXiv
        2307.08691, section 4.1), and has nothing left to be recomputed selectively.
        """
        linear, attention = self.linear_flops(batch, sequence), self.attention_flops(batch, sequence)
        backward = 2 * linear + (attention * 5 // 2 if self.fused_attention else 2 * attention)
        if recompute == "full":
            return backward + linear + attention
        return backward + (attention if recompute == "selective" and not self.fused_attention else 0)

    def model_flops(self, batch: int, sequence: int) -> int:
        """Operations that a step needs without recomputation: three times the forward. The M of MFU."""
        return 3 * (self.layers * self.layer_forward_flops(batch, sequence) + self.head_flops(batch, sequence))

    def hardware_flops(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Operations that a step runs, with what is computed anew. The H of HFU."""
        forward = self.layer_forward_flops(batch, sequence)
        backward = self.layer_backward_flops(batch, sequence, recompute)
        return self.layers * (forward + backward) + 3 * self.head_flops(batch, sequence)

    def activation_bytes(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Bytes a layer keeps from forward to backward in 16 bit, over all tensor-parallel ranks together.

        Divided by their number with sequence parallelism. GPT: 34 sbh + 5 as²b, of which selective recomputation
        keeps the first term and full recomputation the layer's input, 2 sbh (arXiv 2205.05198, table 2). Gated, with
        fused attention: (12 h + 4 h kv/heads + 8 ffn) per token, as the CrossPipe authors' simulator counts
        (``C-TC/Megatron-LM``, branch crossdc); a fused SwiGLU keeps 6 ffn. Of experts the inner sizes count as often
        as a token goes to one, and their inputs once more (2 h each).
        """
        tokens = batch * sequence
        if recompute == "full":
            return 2 * tokens * self.hidden
        often = self.experts.top if self.experts else 1
        inner, around = often * self.ffn, 2 * often * self.hidden if self.experts else 0
        if self.gated:
            linear = tokens * (12 * self.hidden + 4 * self.kv_width + 8 * inner + around)
        else:
            linear = tokens * (14 * self.hidden + 4 * self.kv_width + 4 * inner + around)
        kept = recompute == "none" and not self.fused_attention
        return linear + (5 * self.heads * sequence * tokens if kept else 0)

    def whole_bytes(self, batch: int, sequence: int, recompute: Recompute) -> int:
        """Of ``activation_bytes``, what every tensor-parallel rank keeps whole without sequence parallelism.

        Inputs of norms and of what follows them, dropout masks: 10 sbh (equation 2); gated: no masks, 8 sbh.
        """
        tokens = batch * sequence
        if recompute == "full":
            return 2 * tokens * self.hidden
        return (8 if self.gated else 10) * tokens * self.hidden


LLAMA_2_13B = Transformer(
    name="Llama-2 13B", layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824, vocabulary=32000, gated=True,
    fused_attention=True,
)  # fmt: skip
"""Touvron et al., arXiv 2307.09288; sizes as in the released configuration."""

LLAMA_2_70B = Transformer(
    name="Llama-2 70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocabulary=32000, gated=True,
    fused_attention=True,
)  # fmt: skip
"""The same; grouped keys and values."""
