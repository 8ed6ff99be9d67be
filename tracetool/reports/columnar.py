"""Results as tables: Arrow, or Polars over the same memory."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from tracetool.advice import Advice
from tracetool.comparison import Comparison
from tracetool.explanation import Explanation
from tracetool.ingestion.runs import idle_table, observed_tables, timeline_tables
from tracetool.model.timeline import Timeline
from tracetool.reconstruction import Reconstruction
from tracetool.replays import Replayed
from tracetool.sweeps import Sweep
from tracetool.tables import Column, Table, nullable, table
from tracetool.tables.metrics import METRICS, OF_STEP
from tracetool.whatif.results import Answer, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracetool.model.timeline import Metrics

_SCHEDULE = Column("schedule", "string", "Name of the schedule.")
_EXTRA = nullable(
    "extra_forwards", "list<int32>", "Warm-up forwards per pipeline rank beyond 1F1B's, where it has any."
)
_STEP = Column("step_ns", "int64", "Step.")
_RANK = Column("rank", "int32", "Global rank.")
_FEASIBLE = nullable("feasible", "bool", "Whether it fits the memory limit; null without a limit, or if unknown.")
_NEEDED = nullable("needed_hbm_bytes", "int64", "What the rank that needs most needs; null if unknown of any.")
_CHANGE = nullable("step_change_ratio", "float64", "Step over that of the baseline, minus one; null if observed.")
_CHANGE_ERROR = nullable("step_change_error_ratio", "float64", "Error of that change, as recorded runs tell it.")
_ERROR = nullable("seen_error_ratio", "float64", "Largest error that such predictions had on recorded runs.")

RESULTS = table(
    "results",
    "What was observed, the baseline and the schedules asked for: one row each.",
    Column("role", "string", "observed, baseline or result."),
    _SCHEDULE,
    _EXTRA,
    Column("p2p", "string", "How transfers were issued."),
    Column("microbatches", "int32", "Microbatches of the step."),
    *(METRICS[name].column for name in OF_STEP),
    nullable("cross_dc_bubble_ns", "int64", "Window minus the window with free cross-DC links; null if observed."),
    nullable("peak_hbm_bytes", "int64", "Highest allocation of any rank; null if unknown of any."),
    _NEEDED,
    _FEASIBLE,
    _ERROR,
    _CHANGE,
    _CHANGE_ERROR,
    nullable("evidence", "string", "What the prediction rests on: recorded, measured or unproven; null if observed."),
    nullable("remark", "string", "Why it was chosen so, or how its costs came about."),
)
RANKS = table(
    "ranks",
    "The ranks of every row of results.",
    Column("role", "string", "observed, baseline or result."),
    _SCHEDULE,
    _RANK,
    Column("compute_ns", "int64", "Compute in the window."),
    nullable("peak_hbm_bytes", "int64", "Highest allocation; null if unknown."),
    nullable("needed_hbm_bytes", "int64", "The same and what is occupied beyond it; null if unknown."),
)
CAUSES = table(
    "causes",
    "Causes of idle time, the largest first.",
    Column("cause", "string", "Which."),
    Column("idle_ns", "int64", "Idle time, mean over ranks."),
    Column("worst_rank", "int32", "Global rank that it costs most."),
    Column("removal", "string", "What was replayed without it, or why nothing was."),
    nullable("step_ns", "int64", "Step without it; null if nothing was replayed."),
    nullable("microbatches", "int32", "Microbatches of that step."),
)
CAUSE_RANKS = table(
    "cause_ranks",
    "The causes rank by rank.",
    Column("cause", "string", "Which."),
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
    _SCHEDULE,
    _EXTRA,
    Column("p2p", "string", "How transfers are issued."),
    Column("microbatches", "int32", "Microbatches of the step."),
    Column("evidence", "string", "What the prediction rests on: recorded, measured or unproven."),
    _STEP,
    _NEEDED,
    _FEASIBLE,
    _ERROR,
)
GAINS = table(
    "gains",
    "What one more unit of each resource buys.",
    Column("resource", "string", "bandwidth, latency, hbm, compute or microbatches."),
    Column("unit", "string", "How much more of it."),
    _SCHEDULE,
    _EXTRA,
    Column("microbatches", "int32", "Microbatches of the step then."),
    Column("step_ns", "int64", "Step of the plan that is best then."),
    nullable("same_plan_ns", "int64", "Step of the plan that is best now; null if it does not fit then."),
    Column("gained_ns", "int64", "How much less time the work of a step takes."),
    Column("gain_ratio", "float64", "The same as a share of the step now."),
)
LINES = table(
    "lines",
    "Base against new, value by value.",
    Column("metric", "string", "What it measures; the unit is in the name."),
    nullable("scope", "string", "Of which stage and kind, edge, rank or replayed schedule; null of the whole step."),
    Column("verdict", "string", "improved, unchanged, regressed or inconclusive."),
    nullable("base", "float64", "Median of the base; null if it has none."),
    nullable("new", "float64", "Median of the new side; null if it has none."),
    nullable("change_ratio", "float64", "New over base, minus one."),
    nullable("p", "float64", "Chance of the rank test; null if nothing was tested."),
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
    Column("value", "float64", "What it contributes, in the metric's unit."),
    Column("detail", "string", "What it was and is."),
)
CHECKS = table(
    "checks",
    "How the limits fared.",
    Column("limit", "string", "As it was written."),
    Column("outcome", "string", "held, exceeded or inconclusive."),
    Column("detail", "string", "What was found."),
)

TabularResult = Timeline | Reconstruction | Replayed | Result | Answer | Explanation | Advice | Sweep | Comparison
"""What can be made into tables."""


def to_arrow(result: TabularResult) -> dict[str, pa.Table]:
    """The tables of a result, by name, as Arrow; columns have their meaning as field metadata.

    ===================================  =====================================================================
    a Timeline, what was replayed        ops, transfers, memory_curve, metrics (as in a Run); of a Result idles
    a Reconstruction                     the same of the observed step, and stages
    an Answer                            results, ranks
    an Explanation                       causes, cause_ranks, path
    an Advice                            plans, gains
    a Sweep                              points, knees
    a Comparison                         lines, changes, checks
    ===================================  =====================================================================

    Args:
        result: What one of the verbs returned.

    Raises:
        TypeError: If it is nothing of these.

    Example:
        >>> tt.to_arrow(answer.results[0])["ops"].select(["rank", "kind", "microbatch", "duration_ns"]).to_pylist()[0]
        {'rank': 0, 'kind': 'F', 'microbatch': 0, 'duration_ns': 5680379}
    """
    return _tables(result)


def to_polars(result: TabularResult) -> dict[str, pl.DataFrame]:
    """The same as Polars frames, over the memory of the Arrow tables: numbers are not copied.

    Args:
        result: What one of the verbs returned.

    Raises:
        TypeError: If it cannot be made into tables.

    Example:
        >>> tt.to_polars(answer)["results"].select("role", "schedule", "step_ns").rows()[0]
        ('observed', '1f1b', 246370042)
    """
    import polars as pl

    frames = {}
    for name, rows in to_arrow(result).items():
        frame = pl.from_arrow(rows, rechunk=False)
        if isinstance(frame, pl.DataFrame):
            frames[name] = frame
    return frames


@singledispatch
def _tables(result: object) -> dict[str, pa.Table]:
    raise TypeError(f"a {type(result).__name__} is no result that has tables")


@_tables.register(Timeline)
def _(result: Timeline) -> dict[str, pa.Table]:
    return timeline_tables(result)


@_tables.register(Replayed)
def _(result: Replayed) -> dict[str, pa.Table]:
    return timeline_tables(result.timeline)


@_tables.register(Result)
def _(result: Result) -> dict[str, pa.Table]:
    return {**timeline_tables(result.timeline), "idles": idle_table(result.timeline, result.idles)}


@_tables.register(Reconstruction)
def _(result: Reconstruction) -> dict[str, pa.Table]:
    return observed_tables(result)


@_tables.register(Sweep)
def _(result: Sweep) -> dict[str, pa.Table]:
    return {"points": result.table(), "knees": result.knee_table()}


@_tables.register(Answer)
def _(result: Answer) -> dict[str, pa.Table]:
    observed = {
        "role": "observed", "schedule": result.observed_schedule or "observed",
        "p2p": result.pipeline.p2p, "microbatches": result.pipeline.observed.shape.microbatches,
    }  # fmt: skip
    every = [(observed, result.observed_metrics)]
    for role, of in (("baseline", (result.baseline,)), ("result", result.results)):
        every += [
            ({"role": role, **_facts(each), "step_change_ratio": result.step_change(each),
              "step_change_error_ratio": result.step_change_error(each)}, each.metrics)
            for each in of
        ]  # fmt: skip
    ranks = result.observed.global_ranks
    return {
        "results": _made(RESULTS, [{**facts, **_figures(metrics)} for facts, metrics in every]),
        "ranks": _made(RANKS, [row for facts, metrics in every for row in _rank_rows(facts, metrics, ranks)]),
    }


@_tables.register(Explanation)
def _(result: Explanation) -> dict[str, pa.Table]:
    ranks = result.answer.observed.global_ranks
    causes = [
        {
            "cause": found.cause.value, "idle_ns": found.mean_ns, "worst_rank": ranks[found.worst_rank],
            "removal": found.removal.how, "step_ns": found.removal.step_ns,
            "microbatches": found.removal.microbatches or None,
        }
        for found in result.causes
    ]  # fmt: skip
    by_rank = [
        {"cause": found.cause.value, "rank": rank, "idle_ns": idle_ns}
        for found in result.causes
        for rank, idle_ns in zip(ranks, found.rank_ns, strict=True)
    ]
    path = [
        {"duration_ns": ns, **({"rank": ranks[what]} if isinstance(what, int) else {"cause": what.value})}
        for what, ns in result.spent_ns.items()
    ]
    return {"causes": _made(CAUSES, causes), "cause_ranks": _made(CAUSE_RANKS, by_rank), "path": _made(PATH, path)}


@_tables.register(Advice)
def _(result: Advice) -> dict[str, pa.Table]:
    verdicts = {id(plan): "rival" for plan in result.rivals} | {id(plan): "unproven" for plan in result.unproven}
    verdicts |= {} if result.best is None else {id(result.best): "best"}
    plans = [
        {**_facts(plan.result), **_figures(plan.result.metrics), "evidence": plan.evidence,
         "verdict": verdicts.get(id(plan))}
        for plan in result.asked.plans
    ]  # fmt: skip
    gains = [
        {
            **_facts(gain.plan.result), "resource": gain.more.resource, "unit": gain.more.text,
            "step_ns": gain.plan.step_ns, "same_plan_ns": gain.same_plan_ns,
            "gained_ns": gain.gained_ns, "gain_ratio": gain.gain_ratio,
        }
        for gain in result.gains
    ]  # fmt: skip
    return {"plans": _made(PLANS, plans), "gains": _made(GAINS, gains)}


@_tables.register(Comparison)
def _(result: Comparison) -> dict[str, pa.Table]:
    lines = [
        {
            "metric": line.key.metric, "scope": line.key.scope or None, "verdict": line.verdict, "base": line.base,
            "new": line.new, "change_ratio": line.change_ratio, "p": line.p, "base_count": line.base_count,
            "new_count": line.new_count, "why": line.why,
        }
        for line in result.lines
    ]  # fmt: skip
    changes = [
        {"metric": metric, "kind": cause.kind, "name": cause.name, "value": float(cause.value), "detail": cause.detail}
        for metric, causes in result.causes.items()
        for cause in causes
    ]
    checks = [{"limit": c.limit.text, "outcome": c.outcome, "detail": c.detail} for c in result.checks]
    return {"lines": _made(LINES, lines), "changes": _made(CHANGES, changes), "checks": _made(CHECKS, checks)}


def _facts(result: Result) -> dict[str, object]:
    return {
        "schedule": result.schedule,
        "extra_forwards": result.extra_forwards,
        "p2p": result.p2p,
        "microbatches": result.microbatches,
        "cross_dc_bubble_ns": result.cross_dc_bubble_ns,
        "feasible": result.feasible,
        "seen_error_ratio": result.seen_error_ratio,
        "evidence": result.evidence,
        "remark": result.remark,
    }


def _figures(metrics: Metrics) -> dict[str, object]:
    return {
        **metrics.of_step(OF_STEP),
        "peak_hbm_bytes": _highest(metrics.peak_hbm_bytes),
        "needed_hbm_bytes": _highest(metrics.needed_hbm_bytes),
    }


def _rank_rows(facts: Mapping[str, object], metrics: Metrics, ranks: Sequence[int]) -> Iterator[Mapping[str, object]]:
    figures = zip(ranks, metrics.rank_compute_ns, metrics.peak_hbm_bytes, metrics.needed_hbm_bytes, strict=True)
    for rank, compute, peak, needed in figures:
        yield {**facts, "rank": rank, "compute_ns": compute, "peak_hbm_bytes": peak, "needed_hbm_bytes": needed}


def _highest(sizes: Sequence[int | None]) -> int | None:
    """The largest; None if any is unknown, for that one may be larger."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _made(declared: Table, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Rows as a declared table; what a row does not have is null, and what the table has not is left out."""
    import pyarrow as pa

    schema = declared.arrow_schema()
    return pa.Table.from_arrays([pa.array([row.get(f.name) for row in rows], f.type) for f in schema], schema=schema)
