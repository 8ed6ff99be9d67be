"""What overlap inside layers changes of a model's layers, from a device's curve and the tier of tensor parallelism.

Under tensor parallelism each matrix product stands beside a collective: forward, an all-gather feeds the first product
of attention and of the MLP, and their last ones feed a reduce-scatter; backward, gradients come the other way. Without
sequence parallelism last products feed all-reduces, and in the backward those for the gradients of first ones' inputs.
Each pair is simulated by the rules of ``tracetool.overlap``, as it is and in a way to overlap; layers take so much more
or less. Products take what the device's curve says, whole or in parts, collectives and sends what the tier says, and
they hold as many SMs as the tier's kernels have blocks. Hosts take no time. Of experts products have other rows than
their collectives: they stay as they are, as all does that cannot run so.

An estimate: rules and ratios were seen on H100 and H200, and no step was measured whose pairs came from shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import BadQuery, ScenarioError
from tracetool.model.pipeline import FUSED, NO_OVERLAP
from tracetool.overlap.answer import ASYNC_TP, IN_A_ROW, parse_ways, variant_of
from tracetool.overlap.machine import Machine, RingCost
from tracetool.overlap.prediction import NO_HOST_NS, device_time_ns
from tracetool.overlap.products import ProductRate, ProductShape, ProductTime, Tile
from tracetool.overlap.simulation import Physics
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.training import CollectiveTransport, Training
    from tracetool.estimates.transformer import Transformer
    from tracetool.network.collectives import Kind

_KINDS: dict[str, Kind] = {"ag": "allgather", "rs": "reducescatter", "ar": "allreduce"}
_OPPOSITE = {"ag": "rs", "rs": "ag"}


def parse_way(text: str) -> str:
    """A way that layers can run in, as ``slice:4``.

    Raises:
        ScenarioError: If it is none, several, or no more than a bound.
    """
    try:
        ways = parse_ways(text)
    except BadQuery as error:
        raise ScenarioError(error.message, hint="ways are none, slice:N, p2p, p2p:N and async-tp") from error
    if len(ways) > 2:
        raise ScenarioError(f"{text!r} is several ways to overlap.", hint="name one")
    if FUSED in ways:
        raise ScenarioError(
            "fused layers are a bound: no kernel that holds product and communication was measured.",
            hint="take slice:N, p2p, p2p:N or async-tp",
        )
    return ways[-1]


def check_priced(device: Accelerator, blocks: int) -> None:
    """Refuse what nothing is known of.

    Args:
        device: The device.
        blocks: Thread blocks of a collective of tensor parallelism.

    Raises:
        ScenarioError: If the device does not tell what parts of a product take, or nothing how many SMs are held.
    """
    if not device.processors:
        raise ScenarioError(
            f"what parts of a product take on {device.name} is not known: its processors are not said.",
            hint="give device.processors (and tile, tile_overhead) in the model's file",
        )
    if not blocks:
        raise ScenarioError(
            "how many SMs collectives of tensor parallelism hold is not known.",
            hint="give collective_blocks of the network's tiers: blocks of NCCL's kernels in a trace "
            "(24 over NVLink of H100 and H200, 4 through host memory)",
        )


class Widths(NamedTuple):
    """Columns, or summed rows, that a tensor-parallel rank has of the four products of a layer.

    Attributes:
        into_attention: Queries, keys and values.
        out_of_attention: Of the product behind attention.
        into_mlp: Of the first product of the MLP; 0 of experts, as next.
        out_of_mlp: Of its last one.
    """

    into_attention: int
    out_of_attention: int
    into_mlp: int
    out_of_mlp: int


def widths(model: Transformer, tensor: int) -> Widths:
    """Those of a model.

    Args:
        model: The model.
        tensor: Tensor-parallel ranks.
    """
    into_mlp = (2 if model.gated else 1) * model.ffn // tensor
    mlp = (0, 0) if model.experts else (into_mlp, model.ffn // tensor)
    return Widths((model.hidden + 2 * model.kv_width) // tensor, model.hidden // tensor, *mlp)


class OverlapChange(NamedTuple):
    """How much longer the passes of a layer take."""

    forward_ns: float
    backward_ns: float


@dataclass(frozen=True, slots=True)
class _CurveProducts(ProductRate):
    """Products on a device's curve of efficiency."""

    device: Accelerator | None = None
    efficiency_ratio: float = 1.0

    def time(self, shape: ProductShape, *, alone: bool = False) -> ProductTime:  # noqa: ARG002 - nothing was recorded
        """As layers have it, without what is between kernels: the rules of the simulation count that."""
        device = self.device
        if device is None:
            raise ScenarioError("no device says what products take.")
        took = device.product_ns(self.efficiency_ratio, shape.rows, shape.columns, shape.depth)
        between = min(float(device.kernel_ns), Physics().follow_ns)
        high, wide = device.tile
        tiles = min(shape.tiles(Tile(wide, high)), shape.tiles(Tile(high, wide)), key=lambda n: ceil(n / self.sms))
        return ProductTime(took - between, tiles, self.sms)


