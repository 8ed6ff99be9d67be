"""What ``tracetool sweep`` found, as JSON for scripts (``schemas/sweep.schema.json``), Parquet and CSV."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.reports import as_json
from tracetool.reports.advice import sentences
from tracetool.tables.fields import Head, SchemaId, WithFigures, as_struct, doc, fields_of
from tracetool.tables.results import KNEES, POINTS

if TYPE_CHECKING:
    from tracetool.reports import RunFacts
    from tracetool.sweeps import Best, Price, Sweep, SweepPoint


class SweepPointInfo(WithFigures, kw_only=True):
    """One schedule in one scenario; figures are null if it could not be replayed."""

    __annotations__ = fields_of(
        *("scenario", "schedule", "extra_forwards", "microbatches", "p2p", "bandwidth_bytes_per_s", "latency_ns"),
        *("hbm_bytes", "dcs", "step_ns", "step_ns_per_microbatch", "window_ns", "bubble_ratio", "peak_bytes"),
        *("needed_bytes", "feasible", "reason", "link_cost", "is_pareto", "seen_error_ratio", "evidence", "rests_on"),
        *("overlap", "tensor_bandwidth_bytes_per_s"),
        of=POINTS,
    )


_IN_SHORT = (
    *("schedule", "extra_forwards", "p2p", "step_ns", "change_ratio"),
    *("seen_error_ratio", "evidence", "rests_on", "feasible", "needed_bytes"),
)


class SweptScheduleInfo(WithFigures, kw_only=True):
    """One schedule of one scenario, in short."""

    __annotations__ = fields_of(*_IN_SHORT)


class SweptBestInfo(WithFigures, kw_only=True):
    """What to run in one scenario, by the same rule as advise and report; nulls if none fits."""

    __annotations__ = fields_of(
        *("scenario", "microbatches", "bandwidth_bytes_per_s", "latency_ns", "hbm_bytes", "dcs"),
        *_IN_SHORT,
        *("change_error_ratio", "overlap", "tensor_bandwidth_bytes_per_s"),
        null=("schedule", "p2p", "step_ns", "evidence"),
    )
    now: Annotated[SweptScheduleInfo | None, doc("The recorded order over the same links; null if not replayed.")]
    as_good: Annotated[list[SweptScheduleInfo], doc("As sure, with steps that differ by no more than the error.")]
    unproven: Annotated[
        list[SweptScheduleInfo], doc("Shorter, but predictions rest on less; the shortest of each schedule.")
    ]


class KneeInfo(WithFigures, kw_only=True):
    """Where a schedule stops gaining from its links; what else was held is beside it."""

    __annotations__ = fields_of(
        *("scenario", "schedule", "extra_forwards", "microbatches", "p2p", "hbm_bytes", "dcs", "at_latency_ns"),
        *("at_bandwidth_bytes_per_s", "bandwidth_bytes_per_s", "hidden_latency_ns", "hbm_bytes_per_hidden_ms"),
        *("remark", "overlap", "tensor_bandwidth_bytes_per_s"),
        of=KNEES,
    )


class SweptLayersInfo(WithFigures, kw_only=True):
    """What a way to overlap inside layers buys in one scenario."""

    __annotations__ = fields_of(
        *("scenario", "microbatches", "bandwidth_bytes_per_s", "latency_ns", "hbm_bytes", "dcs", "overlap"),
        *("tensor_bandwidth_bytes_per_s", "schedule", "extra_forwards", "p2p", "step_ns"),
    )
    plain_ns: Annotated[int, doc("Step of what to run with layers as they are.")]
    gain_ratio: Annotated[float, doc("How much shorter the step is, over plain_ns.")]
    gain_error_ratio: Annotated[float | None, doc("How far off that may be; null if that is not known.")]
    is_bound: Annotated[bool, doc("Whether nothing like it was measured: the step is the least that it could take.")]
    pays: Annotated[bool | None, doc("Whether it is shorter by more than its error; null if that is open.")]


class SweepInfo(Head, kw_only=True):
    """Result of tracetool sweep."""

    schema: SchemaId = "urn:tracetool:schema:1:sweep"
    run: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    price_per_gbit: Annotated[float | None, doc("Price of a link for each 10^9 bit/s; null if none was given.")]
    currency: Annotated[str | None, doc("In which currency, and for how long, as the user says it.")]
    headline: Annotated[
        str | None, doc("What to run in each named scenario, as a person would say it; null without names.")
    ]
    best: Annotated[list[SweptBestInfo], doc("What to run in each scenario, in the order of the grid.")]
    points: Annotated[list[SweepPointInfo], doc("In the order of the grid.")]
    knees: Annotated[list[KneeInfo], doc("One per schedule, memory limit and latency; empty where no link was swept.")]
    layers: Annotated[list[SweptLayersInfo], doc("Of ways to overlap inside layers; empty where none was swept.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]


def sweep_info(swept: Sweep, facts: RunFacts, price: Price | None) -> SweepInfo:
    """The sweep as the structs of the schema."""
    return as_struct(
        SweepInfo,
        facts,
        run=facts.name,
        price_per_gbit=None if price is None else price.per_gbit,
        currency=None if price is None else price.currency,
        headline=None if swept.decision is None else " ".join(sentences(swept.decision)),
        best=[_best(each) for each in swept.best],
        points=[_point(point) for point in swept.points],
        knees=[as_struct(KneeInfo, knee) for knee in swept.knees],
        layers=[
            as_struct(SweptLayersInfo, each.point, each.gain, gain_error_ratio=each.gain.error_ratio)
            for each in swept.layers
        ],
        notes=list(map(str, swept.notes)),
    )


def _point(point: SweepPoint) -> SweepPointInfo:
    return as_struct(SweepPointInfo, point, evidence=None if point.step_ns is None else point.evidence)


def _best(best: Best) -> SweptBestInfo:
    def short(point: SweepPoint) -> SweptScheduleInfo:
        step_ns, now_ns = point.step_ns or 0, None if best.now is None else best.now.step_ns
        return as_struct(
            SweptScheduleInfo, point, step_ns=step_ns, change_ratio=None if not now_ns else step_ns / now_ns - 1
        )

    return as_struct(
        SweptBestInfo,
        best.among,
        best,
        **dict.fromkeys(SweptScheduleInfo.__struct_fields__) | {"rests_on": []}
        if best.point is None
        else msgspec.structs.asdict(short(best.point)),
        now=None if best.now is None else short(best.now),
        as_good=[short(point) for point in best.as_good],
        unproven=[short(point) for point in best.unproven],
    )


def render_json(swept: Sweep, facts: RunFacts, price: Price | None) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(sweep_info(swept, facts, price))


def render_parquet(swept: Sweep, *_unused: object) -> bytes:
    """The points as a Parquet file."""
    import pyarrow.parquet as pq

    file = BytesIO()
    pq.write_table(swept.table(), file, compression="zstd")
    return file.getvalue()


def render_csv(swept: Sweep, *_unused: object) -> bytes:
    """The points as CSV; lists are separated by spaces."""
    import polars as pl
    import polars.selectors as cs

    lists = cs.list().list.eval(pl.element().cast(pl.String)).list.join(" ")
    frame = pl.DataFrame(pl.from_arrow(swept.table()))
    return frame.with_columns(lists).write_csv().encode()
