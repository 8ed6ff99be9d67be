"""Every table and every field of results, declared once: what tables, files and JSON have of them follows from here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from tracetool.tables import Column, Table, nullable, table
from tracetool.tables.metrics import METRICS, OF_STEP

if TYPE_CHECKING:
    from collections.abc import Collection

P2PMode = Literal["blocking", "grouped", "in-order", "per-edge", "posted-ahead"]
"""How transfers are issued, those that wait most first.

* ``blocking``: one by one in the compute's own order: no compute runs beside a transfer (DeepSpeed's pipeline engine).
* ``grouped``: what a rank sends and receives between a forward and a backward is one batch, for which compute waits.
* ``in-order``: one by one on one communicator: a receive that waits blocks what was posted after it.
* ``per-edge``: the same on a communicator for each pair of ranks and direction; messages still wait for their receives.
* ``posted-ahead``: as per-edge, every receive posted before its message is sent; only links serialise.
"""
P2P_MODES: tuple[P2PMode, ...] = get_args(P2PMode)
P2P_MODE_NAMES = f"{', '.join(P2P_MODES[:-1])} or {P2P_MODES[-1]}"
POSTED_AHEAD_NEEDS = "a runtime that posts each receive, into a buffer of its own, before its message is sent"
"""What would have to be built for ``posted-ahead``: no runtime that was recorded does it."""

FIELDS: dict[str, Column] = {name: metric.column for name, metric in METRICS.items()} | {
    column.name: column
    for column in (
        Column("schedule", "string", "Name of the schedule."),
        nullable("extra_forwards", "list<int32>", "Warm-up forwards per pipeline rank beyond 1F1B's; null if n/a."),
        Column("p2p", "string", f"How its transfers are issued: {P2P_MODE_NAMES}."),
        Column("microbatches", "int32", "Microbatches per step."),
        nullable("scenario", "string", "Name of the scenario; null without a file of them."),
        nullable("bandwidth_bytes_per_s", "int64", "Of every swept link; else of all, null if they differ or none is."),
        nullable("latency_ns", "int64", "One way, of every swept link; else of all, null if they differ or none is."),
        nullable("hbm_bytes", "int64", "Memory limit per rank; null for none."),
        Column("dcs", "list<string>", "DC of each pipeline rank; empty for one DC."),
        Column("overlap", "string", "How layers overlap collectives and products: none (as recorded), slice:4, ..."),
        nullable(
            "tensor_bandwidth_bytes_per_s", "int64",
            "Of the links between the ranks of a group inside layers; null as recorded.",
        ),
        Column("step_ns_per_microbatch", "float64", "Step over microbatches, to compare at equal tokens."),
        nullable("peak_bytes", "int64", "Highest allocation of any rank; null if unknown."),
        nullable(
            "needed_bytes", "int64",
            "What the rank that needs most needs, with what it occupies beyond its allocations; null if unknown.",
        ),
        nullable("needed_hbm_bytes", "int64", "Device memory needed, by each rank or at most; null if unknown."),
        nullable("feasible", "bool", "Whether it fits the memory limit; null if memory is unknown."),
        nullable("reason", "string", "Why it does not fit or was not replayed; what limited it."),
        nullable("link_cost", "float64", "Price of its links in the currency; null without a price."),
        nullable(
            "is_pareto", "bool",
            "Whether no point of its DCs and latency is as good in link cost, memory and step and better in one.",
        ),
        nullable(
            "seen_error_ratio", "float64",
            "Largest step time error of such predictions on recorded runs; null if none was like it.",
        ),
        nullable("change_ratio", "float64", "Its step over that of the order compared with, minus one; null without."),
        nullable("change_error_ratio", "float64", "Error of that change on recorded runs; null if none was like both."),
        nullable(
            "cross_dc_step_ns", "int64",
            "What cross-DC links add to the step: it minus the step with free ones; null if not replayed.",
        ),
        nullable("step_change_ratio", "float64", "step_ns over the baseline's, minus one."),
        nullable(
            "step_change_error_ratio", "float64",
            "Error of step_change_ratio, as pairs of recorded runs tell it; null if none was like both.",
        ),
        Column(
            "evidence", "string",
            "What the prediction rests on: recorded (such predictions were compared with recorded steps), measured "
            "(all costs are measured) or unproven.",
        ),
        Column("rests_on", "list<string>", "Of an unproven one, what nothing recorded was like."),
        nullable(
            "to_today_ratio", "float64",
            "Time per microbatch over that of the recorded step, minus one; null if nothing fits.",
        ),
        Column("binds", "string", "bandwidth, latency, hbm or compute: more of it would shorten the step most."),
        Column("saved_ns", "int64", "How much shorter the step is; negative where it is longer."),
        Column("saved_ratio", "float64", "The same as a share of the first offer's step."),
        Column("is_certain", "bool", "Whether the steps differ by more than the error of predictions."),
        nullable("fee_per_ms", "float64", "That for each millisecond; null if nothing is certain to be saved."),
        Column("steps_per_day", "float64", "How many steps more a day has, each with what its mark spans besides."),
        nullable("run_days", "float64", "How long the planned run of whole steps takes; null if none was told of."),
        nullable("run_fee", "float64", "What the links cost meanwhile; null if that is unknown."),
        nullable(
            "slowest_pipeline", "int64",
            "Number of the pipeline that sets the step; null where one is replayed by itself.",
        ),
        nullable(
            "slowest_rank", "int64",
            "Global rank, of it or of one as slow, whose kernels are slower than others of its stage; null if none is.",
        ),
        nullable("remark", "string", "Why this variant was chosen, or how its costs came about."),
    )
}  # fmt: skip
"""What results have, beside what metrics mean."""


def columns(*names: str, null: Collection[str] = ()) -> tuple[Column, ...]:
    """Fields of results as columns.

    Args:
        names: Theirs, in order.
        null: Those that may be unknown here.
    """
    return tuple(replace(FIELDS[name], nullable=FIELDS[name].nullable or name in null) for name in names)


OF_A_PREDICTION = (
    "cross_dc_bubble_ns", "cross_dc_step_ns", "seen_error_ratio", "step_change_ratio", "step_change_error_ratio",
    "slowest_pipeline", "slowest_rank",
)  # fmt: skip
"""What a Run with replayed Timelines keeps of each of them beside its figures, as one more metric each."""

_ROLE = Column("role", "string", "observed, baseline or result.")
_RANK = Column("rank", "int32", "Global rank.")
_CAUSE = Column("cause", "string", "Which.")

RESULTS = table(
    "results",
    "What was observed, the baseline and the schedules asked for: one row each.",
    _ROLE,
    *columns("schedule", "extra_forwards", "p2p", "microbatches", *OF_STEP, "cross_dc_bubble_ns",
             "cross_dc_step_ns", "peak_hbm_bytes",
             "needed_hbm_bytes", "feasible", "seen_error_ratio", "step_change_ratio", "step_change_error_ratio",
             "evidence", "slowest_pipeline", "slowest_rank", "remark",
             null=("cross_dc_bubble_ns", "peak_hbm_bytes", "evidence")),
)  # fmt: skip
RANKS = table(
    "ranks",
    "The ranks of every row of results.",
    _ROLE,
    *columns("schedule"),
    _RANK,
    Column("compute_ns", "int64", "Compute in the window."),
    nullable("peak_hbm_bytes", "int64", "Highest allocation; null if unknown."),
    nullable("needed_hbm_bytes", "int64", "The same and what is occupied beyond it; null if unknown."),
)
CAUSES = table(
    "causes",
    "Causes of idle time, the largest first.",
    _CAUSE,
    Column("idle_ns", "int64", "Idle time, mean over ranks."),
    Column("worst_rank", "int32", "Global rank that it costs most."),
    Column("removal", "string", "What was replayed without it, or why nothing was."),
    nullable("step_ns", "int64", "Step without it; null if nothing was replayed."),
    nullable("microbatches", "int32", "Microbatches of that step."),
)
CAUSE_RANKS = table(
    "cause_ranks",
    "The causes rank by rank.",
    _CAUSE,
    _RANK,
    Column("idle_ns", "int64", "Idle time of the rank."),
)
PATH = table(
    "path",
    "What the critical path was spent with: computes of a rank, or a cause of waiting; most first.",
    nullable("rank", "int32", "Global rank that computed."),
    nullable("cause", "string", "What else it was."),
    Column("duration_ns", "int64", "Time."),
)
PLANS = table(
    "plans",
    "All plans that were tried.",
    nullable("verdict", "string", "best, rival (as good), unproven (shorter, but less sure) or null."),
    *columns("schedule", "extra_forwards", "p2p", "microbatches", "evidence", "step_ns", "needed_hbm_bytes",
             "feasible", "seen_error_ratio"),
)  # fmt: skip
OFFERS = table(
    "offers",
    "Offers of links, the first one first: what to run over each, and what the others buy.",
    Column("name", "string", "Their figures."),
    nullable("fee", "string", "What they cost; null if that was not said."),
    *columns("schedule", "extra_forwards", "p2p", "microbatches", "step_ns", "seen_error_ratio", "needed_bytes",
             "to_today_ratio", "binds", "saved_ns", "saved_ratio", "is_certain", "fee_per_ms", "steps_per_day",
             "run_days", "run_fee",
             null=("schedule", "p2p", "step_ns", "binds", "saved_ns", "saved_ratio", "is_certain", "steps_per_day")),
)  # fmt: skip
GAINS = table(
    "gains",
    "What one more unit of each resource buys.",
    Column("resource", "string", "bandwidth, latency, hbm, compute or microbatches."),
    Column("unit", "string", "How much more of it."),
    *columns("schedule", "extra_forwards", "microbatches", "step_ns"),
    nullable("same_plan_ns", "int64", "Step of the plan that is best now; null if it does not fit then."),
    Column("gained_ns", "int64", "How much less time the work of a step takes than with the best plan now."),
    Column("gain_ratio", "float64", "gained_ns over the best plan's step_ns."),
)
LINES = table(
    "lines",
    "Base against new, value by value.",
    Column("metric", "string", "What it measures; the unit is in the name."),
    nullable("scope", "string", "Of which stage and kind, edge, rank or replayed schedule; null of the whole step."),
    Column("verdict", "string", "improved, unchanged, regressed or inconclusive."),
    nullable("base", "float64", "Median over the base's steps, of each step's mean if it has several; null if none."),
    nullable("new", "float64", "The same of the new side."),
    nullable("change_ratio", "float64", "New over base, minus one; null if the base is 0."),
    nullable("p", "float64", "Two-sided chance of the Mann-Whitney test; null if nothing was tested."),
    Column("base_count", "int32", "Values that the base's median is of."),
    Column("new_count", "int32", "Values that the new median is of."),
    nullable("why", "string", "Why the verdict is none, or how little it is."),
)
CHANGES = table(
    "changes",
    "The causes of a metric's change, the largest first; they sum to it.",
    Column("metric", "string", "Whose change."),
    Column("kind", "string", "rank, stage, link, tail, memory, order, everything or not replayed."),
    Column("name", "string", "Which one."),
    Column("value", "float64", "What it contributes, in the metric's unit; together they are the change."),
    Column("detail", "string", "What it was and is."),
)
CHECKS = table(
    "checks",
    "How the limits fared.",
    Column("limit", "string", "As it was written."),
    Column("outcome", "string", "held, exceeded or inconclusive."),
    Column("detail", "string", "What was found."),
)
POINTS = table(
    "points",
    "One schedule in one scenario of a sweep.",
    *columns("schedule", "extra_forwards", "microbatches", "p2p", "bandwidth_bytes_per_s", "latency_ns", "hbm_bytes",
             "dcs", "step_ns", "window_ns", "bubble_ratio", "peak_bytes", "feasible", "reason", "needed_bytes",
             "scenario", "link_cost", "is_pareto", "rests_on", "step_ns_per_microbatch", "seen_error_ratio", "evidence",
             "overlap", "tensor_bandwidth_bytes_per_s",
             null=("step_ns", "window_ns", "bubble_ratio", "step_ns_per_microbatch", "evidence")),
)  # fmt: skip
KNEES = table(
    "knees",
    "Where a schedule stops gaining from its links; what else was held is beside it.",
    *columns("schedule"),
    nullable(
        "bandwidth_bytes_per_s", "int64",
        "From here on twice the bandwidth shortens the step by less than 1 %; null if none ever pays.",
    ),
    nullable(
        "hidden_latency_ns", "int64",
        "Largest one-way latency at which the step is within 1 % of its floor, over links whose bandwidth costs "
        "nothing; null where links that stay as given keep it above that.",
    ),
    nullable(
        "hbm_bytes_per_hidden_ms", "int64",
        "Of tuned schedules, memory of a rank per further hidden ms; null for others and where unknown.",
    ),
    nullable("remark", "string", "What is special about it, or why it is not known."),
    nullable("extra_forwards", "list<int32>", "Of tuned schedules, the warm-up asked for; null if chosen per link."),
    *columns("microbatches", "p2p", "hbm_bytes", "dcs", null=("microbatches", "p2p")),
    nullable("at_latency_ns", "int64", "One-way latency at which the bandwidth was sought."),
    nullable(
        "at_bandwidth_bytes_per_s", "int64",
        "Bandwidth at which the latency was sought: so large that it costs no step anything.",
    ),
    *columns("scenario", "overlap", "tensor_bandwidth_bytes_per_s"),
)  # fmt: skip
ESTIMATES = table(
    "estimates",
    "What a job from shapes takes, and the measured runs of its file.",
    Column("name", "string", "The job's model, or the run."),
    nullable("measured_s", "float64", "Measured step; null of the job, and if it was not measured."),
    Column("step_ns", "int64", "Estimated: first forward to the end of gradient reduction and optimizer."),
    nullable("error_ratio", "float64", "Estimated over measured step, minus one; null if it was not measured."),
    Column("is_fitted", "bool", "Whether the efficiency was fitted on it."),
    Column("mfu_ratio", "float64", "Operations that the model needs over those of all devices at their peak."),
    Column("hfu_ratio", "float64", "The same with what is computed anew."),
    Column("peak_hbm_bytes", "int64", "Highest allocation of any pipeline rank."),
)
PAIRS = table(
    "pairs",
    "What ranks hand each other in a step, by what makes the bytes.",
    Column("src_rank", "int32", "Sending rank."),
    Column("dst_rank", "int32", "Receiving rank."),
    Column("dimension", "string", "What makes them: tp, cp, ep, dp, pp, embedding or other."),
    Column("tier", "string", "The tier at which both ranks meet."),
    Column("payload_bytes", "int64", "Bytes."),
)
HB_DOMAINS = table(
    "hb_domains",
    "The step against the size of HB domains, of sizes that were asked for.",
    Column("devices", "int32", "Devices of an HB domain, K."),
    Column("step_ns", "int64", "The step."),
)
HISTORY = table(
    "history",
    "A figure of one report of a history.",
    Column("entry", "int32", "Number of the report, from 1 on."),
    Column("label", "string", "What the user calls it: a commit, a date."),
    nullable("at", "string", "When it was, as the user says it; null if not said."),
    Column("digest", "string", "Digest of the traces."),
    Column("tool_version", "string", "Version of the tool that made the report."),
    Column("scenario", "string", "Digest of the what-if that schedules were replayed in; empty for what was observed."),
    Column("what_if", "string", "The same in words; empty for what was observed, and in rows of version 1."),
    Column("schedule", "string", "observed, or the name of a replayed schedule."),
    Column("variant", "string", "How it was replayed, as in +2,2,0,0 in-order; empty for what was observed."),
    Column("metric", "string", "Name of the metric; peaks are those of the rank that needs most."),
    Column("value", "float64", "In the metric's unit."),
)

TABLES_OF: dict[str, tuple[Table, ...]] = {
    "an Answer": (RESULTS, RANKS),
    "an Explanation": (CAUSES, CAUSE_RANKS, PATH),
    "an Advice": (PLANS, GAINS),
    "a Sweep": (POINTS, KNEES),
    "a Comparison": (LINES, CHANGES, CHECKS),
    "an Estimated": (ESTIMATES,),
    "an OnNetwork": (PAIRS, HB_DOMAINS),
}
"""Which result has which tables."""