@dataclass(frozen=True, slots=True)
class _PricedRing(RingCost):
    """Collectives and sends at what a network says they take.

    Attributes:
        whole_bytes: What each rank gives or gets of the whole collective.
        whole_ns: What that takes.
        slice_ns: What a slice of it takes.
        peer_ns: What a send of ``peer_bytes`` to one rank and a receive of as many from another one take.
        peer_bytes: Of a send.
    """

    whole_bytes: float = 0.0
    whole_ns: float = 0.0
    slice_ns: float = 0.0
    peer_ns: float = 0.0
    peer_bytes: float = 0.0

    def duration_ns(self, part_bytes: float) -> float:
        """Of the whole, or of a slice."""
        return self.whole_ns if part_bytes >= self.whole_bytes else self.slice_ns

    def exchange_ns(self, payload_bytes: float) -> float:
        """By the rules of sends, over links as fast as a message of this size finds them."""
        reached = self.peer_bytes / self.peer_ns if self.peer_ns else inf
        there = replace(self, hop_bytes_per_ns=reached, limit_bytes_per_ns=reached)
        return RingCost.exchange_ns(there, payload_bytes)


class CurveOverlap:
    """Prices a way to run the layers of a model.

    Args:
        model: The model.
        device: The device.
        training: How it is trained.
        transport: What carries collectives.

    Raises:
        ScenarioError: If the device or the tier does not tell what it takes, or nothing can run so.
    """

    def __init__(
        self, model: Transformer, device: Accelerator, training: Training, transport: CollectiveTransport
    ) -> None:
        self._model, self._device, self._training, self._transport = model, device, training, transport
        self._way = training.overlap
        self._tokens = training.batch * training.sequence // training.context
        self._blocks = transport.collective_blocks("tp")
        self._check()

    def _check(self) -> None:
        way, device = self._way, self._device
        if self._training.tensor == 1:
            raise ScenarioError(f"layers do not overlap by {way} without tensor parallelism.")
        check_priced(device, self._blocks)
        if way == ASYNC_TP and not RingCost(self._training.tensor, 0.0, 1.0, self._blocks).is_fast:
            raise ScenarioError(
                "copy engines were timed over NVLink alone, and tensor parallelism reaches further.",
                hint="keep it in a tier whose collective_blocks are those of NVLink, or take slice:N or p2p",
            )
        sides = {side for side, _ in (*self._pairs(), *self._pairs(backward=True))}
        whys = [self._refusal(side) for side in sides]
        if None not in whys:
            raise ScenarioError(f"layers do not overlap by {way}: {next(filter(None, whys))}.", hint="take slice:N")

    def _refusal(self, side: str) -> str | None:
        """Why pairs of a side stay as they are; what is beside collectives of one side has the same rows."""
        return refusal(variant_of(self._way, side), LayerShape(self._tokens, 1, 1), self._training.tensor)

    def _pairs(self, *, backward: bool = False) -> Iterator[tuple[str, int]]:
        """Collectives of a pass by side, each with the width of the product beside it."""
        into_attention, out_of_attention, into_mlp, out_of_mlp = widths(self._model, self._training.tensor)
        if self._training.sequence_parallel:
            forward = (("ag", into_attention), ("rs", out_of_attention), ("ag", into_mlp), ("rs", out_of_mlp))
            every = [(_OPPOSITE[side], width) for side, width in forward] if backward else list(forward)
        else:
            every = [
                ("ar", width) for width in ((into_attention, into_mlp) if backward else (out_of_attention, out_of_mlp))
            ]
        yield from ((side, width) for side, width in every if width)

    def change(self) -> OverlapChange:
        """What a layer takes more; less where it is negative."""
        return OverlapChange(
            *(sum(self.pair_ns(*pair) for pair in self._pairs(backward=back)) for back in (False, True))
        )

    def pair_ns(self, side: str, width: int) -> float:
        """What a pair takes more.

        Args:
            side: Its collective: ag (all-gather), rs (reduce-scatter) or ar (all-reduce).
            width: Of its product.
        """
        if self._refusal(side) is not None:
            return 0.0
        shape = LayerShape(self._tokens, self._model.hidden, width)
        return _changed_ns(self._device, self._training.efficiency_ratio, self._way, side, shape, self._ring(side))

    def _ring(self, side: str) -> _PricedRing:
        training, transport, kind = self._training, self._transport, _KINDS[side]
        ranks, payload = training.tensor, ELEMENT_BYTES * self._tokens * self._model.hidden
        pieces = int(self._way.partition(":")[2] or 1)
        sent, part = payload // ranks // pieces, payload // ranks
        peer_ns = transport.exchange_ns("tp", sent)
        return _PricedRing(
            ranks=ranks, start_ns=0.0, hop_bytes_per_ns=inf, blocks=self._blocks,
            limit_bytes_per_ns=part / transport.exchange_ns("tp", part), whole_bytes=part,
            whole_ns=transport.collective_ns(kind, "tp", payload),
            slice_ns=transport.collective_ns(kind, "tp", payload // pieces), peer_ns=peer_ns, peer_bytes=sent,
        )  # fmt: skip


@lru_cache(maxsize=1 << 16)
def _changed_ns(
    device: Accelerator, efficiency_ratio: float, way: str, side: str, shape: LayerShape, ring: _PricedRing
) -> float:
    """What a pair takes more in a way than as it is: placements over alike tiers ask the same again."""
    products = _CurveProducts(device.processors, 0.0, device=device, efficiency_ratio=efficiency_ratio)
    memory = device.hbm_bandwidth_bytes_per_s / 1e9 or inf
    machine = Machine(
        products=products, gather=ring, scatter=ring, reduce=ring, call_ns=NO_HOST_NS, memory_bytes_per_ns=memory,
        call_recordings=0,
    )  # fmt: skip
    plain, other = (device_time_ns(variant_of(each, side), shape, machine, IN_A_ROW) for each in (NO_OVERLAP, way))
    return other - plain
