"""What ``tracetool sweep`` found, as JSON for scripts (``schemas/sweep.schema.json``), Parquet and CSV."""

from __future__ import annotations

from dataclasses import asdict, fields
from io import BytesIO
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.reports import as_json
from tracetool.reports.advice import sentences
from tracetool.tables.fields import as_struct, doc
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from tracetool.reports import RunFacts
    from tracetool.sweeps import Best, Price, Sweep, SweepPoint

SCHEMA_ID = "urn:tracetool:schema:1:sweep"


class SweepPointInfo(msgspec.Struct, kw_only=True):
    """One schedule in one scenario."""

    scenario: Annotated[str | None, doc("Name of the scenario; null without a file of them.")]
    schedule: Annotated[str, doc("Name of the schedule.")]
    extra_forwards: Annotated[list[int] | None, doc("geopipe: warm-up forwards per pipeline rank beyond 1F1B's.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    p2p: Annotated[str, doc("How transfers were issued.")]
    bandwidth_bytes_per_s: Annotated[
        int | None, doc("Of every swept link; else of all links, null if they differ or none is.")
    ]
    latency_ns: Annotated[
        int | None, doc("One way, of every swept link; else of all links, null if they differ or none is.")
    ]
    hbm_bytes: Annotated[int | None, doc("Memory limit per rank; null for none.")]
    dcs: Annotated[list[str], doc("DC of each pipeline rank; empty for one DC.")]
    step_ns: Annotated[int | None, doc("Step; null if it could not be replayed.")]
    step_ns_per_microbatch: Annotated[float | None, doc("Step over microbatches, to compare at equal tokens.")]
    window_ns: Annotated[int | None, doc("Pipeline window; null if it could not be replayed.")]
    bubble_ratio: Annotated[float | None, doc("Idle share of the window; null if it could not be replayed.")]
    peak_bytes: Annotated[int | None, doc("Highest allocation of any rank; null if unknown.")]
    needed_bytes: Annotated[int | None, doc("With what ranks occupy beyond that: compared with the limit.")]
    feasible: Annotated[bool | None, doc("Whether it fits; null if memory is unknown or it was not replayed.")]
    reason: Annotated[str | None, doc("Why it does not fit or was not replayed; what limited it.")]
    link_cost: Annotated[float | None, doc("Price of its links in the currency; null without a price.")]
    is_pareto: Annotated[
        bool | None,
        doc("Whether no point of its DCs and latency is as good in link cost, memory and step and better in one."),
    ]
    seen_error_ratio: Annotated[
        float | None, doc("Largest step time error of such predictions on recorded runs; null if none was like it.")
    ]
    evidence: Annotated[
        str | None, doc("What the prediction rests on: recorded, measured or unproven; null if it was not replayed.")
    ]
    rests_on: Annotated[list[str], doc("Of an unproven one, what nothing recorded was like.")]


class SweptScheduleInfo(msgspec.Struct, kw_only=True):
    """One schedule of one scenario, in short."""

    schedule: Annotated[str, doc("Name of the schedule.")]
    extra_forwards: Annotated[list[int] | None, doc("geopipe: warm-up forwards per pipeline rank beyond 1F1B's.")]
    p2p: Annotated[str, doc("How transfers are issued.")]
    step_ns: Annotated[int, doc("Step.")]
    change_ratio: Annotated[float | None, doc("Its step over the recorded order's, minus one; null without that.")]
    seen_error_ratio: Annotated[
        float | None, doc("Largest step time error of such predictions on recorded runs; null if none was like it.")
    ]
    evidence: Annotated[str, doc("What the prediction rests on: recorded, measured or unproven, as advise says.")]
    rests_on: Annotated[list[str], doc("Of an unproven one, what nothing recorded was like.")]
    feasible: Annotated[bool | None, doc("Whether it fits; null if memory is unknown.")]
    needed_bytes: Annotated[int | None, doc("What the rank that needs most needs; null if unknown.")]


class SweptBestInfo(msgspec.Struct, kw_only=True):
    """What to run in one scenario, by the same rule as advise and report."""

    scenario: Annotated[str | None, doc("Name of the scenario; null without a file of them.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    bandwidth_bytes_per_s: Annotated[int | None, doc("Of the links, as points have it.")]
    latency_ns: Annotated[int | None, doc("One way, of the links, as points have it.")]
    hbm_bytes: Annotated[int | None, doc("Memory limit per rank; null for none.")]
    dcs: Annotated[list[str], doc("DC of each pipeline rank; empty for one DC.")]
    schedule: Annotated[str | None, doc("The schedule to run; null if none fits.")]
    extra_forwards: Annotated[list[int] | None, doc("geopipe: warm-up forwards per pipeline rank beyond 1F1B's.")]
    p2p: Annotated[str | None, doc("How its transfers are issued; null if none fits.")]
    step_ns: Annotated[int | None, doc("Its step; null if none fits.")]
    change_ratio: Annotated[float | None, doc("Its step over the recorded order's, minus one; null without either.")]
    seen_error_ratio: Annotated[
        float | None, doc("Largest step time error of such predictions on recorded runs; null if none was like it.")
    ]
    evidence: Annotated[str | None, doc("What the prediction rests on: recorded, measured or unproven.")]
    rests_on: Annotated[list[str], doc("Of an unproven one, what nothing recorded was like.")]
    feasible: Annotated[bool | None, doc("Whether it fits; null if memory is unknown or none fits.")]
    needed_bytes: Annotated[int | None, doc("What the rank that needs most needs; null if unknown.")]
    change_error_ratio: Annotated[
        float | None, doc("Error of that change, as far as recorded runs tell; null if none was like both.")
    ]
    now: Annotated[SweptScheduleInfo | None, doc("The recorded order over the same links; null if not replayed.")]
    as_good: Annotated[list[SweptScheduleInfo], doc("As sure, with steps that differ by no more than the error.")]
    unproven: Annotated[
        list[SweptScheduleInfo], doc("Shorter, but predictions rest on less; the shortest of each schedule.")
    ]


class KneeInfo(msgspec.Struct, kw_only=True):
    """Where a schedule stops gaining from its links; what else was held is beside it."""

    scenario: Annotated[str | None, doc("Name of the scenario; null without a file of them.")]
    schedule: Annotated[str, doc("Name of the schedule.")]
    extra_forwards: Annotated[list[int] | None, doc("geopipe: the warm-up asked for; null if chosen for every link.")]
    microbatches: Annotated[int | None, doc("Microbatches per step.")]
    p2p: Annotated[str | None, doc("How transfers were issued.")]
    hbm_bytes: Annotated[int | None, doc("Memory limit per rank; null for none.")]
    dcs: Annotated[list[str], doc("DC of each pipeline rank.")]
    at_latency_ns: Annotated[int | None, doc("One-way latency at which the bandwidth was sought.")]
    at_bandwidth_bytes_per_s: Annotated[
        int | None, doc("Bandwidth at which the latency was sought: so large that it costs no step anything.")
    ]
    bandwidth_bytes_per_s: Annotated[
        int | None, doc("From here on twice the bandwidth shortens the step by less than 1 %; null if none ever pays.")
    ]
    hidden_latency_ns: Annotated[
        int | None,
        doc(
            "Largest one-way latency at which the step is within 1 % of its floor, over links whose bandwidth costs "
            "nothing; null where links that stay as given keep it above that."
        ),
    ]
    hbm_bytes_per_hidden_ms: Annotated[
        int | None, doc("geopipe: memory of a rank per further hidden ms; null for others and where unknown.")
    ]
    remark: Annotated[str | None, doc("What is special about it, or why it is not known.")]


class SweepInfo(msgspec.Struct, kw_only=True):
    """Result of tracetool sweep."""

    schema: Annotated[str, doc("Identifier of this schema.")] = msgspec.field(name="$schema", default=SCHEMA_ID)
    schema_version: Annotated[str, doc("Version of the schema.")] = SCHEMA_VERSION
    tool_version: Annotated[str, doc("Version of tracetool.")]
    command: Annotated[str, doc("Command line that made it.")]
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
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]


def sweep_info(found: Sweep, facts: RunFacts, price: Price | None) -> SweepInfo:
    """The sweep as the structs of the schema."""
    return as_struct(
        SweepInfo,
        facts,
        run=facts.name,
        price_per_gbit=None if price is None else price.per_gbit,
        currency=None if price is None else price.currency,
        headline=None if found.decision is None else " ".join(sentences(found.decision)),
        best=[_best(each) for each in found.best],
        points=[_point(point) for point in found.points],
        knees=[msgspec.convert(asdict(knee), KneeInfo) for knee in found.knees],
        notes=list(map(str, found.notes)),
    )


_INNER = {"closer", "is_near_the_limit", "known_error", "order_digest"}


def _point(point: SweepPoint) -> SweepPointInfo:
    evidence = None if point.step_ns is None else point.evidence
    of_point = {f.name: getattr(point, f.name) for f in fields(point) if f.name not in _INNER}
    more = {
        "step_ns_per_microbatch": point.step_ns_per_microbatch,
        "seen_error_ratio": point.seen_error_ratio,
        "evidence": evidence,
    }
    return msgspec.convert(of_point | more, SweepPointInfo)


def _best(found: Best) -> SweptBestInfo:
    def short(point: SweepPoint) -> SweptScheduleInfo:
        step_ns, now_ns = point.step_ns or 0, None if found.now is None else found.now.step_ns
        return as_struct(
            SweptScheduleInfo, point, step_ns=step_ns, change_ratio=None if not now_ns else step_ns / now_ns - 1
        )

    return as_struct(
        SweptBestInfo,
        found.among,
        found,
        **dict.fromkeys(SweptScheduleInfo.__struct_fields__) | {"rests_on": []}
        if found.point is None
        else msgspec.structs.asdict(short(found.point)),
        now=None if found.now is None else short(found.now),
        as_good=[short(point) for point in found.as_good],
        unproven=[short(point) for point in found.unproven],
    )


def render_json(found: Sweep, facts: RunFacts, price: Price | None) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(sweep_info(found, facts, price))


def render_parquet(found: Sweep, *_unused: object) -> bytes:
    """The points as a Parquet file."""
    import pyarrow.parquet as pq

    file = BytesIO()
    pq.write_table(found.table(), file, compression="zstd")
    return file.getvalue()


def render_csv(found: Sweep, *_unused: object) -> bytes:
    """The points as CSV; lists are separated by spaces."""
    import polars as pl
    import polars.selectors as cs

    lists = cs.list().list.eval(pl.element().cast(pl.String)).list.join(" ")
    frame = pl.DataFrame(pl.from_arrow(found.table()))
    return frame.with_columns(lists).write_csv().encode()
