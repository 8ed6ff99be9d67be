"""What a layer and the head take on one device: matrix products, what moves through memory, and collectives.

Matrix products and attention are those of arXiv 2205.05198, section 4, on the curve of ``device``; each has two more in
the backward, for the gradients of inputs and of weights (appendix A). Bytes through memory are those that the fused
kernels of Megatron-LM read and write in 16 bit, dropout masks in a byte. Tensor parallelism has an all-gather and a
reduce-scatter around attention and around the MLP, in either direction, or an all-reduce in their place without
sequence parallelism (section 4.2.2); recomputation runs its part of the forward again. Context parallelism sends keys
and values round a ring, hidden by attention where that takes as long (Liu et al., arXiv 2310.01889). Experts have two
all-to-alls in either direction (Lepikhin et al., arXiv 2006.16668); tokens go to them evenly.

A backward that is split in two (Qi et al., arXiv 2401.10241) has the products for gradients of weights in its second
half. All else is in the first one: attention, which has no weights, norms, collectives, and what is computed anew,
which both halves need.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.estimates.layer_overlap import CurveOverlap
from tracetool.model.pipeline import NO_OVERLAP

if TYPE_CHECKING:
    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.timings import LayerTimings, Rows
    from tracetool.estimates.training import CollectiveTransport, Training
    from tracetool.estimates.transformer import Transformer

BYTES = 2
"""Of an entry of weights and activations."""
_PER_SCORE = (9, 11)
"""Bytes of attention's softmax and dropout, forward (2 + 2, 2 + 2 + 1) and backward (2 + 1 + 2, 2 + 2 + 2)."""
_PER_LOGIT = (18, 10)
"""Bytes of the loss, forward (a copy in 32 bit, its maximum, exponential and sum) and backward."""
_KERNELS = (6, 10)
"""Kernels of a layer that are no matrix products, forward and backward."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward and backward of a microbatch, in ns.

    Attributes:
        forward_ns: Forward.
        backward_ns: The whole backward, with what it computes anew.
        weight_ns: Of the backward, what makes gradients of weights and may run later.
    """

    forward_ns: float
    backward_ns: float
    weight_ns: float = 0.0

    def times(self, count: float) -> Passes:
        """So many of them, or so many times as long."""
        return Passes(count * self.forward_ns, count * self.backward_ns, count * self.weight_ns)

    def __add__(self, other: Passes) -> Passes:
        return Passes(
            self.forward_ns + other.forward_ns,
            self.backward_ns + other.backward_ns,
            self.weight_ns + other.weight_ns,
        )


