"""What ``tracetool overlap`` prints: whether overlap pays for recorded layers, and predictions beside measured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.overlap.measured import MeasuredShape
from tracetool.reports import as_json
from tracetool.reports.answer.text import Note, table, wrapped
from tracetool.reports.checks.validation import InputInfo  # noqa: TC001 - msgspec reads it
from tracetool.tables.fields import Head, SchemaId, as_struct, doc
from tracetool.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from tracetool.overlap.answer import LayerSide, OverlapAnswer, WayTime
    from tracetool.overlap.prediction import OverlapComparison, PredictedVariant
    from tracetool.overlap.variants import LayerShape
    from tracetool.reports import CallFacts

_SIDES = {"ag": "all-gather, then product", "rs": "product, then reduce-scatter"}


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

    way: Annotated[str, doc("none (as it is), slice:N, p2p, p2p:N or async-tp.")]
    call_ms: Annotated[float, doc("Time of one call without a profiler.")]
    gain_ratio: Annotated[float, doc("What it takes less than the layer as it is, over that.")]
    error_ratio: Annotated[float, doc("How far time and gain may be off.")]
    exposed_ms: Annotated[float, doc("Time beyond the product alone.")]
    host_bound: Annotated[bool, doc("Whether the host's calls decide the time.")]
    device_ms: Annotated[float, doc("Time of one call if the host took none, as with CUDA graphs.")]
    mfu_ratio: Annotated[float | None, doc("Model FLOPS utilisation; null where the device's peak is not known.")]


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


def render_comparison_text(done: OverlapComparison, measured: InputInfo) -> bytes:
    """The answer, a table, and what is doubtful."""
    right = sum(winner.is_right for winner in done.winners)
    lines = [f"{right} of {len(done.winners)} fastest ways are right."] if done.winners else []
    if done.mape_ratio is not None and done.max_error_ratio is not None:
        lines.append(
            f"{len(done.errors)} of {len(done.rows)} rows of {measured.name} predicted: mean error "
            f"{done.mape_ratio:.1%}, largest {done.max_error_ratio:.1%}."
        )
    cells = [("layer", "over", "way", "ms", "predicted", "error"), *(_row_cells(row) for row in done.rows)]
    after: dict[str, int] = {}
    for row in done.rows:
        if row.reason is not None:
            after[row.reason] = after.get(row.reason, 0) + 1
    wrong = [
        f"  wrong: {_name(w.shape)} over {w.transport}, {w.side}: {w.predicted} is {w.lost_ratio:.1%} slower than "
        f"{w.measured}"
        for w in done.winners
        if not w.is_right
    ]
    doubts = [Note(f"{count} rows: {reason}") for reason, count in after.items()]
    return ("\n".join([*wrapped(lines), "", *table(cells), "", *wrapped([*wrong, *doubts])]).rstrip() + "\n").encode()


def _name(shape: LayerShape) -> str:
    return f"{shape.tokens} x {shape.hidden} x {shape.ffn_per_rank}"


def _row_cells(row: PredictedVariant) -> tuple[str, ...]:
    return (
        _name(row.measured.layer),
        row.measured.transport,
        row.measured.variant,
        f"{row.measured.measured_ms:.3f}",
        "-" if row.predicted_ms is None else f"{row.predicted_ms:.3f}",
        "" if row.error_ratio is None else f"{row.error_ratio:+.1%}",
    )


def render_answer_json(done: OverlapAnswer, traces: list[str], facts: CallFacts) -> bytes:
    """Whether overlap pays, as JSON."""
    layers = [
        as_struct(
            OverlapSide, side, shape=_shape(side.shape), group_size=side.ranks, best=side.best.way,
            ways=[
                as_struct(
                    OverlapWay, way, call_ms=way.time.call_ns / 1e6, gain_ratio=side.gain_ratio(way),
                    exposed_ms=way.exposed_ns / 1e6, host_bound=way.time.is_host_bound,
                    device_ms=way.time.device_ns / 1e6,
                )
                for way in side.ways
            ],
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
    return as_json(as_struct(OverlapInfo, done, facts, traces=traces, layers=layers, notes=list(done.left)))


def render_answer_text(done: OverlapAnswer) -> bytes:
    """The answer first, then every way of every layer."""
    lines = [
        line
        for side in done.sides
        for line in (*wrapped([_verdict(side)]), *table(_side_cells(side)), *wrapped(_over_lines(side)), "")
    ]
    if any(side.best.way == "async-tp" or side.pays_without_host for side in done.sides):
        lines += wrapped([Note("async-tp was compared with measured calls of groups of two ranks alone (H200)")])
    lines += wrapped([Note(text) for text in done.left])
    return ("\n".join(lines).rstrip() + "\n").encode()


def _verdict(side: LayerSide) -> str:
    head = f"{_name(side.shape)} on {side.ranks} ranks, {_SIDES[side.side]}:"
    found = side.next_best
    if found is None:
        return f"{head} {format_duration(side.ways[0].time.call_ns)} as it is."
    gain = side.gain_ratio(found)
    by = f"{abs(gain):.1%} (±{found.error_ratio:.0%}) {'shorter' if gain > 0 else 'longer'}"
    said = {True: "overlap pays", False: "overlap does not pay", None: "overlap changes less than its error"}[side.pays]
    told = f"{head} {said}. Best is {found.way}, {by} than as it is."
    free = side.pays_without_host
    if free is None or side.pays:
        return told
    gain = 1 - free.time.device_ns / side.ways[0].time.device_ns
    return f"{told} If hosts took no time (CUDA graphs), {free.way} would be {gain:.1%} shorter."


def _over_lines(side: LayerSide) -> list[str]:
    """Over links of other bandwidths: whether it pays there, and what."""
    said = {True: "pays", False: "does not pay", None: "changes less than its error"}
    return [
        f"    over {format_bandwidth(bandwidth)}: {format_duration(there.ways[0].time.call_ns)} as it is; overlap "
        f"{said[there.pays]}, {found.way} {there.gain_ratio(found):+.1%} (±{found.error_ratio:.0%})"
        for bandwidth, there in side.over
        if (found := there.next_best) is not None
    ]


def _side_cells(side: LayerSide) -> list[tuple[str, ...]]:
    return [
        ("", "call", "gain", "±", "device alone", "exposed", "MFU", ""),
        *(_way_cells(side, way) for way in side.ways),
    ]


def _way_cells(side: LayerSide, way: WayTime) -> tuple[str, ...]:
    return (
        f"  {way.way}",
        format_duration(way.time.call_ns),
        "" if way is side.ways[0] else f"{side.gain_ratio(way):+.1%}",
        f"{way.error_ratio:.0%}",
        format_duration(way.time.device_ns),
        format_duration(max(0.0, way.exposed_ns)),
        "-" if way.mfu_ratio is None else f"{way.mfu_ratio:.0%}",
        "host-bound" if way.time.is_host_bound else "",
    )
