"""What ``tracetool overlap --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.overlap.losses import LossCause
from tracetool.overlap.measured import MeasuredShape
from tracetool.reports import as_json
from tracetool.reports.checks.validation import InputInfo  # noqa: TC001 - msgspec reads it
from tracetool.tables.fields import Head, SchemaId, as_struct, doc

if TYPE_CHECKING:
    from tracetool.overlap.answer import OverlapAnswer
    from tracetool.overlap.prediction import OverlapComparison
    from tracetool.overlap.variants import LayerShape
    from tracetool.reports import CallFacts


class OverlapRow(msgspec.Struct, kw_only=True):
    """A measured way to run a layer, and its prediction."""

    shape: Annotated[MeasuredShape, doc("The layer.")]
    group_size: Annotated[int, doc("Ranks of the group.")]
    transport: Annotated[str, doc("What the bytes went over.")]
    variant: Annotated[str, doc("The way.")]
    measured_ms: Annotated[float, doc("Measured time of a call.")]
    predicted_ms: Annotated[float | None, doc("Predicted time; null if it cannot be predicted.")]
    error_ratio: Annotated[float | None, doc("Predicted over measured time, minus one.")]
    host_bound: Annotated[bool | None, doc("Whether the host's calls decide the predicted time.")]
    reason: Annotated[str | None, doc("Why it cannot be predicted, or is doubtful.")]


class OverlapWinner(msgspec.Struct, kw_only=True):
    """The fastest way on one side of a layer."""

    shape: Annotated[MeasuredShape, doc("The layer.")]
    transport: Annotated[str, doc("What the bytes went over.")]
    side: Annotated[str, doc("ag: all-gather and product; rs: product and reduce-scatter.")]
    measured: Annotated[str, doc("The fastest way that was measured.")]
    predicted: Annotated[str, doc("The one that is predicted to be the fastest.")]
    measured_spread_ratio: Annotated[float, doc("How much longer the slowest measured way takes than the fastest.")]
    lost_ratio: Annotated[float, doc("How much longer the predicted one was measured to take than the fastest.")]
    right: Annotated[bool, doc("Whether no other way was measured to be more than 3 % faster.")]


class OverlapComparisonInfo(Head, kw_only=True):
    """Result of tracetool overlap --measured."""

    schema: SchemaId = "urn:tracetool:schema:1:overlap-comparison"
    traces: Annotated[list[str], doc("What predictions were made from.")]
    measured: Annotated[InputInfo, doc("The file of measured ways.")]
    rows: Annotated[list[OverlapRow], doc("One per row of the file, in its order.")]
    winners: Annotated[list[OverlapWinner], doc("Per layer, transport and side of which several ways were measured.")]
    mape_ratio: Annotated[float | None, doc("Mean absolute error; null if nothing is predicted.")]
    max_error_ratio: Annotated[float | None, doc("Largest absolute error.")]


class OverlapWay(msgspec.Struct, kw_only=True):
    """One way on one side of a layer."""

    way: Annotated[str, doc("none (as it is), slice:N, p2p, p2p:N, async-tp or fused.")]
    is_bound: Annotated[bool, doc("Whether no kernel like it was measured: the time is the least that one could take.")]
    call_ms: Annotated[float, doc("Time of one call without a profiler.")]
    gain_ratio: Annotated[float, doc("What it takes less than the layer as it is, over that.")]
    error_ratio: Annotated[float | None, doc("How far the time may be off; null of a bound.")]
    gain_error_ratio: Annotated[float | None, doc("How far the gain may be off; null of a bound.")]
    rests_on: Annotated[str, doc("Kind of way: of each, errors of measured ones were counted apart.")]
    exposed_ms: Annotated[float, doc("Time beyond the product alone.")]
    host_bound: Annotated[bool, doc("Whether the host's calls decide the time.")]
    device_ms: Annotated[float, doc("Time of one call if the host took none, as with CUDA graphs.")]
    mfu_ratio: Annotated[float | None, doc("Model FLOPS utilisation; null where the device's peak is not known.")]


class OverlapLoss(msgspec.Struct, kw_only=True):
    """What is in the way of a way to overlap."""

    cause: Annotated[str, doc(f"{', '.join(cause.name.lower() for cause in LossCause)}.")]
    lost_ms: Annotated[float, doc("How much shorter a call is without it alone; they do not add up.")]


class OverlapLink(msgspec.Struct, kw_only=True):
    """One side of a layer over a link of another bandwidth."""

    bandwidth_bytes_per_s: Annotated[int, doc("Bandwidth between two ranks, each way.")]
    call_ms: Annotated[float, doc("Time of one call as it is.")]
    pays: Annotated[bool | None, doc("Whether overlap pays by more than its error; null if that is open.")]
    best: Annotated[str, doc("The fastest way.")]
    gain_ratio: Annotated[float, doc("What it takes less than the layer as it is, over that.")]


class OverlapSide(msgspec.Struct, kw_only=True):
    """One side of a layer."""

    shape: Annotated[MeasuredShape, doc("The layer.")]
    side: Annotated[str, doc("ag: all-gather and product; rs: product and reduce-scatter.")]
    group_size: Annotated[int, doc("Ranks of the group.")]
    pays: Annotated[bool | None, doc("Whether overlap pays by more than its error; null if that is open.")]
    best: Annotated[str, doc("The fastest way.")]
    ways: Annotated[list[OverlapWay], doc("As it is first.")]
    losses: Annotated[list[OverlapLoss], doc("Of the fastest way that overlaps, what costs most first.")]
    over: Annotated[list[OverlapLink], doc("Over links of other bandwidths that were asked for.")]


class OverlapInfo(Head, kw_only=True):
    """Result of tracetool overlap."""

    schema: SchemaId = "urn:tracetool:schema:1:overlap"
    traces: Annotated[list[str], doc("What was read.")]
    device: Annotated[str, doc("Name of the device.")]
    layers: Annotated[list[OverlapSide], doc("Sides of the recorded layers.")]
    notes: Annotated[list[str], doc("What was left, and why.")]


def _shape(layer: LayerShape) -> MeasuredShape:
    return MeasuredShape(tokens=layer.tokens, hidden=layer.hidden, ffn_per_rank=layer.ffn_per_rank)


def render_comparison_json(done: OverlapComparison, traces: list[str], measured: InputInfo, facts: CallFacts) -> bytes:
    """Predictions beside measured ways as JSON."""
    rows = [
        as_struct(OverlapRow, row.measured, row, host_bound=None if row.time is None else row.time.is_host_bound)
        for row in done.rows
    ]
    winners = [
        as_struct(
            OverlapWinner, winner, shape=_shape(winner.shape), measured_spread_ratio=winner.lead_ratio,
            right=winner.is_right,
        )
        for winner in done.winners
    ]  # fmt: skip
    return as_json(
        as_struct(OverlapComparisonInfo, done, facts, traces=traces, measured=measured, rows=rows, winners=winners)
    )


def render_answer_json(done: OverlapAnswer, traces: list[str], facts: CallFacts) -> bytes:
    """Whether overlap pays, as JSON."""
    layers = [
        as_struct(
            OverlapSide, side, shape=_shape(side.shape), group_size=side.ranks, best=side.best.way,
            ways=[
                as_struct(
                    OverlapWay, way, call_ms=way.time.call_ns / 1e6, gain_ratio=side.gain_ratio(way),
                    gain_error_ratio=None if way.is_bound else side.gain_error_ratio(way), rests_on=way.error.kind,
                    exposed_ms=way.exposed_ns / 1e6, host_bound=way.time.is_host_bound,
                    device_ms=way.time.device_ns / 1e6,
                )
                for way in side.ways
            ],
            losses=[OverlapLoss(cause=loss.cause.name.lower(), lost_ms=loss.lost_ns / 1e6) for loss in side.losses],
            over=[
                as_struct(
                    OverlapLink, there, bandwidth_bytes_per_s=bandwidth, call_ms=there.ways[0].time.call_ns / 1e6,
                    best=there.best.way, gain_ratio=there.gain_ratio(there.best),
                )
                for bandwidth, there in side.over
            ],
        )
        for side in done.sides
    ]  # fmt: skip
    return as_json(as_struct(OverlapInfo, done, facts, traces=traces, layers=layers, notes=left_texts(done)))


def left_texts(done: OverlapAnswer) -> list[str]:
    """What was not tried, and what was left as it was."""
    return [*untried(done), *(f"{each.name}: {each.reason}" for each in done.left)]


def untried(done: OverlapAnswer) -> list[str]:
    """Ways that cannot be run in some layer."""
    return [f"{each.name} left out: {each.reason}" for each in done.untried]