class CurveCosts:
    """What the parts of a model take.

    Args:
        model: The model.
        device: The device.
        training: How it is trained.
        transport: What carries collectives.
    """

    def __init__(
        self, model: Transformer, device: Accelerator, training: Training, transport: CollectiveTransport
    ) -> None:
        self._model = model
        self._device = device
        self._training = training
        self._transport = transport
        self._tokens = training.batch * training.sequence // training.context

    def layer(self) -> Passes:
        """A layer, with what its backward computes anew."""
        attention, others, gathers = self._attention(), self._others(), self._tensor_collectives_ns()
        changed = self._overlap()
        forward = attention.forward_ns + others.forward_ns + gathers + changed.forward_ns
        backward = attention.backward_ns + others.backward_ns + gathers + changed.backward_ns
        if self._training.recompute == "full":
            backward += forward
        elif self._training.recompute == "selective" and not self._model.fused_attention:
            backward += attention.forward_ns
        return Passes(forward, backward, others.weight_ns)

    def _overlap(self) -> Passes:
        """What collectives beside products change; nothing of layers as they are."""
        if self._training.overlap == NO_OVERLAP:
            return Passes(0, 0)
        return Passes(*CurveOverlap(self._model, self._device, self._training, self._transport).change())

    def ahead(self) -> Passes:
        """The embedding: a look-up, next to nothing."""
        return Passes(0, 0)

    def head(self) -> Passes:
        """The head and the loss."""
        model, training = self._model, self._training
        entries = model.vocabulary // training.tensor
        product = self._products(self._tokens, entries, model.hidden)
        forward, backward = (self._device.memory_ns(self._tokens * entries * each) for each in _PER_LOGIT)
        return product + Passes(forward, backward)

    def _products(self, rows: int, columns: int, inner: int, count: int = 1) -> Passes:
        """A product and those of its gradients."""
        ratio, product_ns = self._training.efficiency_ratio, self._device.product_ns
        of_weights = product_ns(ratio, inner, columns, rows, count)
        return Passes(
            product_ns(ratio, rows, columns, inner, count),
            product_ns(ratio, rows, inner, columns, count) + of_weights,
            of_weights,
        )

    def _attention(self) -> Passes:
        """Scores, softmax and their product with the values: what selective recomputation runs again."""
        model, training, device = self._model, self._training, self._device
        heads = training.batch * model.heads // training.tensor
        rows, width = training.sequence // training.context, model.hidden // model.heads
        if model.fused_attention:
            flops = 4 * heads * rows * training.sequence * width
            compute = flops / (device.peak_flops * training.efficiency_ratio) * 1e9 + device.kernel_ns
            done = Passes(compute, 2.5 * compute)
        else:
            ratio = training.efficiency_ratio
            scores = heads * rows * training.sequence
            product = device.attention_ns(ratio, heads, rows, training.sequence, width)
            softmax = [device.memory_ns(scores * each) for each in _PER_SCORE]
            done = Passes(2 * product + softmax[0], 4 * product + softmax[1])
        return done + self._ring(done)

    def _ring(self, attention: Passes) -> Passes:
        """What context parallelism adds: keys and values that come in later than attention needs them."""
        context = self._training.context
        if context == 1:
            return Passes(0, 0)
        sent = BYTES * 2 * self._tokens * self._model.kv_width // self._training.tensor
        # As many bytes as an all-gather of all parts moves.
        around = self._transport.collective_ns("allgather", "cp", sent * context)
        hidden = (context - 1) / context
        return Passes(
            max(0.0, around - hidden * attention.forward_ns), max(0.0, 2 * around - hidden * attention.backward_ns)
        )

    def _others(self) -> Passes:
        """Matrix products, norms, dropout and activation functions."""
        model, tensor = self._model, self._training.tensor
        tokens, hidden = self._tokens, model.hidden
        wide = (2 if model.gated else 1) * model.ffn // tensor
        done = self._products(tokens, (hidden + 2 * model.kv_width) // tensor, hidden)
        done += self._products(tokens, hidden, hidden // tensor)
        if model.experts is None:
            routed, count, rows = tokens, 1, tokens
        else:
            routed = tokens * model.experts.top
            count = model.experts.count // self._training.expert
            rows = -(-routed // count)
        done += self._products(rows, wide, hidden, count)
        done += self._products(rows, hidden, model.ffn // tensor, count)
        return done + self._elementwise(routed) + self._routing(routed)

    def _elementwise(self, routed: int) -> Passes:
        """Two norms and two residual additions (with dropout, of GPT), and the activation function."""
        model, training = self._model, self._training
        between = self._tokens * model.hidden / (training.tensor if training.sequence_parallel else 1)
        inner = routed * model.ffn / training.tensor
        # Forward: read and write; residual and mask. Backward: gradient and input read, gradient written; added up.
        around, activation = ((20, 24), (6, 10)) if model.gated else ((22, 30), (4, 6))
        kernels = [count * self._device.kernel_ns for count in _KERNELS]
        forward, backward = (
            self._device.memory_ns(between * around[way] + inner * activation[way]) + kernels[way] for way in (0, 1)
        )
        return Passes(forward, backward)

    def _routing(self, routed: int) -> Passes:
        """To the experts and back."""
        if self._training.expert == 1:
            return Passes(0, 0)
        sent = BYTES * routed * self._model.hidden // self._training.tensor
        both = 2 * self._transport.collective_ns("alltoall", "ep", sent)
        return Passes(both, both)

    def _tensor_collectives_ns(self) -> int:
        if self._training.tensor == 1:
            return 0
        payload = BYTES * self._tokens * self._model.hidden
        if not self._training.sequence_parallel:
            return 2 * self._transport.collective_ns("allreduce", "tp", payload)
        gather = self._transport.collective_ns("allgather", "tp", payload)
        return 2 * (gather + self._transport.collective_ns("reducescatter", "tp", payload))


class TimedCosts:
    """What the parts of a model took one by one, in place of the curve; collectives of tensor parallelism are in it.

    Args:
        model: The model.
        training: How it is trained.
        timings: Of its layers.

    Raises:
        ScenarioError: If the file has none of this model, microbatch and number of ranks, or layers are to overlap.
    """

    def __init__(self, model: Transformer, training: Training, timings: LayerTimings) -> None:
        if training.overlap != NO_OVERLAP:
            raise ScenarioError(
                "layer timings hold collectives and products in one: what overlap changes is not known.",
                hint="take the device's curve",
            )
        self._rows = timings.of(model.name, training.tensor, training.batch)

    def ahead(self) -> Passes:
        """The embedding."""
        return self._passes(self._rows[:1])

    def layer(self) -> Passes:
        """A layer: the median of all."""
        return self._passes(self._rows[1:-1])

    def head(self) -> Passes:
        """The head."""
        return self._passes(self._rows[-1:])

    def update_ns(self) -> float:
        """The optimizer's step for a layer, or for the embedding or head."""
        return median(layer.update_s for layer in self._rows) * 1e9

    @staticmethod
    def _passes(rows: Rows) -> Passes:
        return Passes(median(row.forward_s for row in rows) * 1e9, median(row.backward_s for row in rows) * 1e9)
