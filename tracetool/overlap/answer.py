"""Whether overlap pays for recorded layers: every way on each side of a layer, and the fastest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.errors import BadQuery, ReconstructError
from tracetool.model.notice import unasked
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.overlap.calibration import calibrate
from tracetool.overlap.losses import losses
from tracetool.overlap.measured import Timing
from tracetool.overlap.prediction import BOUND, CallTime, SeenError, call_time, overlap_error
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.notice import Progress
    from tracetool.overlap.losses import Loss
    from tracetool.overlap.machine import Machine
    from tracetool.overlap.recording import LayerRecording

ASYNC_TP = "async-tp"
IN_A_ROW = Timing(calls=8)
"""Layers follow each other: what a host needs before the first one counts an eighth."""
WAYS = (NO_OVERLAP, "slice:2", "slice:4", "slice:8", "p2p", "p2p:2", ASYNC_TP)
"""Ways that are tried unless others are named."""
_WAY = re.compile(r"(?P<way>none|slice|p2p|async-tp|fused)(?::(?P<count>[1-9]\d?))?$")
_VARIANTS = {"none": "coll", "slice": "sliced", "p2p": "p2p", "async-tp": "async_tp", "fused": "fused"}
_UNCOUNTED = {"none", "async-tp", "fused"}
_PEAK_FLOPS_PER_NS = {"A100": 312_000.0, "H100": 989_000.0, "H200": 989_000.0, "H20": 148_000.0, "B200": 2_250_000.0}
"""Dense 16 bit peak by device, as vendors publish it (SXM)."""


def parse_ways(text: str) -> tuple[str, ...]:
    """The ways of a list such as ``none,slice:4,p2p``; none is always among them, first.

    Raises:
        BadQuery: If one is no way.
    """
    ways = [each.strip() for each in text.split(",")]
    for way in ways:
        match = _WAY.match(way)
        if match is None or (match["count"] and match["way"] in _UNCOUNTED) or way in {"slice", "slice:1"}:
            raise BadQuery(
                f"{way!r} is no way to overlap.",
                hint="ways are none, slice:N, p2p, p2p:N, async-tp and fused, as in slice:4",
            )
    return (NO_OVERLAP, *dict.fromkeys(way for way in ways if way != NO_OVERLAP))


def variant_of(way: str, side: str) -> str:
    """The variant that a way is on a side of a layer."""
    name, _, count = way.partition(":")
    return f"{side}_{_VARIANTS[name]}{count}"


@dataclass(frozen=True, slots=True)
class WayTime:
    """One way on one side of a layer.

    Attributes:
        way: The way.
        time: What a call takes.
        exposed_ns: What it takes beyond the product alone.
        error: How far such times were off.
        device_error: The same if hosts took no time.
        mfu_ratio: Model FLOPS utilisation: operations of the product over what the device could do meanwhile; None of
            a device whose peak is not known.
    """

    way: str
    time: CallTime
    exposed_ns: float
    error: SeenError
    device_error: SeenError
    mfu_ratio: float | None

    @property
    def is_bound(self) -> bool:
        """Whether nothing is faster, and nothing known to be as fast."""
        return self.error is BOUND

    @property
    def error_ratio(self) -> float | None:
        """How far the time may be off; None of a bound."""
        return None if self.is_bound else self.error.time_ratio


@dataclass(frozen=True, slots=True)
class LayerSide:
    """One side of a layer: an all-gather that a product eats (ag), or a reduce-scatter that one feeds (rs).

    Attributes:
        shape: The layer.
        side: ag or rs.
        ranks: Of the group.
        ways: As it is (none) first.
        losses: What is in the way of the fastest way that overlaps.
        over: The same over links of other bandwidths (bytes per second), without async-tp: copy engines reach no
            further than the recorded link.
    """

    shape: LayerShape
    side: str
    ranks: int
    ways: tuple[WayTime, ...]
    losses: tuple[Loss, ...] = ()
    over: tuple[tuple[int, LayerSide], ...] = ()

    @property
    def tried(self) -> tuple[WayTime, ...]:
        """Ways that overlap, without bounds; bounds where there is nothing else."""
        return tuple(way for way in self.ways[1:] if not way.is_bound) or self.ways[1:]

    @property
    def best(self) -> WayTime:
        """The fastest way that is no bound."""
        return min((way for way in self.ways if not way.is_bound), key=lambda way: way.time.call_ns)

    @property
    def next_best(self) -> WayTime | None:
        """The fastest way that overlaps, of those that pay for sure if some do; None if none was asked for."""
        sure = [way for way in self.tried if self._is_sure(way)]
        return min(sure or self.tried, key=lambda way: way.time.call_ns, default=None)

    def gain_ratio(self, way: WayTime) -> float:
        """What a way takes less than the layer as it is, over that."""
        return 1 - way.time.call_ns / self.ways[0].time.call_ns

    def _is_sure(self, way: WayTime) -> bool:
        return not way.is_bound and self.gain_ratio(way) > self.gain_error_ratio(way)

    def gain_error_ratio(self, way: WayTime) -> float:
        """How far the gain may be off: the longer a way takes beside the layer as it is, the further."""
        return way.error.change_ratio * way.time.call_ns / self.ways[0].time.call_ns

    def most_gain_ratio(self, way: WayTime) -> float:
        """What a way may gain at most: no host makes it shorter than what the device takes."""
        by_device = self.device_gain_ratio(way) + self.device_gain_error_ratio(way)
        return min(self.gain_ratio(way) + self.gain_error_ratio(way), by_device)

    def device_gain_ratio(self, way: WayTime) -> float:
        """The gain if hosts took no time."""
        return 1 - way.time.device_ns / self.ways[0].time.device_ns

    def device_gain_error_ratio(self, way: WayTime) -> float:
        """How far that may be off."""
        return way.device_error.change_ratio * way.time.device_ns / self.ways[0].time.device_ns

    @property
    def pays_without_host(self) -> WayTime | None:
        """The fastest way if hosts took no time, where it is faster than the layer as it is by more than its error."""
        sure = [
            way
            for way in self.tried
            if not way.is_bound and self.device_gain_ratio(way) > self.device_gain_error_ratio(way)
        ]
        return min(sure, key=lambda way: way.time.device_ns, default=None)

    @property
    def pays(self) -> bool | None:
        """Whether some way is faster by more than its error; None if the error leaves that open for one."""
        if any(map(self._is_sure, self.tried)):
            return True
        return None if any(self.most_gain_ratio(way) >= 0 for way in self.tried) else False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A recording that was not used, or a way that was not tried.

    Attributes:
        name: The recording's path, or the way.
        reason: Why not.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class OverlapAnswer:
    """Whether overlap pays for recorded layers.

    Attributes:
        device: Name of the device.
        machine: What is known of it.
        sides: Of each layer.
        left: Recordings that were not used.
        untried: Ways that were asked for and not tried.
    """

    device: str
    machine: Machine
    sides: tuple[LayerSide, ...]
    left: tuple[LeftOut, ...]
    untried: tuple[LeftOut, ...]


_OVERLAPS = "sends and receives, or products beside collectives: it overlaps already"
_HOLDS_NONE = "no collective and no product of a known kernel"
_NO_ENGINES = "the collectives did not run over NVLink, and copy engines were timed over that alone"


def answer_for(
    recordings: Sequence[LayerRecording],
    ways: Sequence[str] = WAYS,
    *,
    bandwidths: Sequence[int] = (),
    progress: Progress | None = None,
) -> OverlapAnswer:
    """Evaluate ways for every layer that was recorded as it is.

    Args:
        recordings: Of layers.
        ways: What to try; none first.
        bandwidths: Of other links between the ranks, in bytes per second, to try the same over.
        progress: Told how many sides of layers there are, over all links, and how many are evaluated.

    Raises:
        ReconstructError: If no product stands beside a collective.
    """
    machine = calibrate(recordings)
    layer_sides = dict.fromkeys(side for each in recordings if not each.has_exchanges for side in _sides_of(each))
    if not layer_sides:
        hidden = "; ".join(dict.fromkeys(each.hidden for each in recordings if each.hidden))
        raise ReconstructError(
            f"no matrix product stands beside a collective of its bytes{hidden and f' ({hidden})'}.",
            hint="record layers without CUDA graphs, compiled or fused kernels, with record_shapes=True",
        )
    device, progress = recordings[0].device, progress or unasked()
    progress.start(len(layer_sides) * (1 + len(bandwidths)))

    def evaluated(shape: LayerShape, side: str, of: Machine, tried: Sequence[str]) -> LayerSide:
        progress.advance(1)
        ranks = of.gather.ranks
        run = [way for way in tried if refusal(variant_of(way, side), shape, ranks) is None]
        return LayerSide(shape, side, ranks, tuple(_way(way, side, shape, of, device) for way in run))

    linked = [way for way in ways if way != ASYNC_TP]
    here = ways if machine.gather.is_fast else linked
    refused = {
        (way, why_not): None
        for way in here
        for shape, side in layer_sides
        if (why_not := refusal(variant_of(way, side), shape, machine.gather.ranks)) is not None
    }
    sides = tuple(
        replace(
            _with_losses(evaluated(shape, side, machine, here), machine),
            over=tuple((each, evaluated(shape, side, machine.over(each / 1e9), linked)) for each in bandwidths),
        )
        for shape, side in layer_sides
    )
    left = tuple(LeftOut(each.name, why) for each in recordings if (why := _why_left(each)) is not None)
    untried = (*(LeftOut(way, _NO_ENGINES) for way in ways if way not in here), *(LeftOut(*each) for each in refused))
    return OverlapAnswer(device, machine, sides, left, untried)


def _with_losses(side: LayerSide, machine: Machine) -> LayerSide:
    """A side with what is in the way of its fastest overlap, where that is no bound."""
    way = side.next_best
    if way is None or way.is_bound:
        return side
    return replace(side, losses=losses(variant_of(way.way, side.side), side.shape, machine, IN_A_ROW))


def _why_left(recording: LayerRecording) -> str | None:
    """Why a recording tells nothing, or what of it tells nothing; None if all of it was used."""
    if recording.has_exchanges:
        return _OVERLAPS
    if not (recording.collectives or recording.products):
        return recording.hidden or _HOLDS_NONE
    return f"what tells no product was left alone: {recording.hidden}" if recording.hidden else None


def _sides_of(recording: LayerRecording) -> list[tuple[LayerShape, str]]:
    """Sides of layers: products whose input an all-gather gives, or whose result a reduce-scatter takes."""
    sides = []
    for collective in recording.collectives:
        whole = collective.part_bytes * collective.ranks
        for product in recording.products:
            shape = product.shape
            gathers = collective.kind == "gather"
            width, other = (shape.depth, shape.columns) if gathers else (shape.columns, shape.depth)
            if shape.rows * width * ELEMENT_BYTES == whole and collective.kind != "reduce":
                sides.append((LayerShape(shape.rows, width, other), "ag" if gathers else "rs"))
    return sides


def _way(way: str, side: str, shape: LayerShape, machine: Machine, device: str) -> WayTime:
    variant = variant_of(way, side)
    time = call_time(variant, shape, machine, IN_A_ROW)
    product = shape.gathered(shape.tokens) if side == "ag" else shape.scattered(shape.tokens)
    peak = next((peak for name, peak in _PEAK_FLOPS_PER_NS.items() if name in device), None)
    return WayTime(
        way,
        time,
        time.call_ns - machine.products.time(product).alone_ns,
        overlap_error(variant, shape, machine, host_bound=time.is_host_bound),
        overlap_error(variant, shape, machine, host_bound=False),
        None if peak is None else product.flops / time.call_ns / peak,
    )
