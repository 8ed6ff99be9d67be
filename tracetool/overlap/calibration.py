"""From recordings of layers as they are to what is known of the machine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.overlap.machine import REDUCE_HOPS, Machine, RingCost
from tracetool.overlap.products import ProductRate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.overlap.products import ProductShape, Tile
    from tracetool.overlap.recording import CollectiveKind, LayerRecording, RecordedCollective

UNPROFILED_RATIO = 0.72
"""A call's time without the profiler over its time with it.

A collective's call leaves 14 events in a trace. Loops that the host bounds give 0.64 (two H200, 8192 x 4096 x 2752) to
0.8 (four H100).
"""
_START_NS = 12_000.0
"""Start of a ring's message where one size alone was recorded: 7 to 28 us on the recorded machines."""
_MEMORY_BYTES_PER_NS = {"A100": 2_039.0, "H100": 3_350.0, "H200": 4_800.0, "H20": 4_000.0, "B200": 8_000.0}
"""Bandwidth of memory by device, as vendors publish it (SXM)."""
_DEFAULT_MEMORY = 2_500.0


def calibrate(recordings: Sequence[LayerRecording], *, with_exchanges: bool = False) -> Machine:
    """What recordings tell of their machine.

    Args:
        recordings: Of layers as they are.
        with_exchanges: Whether sends and receives are those of a pipeline; what holds any is left out else, as a layer
            that overlaps already.

    Raises:
        ReconstructError: If they hold no product, no collective, or devices of several kinds.
    """
    used = [each for each in recordings if with_exchanges or not each.has_exchanges]
    products = [product for each in used for product in each.products if product.tile is not None]
    collectives = [one for each in used for one in each.collectives]
    calls = [each.call_ns for each in used if each.call_ns is not None]
    sms = {each.sms for each in used if each.sms is not None}
    if not products or not collectives or not calls:
        hidden = "; ".join(dict.fromkeys(each.hidden for each in recordings if each.hidden))
        raise ReconstructError(
            f"no layer with a collective and a matrix product was recorded{hidden and f' ({hidden})'}.",
            hint="record calls of an all-gather and its product, and of a product and its reduce-scatter, with shapes "
            "(record_shapes=True)",
        )
    if len(sms) != 1:
        raise ReconstructError("the recordings are of devices of several kinds, or do not tell which.")
    return Machine(
        products=_rate(used, sms.pop()),
        gather=_ring(collectives, "gather"),
        scatter=_ring(collectives, "scatter"),
        reduce=_ring(collectives, "reduce"),
        call_ns=fmean(calls) * UNPROFILED_RATIO,
        memory_bytes_per_ns=next(
            (rate for name, rate in _MEMORY_BYTES_PER_NS.items() if name in used[0].device), _DEFAULT_MEMORY
        ),
        call_recordings=len(calls),
    )


def _rate(recordings: Sequence[LayerRecording], sms: int) -> ProductRate:
    """Time of an element by tile; a recording without a collective is of products alone, whose inputs may be empty."""
    blank = ProductRate(sms, 0.0)
    by_tile: dict[Tile, list[float]] = defaultdict(list)
    beside: dict[ProductShape, list[float]] = defaultdict(list)
    alone: dict[ProductShape, list[float]] = defaultdict(list)
    known: dict[ProductShape, Tile] = {}
    for recording in recordings:
        for product in recording.products:
            if product.tile is None:
                continue
            known[product.shape] = product.tile
            (beside if recording.collectives else alone)[product.shape].append(product.duration_ns)
            if recording.collectives:
                elements = product.shape.wave_elements(product.tile, sms) * product.shape.depth
                by_tile[product.tile].append(1e3 * product.duration_ns / elements)
    every = [each for times in by_tile.values() for each in times]
    return replace(
        blank,
        picoseconds=median(every),
        by_tile={tile: median(times) for tile, times in by_tile.items()},
        known=known,
        recorded_ns={shape: fmean(times) for shape, times in beside.items()},
        alone_ns={shape: fmean(times) for shape, times in alone.items()},
    )


def _ring(collectives: Sequence[RecordedCollective], kind: CollectiveKind) -> RingCost:
    """A ring from all sizes of its kind; of the others, where none was recorded.

    An all-reduce is a reduce-scatter and an all-gather: it passes every hop twice.
    """
    own = [one for one in collectives if one.kind == kind]
    own = own or [_as_kind(one, kind) for one in collectives]
    ranks = {one.ranks for one in own}
    if len(ranks) != 1:
        raise ReconstructError("the recordings are of groups of several sizes.", hint="name those of one size")
    size = ranks.pop()
    times: dict[int, list[float]] = defaultdict(list)
    for one in own:
        times[one.part_bytes].append(one.duration_ns)
    least, most = min(times), max(times)
    first, last = median(times[least]), median(times[most])
    slope = (last - first) / (most - least) if most > least else 0.0
    start = first - slope * least
    if slope <= 0 or start < 0:
        start = min(_START_NS, first / 2)
        slope = (last - start) / most
    return RingCost(size, start, (size - 1) / slope, max(one.blocks for one in own))


def _as_kind(one: RecordedCollective, kind: CollectiveKind) -> RecordedCollective:
    """A collective of another kind in its place, by the hops that bytes pass."""
    hops = {"gather": 1, "scatter": 1, "reduce": REDUCE_HOPS}
    return replace(one, kind=kind, duration_ns=one.duration_ns * hops[kind] / hops[one.kind])
