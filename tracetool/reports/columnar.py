"""Results as tables: Arrow, or Polars over the same memory."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from tracetool.advice import Advice, Decided
from tracetool.comparison import Comparison
from tracetool.errors import WrongType
from tracetool.estimates.asked import Estimated
from tracetool.explanation import Explanation
from tracetool.ingestion.runs import idle_table, observed_tables, timeline_tables
from tracetool.model.pipeline import max_if_known
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import Timeline
from tracetool.reconstruction import Reconstruction
from tracetool.replays import Replayed
from tracetool.reports.network import traffic_rows
from tracetool.sweeps import Sweep
from tracetool.tables.results import (
    CAUSE_RANKS,
    CAUSES,
    CHANGES,
    CHECKS,
    ESTIMATES,
    GAINS,
    HB_DOMAINS,
    LINES,
    OFFERS,
    PAIRS,
    PATH,
    PLANS,
    RANKS,
    RESULTS,
)
from tracetool.whatif.decision import Decision
from tracetool.whatif.on_network import OnNetwork
from tracetool.whatif.results import Answer, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracetool.model.timeline import Metrics
    from tracetool.tables import Table

_HIGHEST = ("peak_hbm_bytes", "needed_hbm_bytes")
_OF_EACH_RANK = ("rank", "compute_ns", *_HIGHEST)

TableRow = tuple[object, ...]
"""What a row is of; see ``Table.arrow``."""

TabularResult = (
    Timeline
    | Reconstruction
    | Replayed
    | Result
    | Answer
    | Explanation
    | Advice
    | Decision
    | Decided
    | Sweep
    | Comparison
    | Estimated
    | OnNetwork
)
"""What can be made into tables."""


def to_arrow(result: TabularResult) -> dict[str, pa.Table]:
    """The tables of a result, by name, as Arrow; columns have their meaning as field metadata.

    ===================================  =====================================================================
    a Timeline, what was replayed        ops, transfers, memory_curve, metrics (as in a Run); of a Result idles
    a Reconstruction                     the same of the observed step, and stages
    an Answer                            results, ranks
    an Explanation                       causes, cause_ranks, path
    an Advice                            plans, gains
    a Decision, or what decide returns   offers
    a Sweep                              points, knees
    a Comparison                         lines, changes, checks
    an Estimated                         estimates
    an OnNetwork                         pairs, hb_domains
    ===================================  =====================================================================

    Args:
        result: What one of the verbs returned.

    Raises:
        WrongType: If it is nothing of these.

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
        WrongType: If it cannot be made into tables.

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
    raise WrongType(f"a {type(result).__name__} is no result that has tables")


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
    observed = {"role": "observed", "schedule": result.observed_schedule or OBSERVED, "p2p": result.pipeline.p2p}
    every: list[tuple[Timeline, Metrics, TableRow]] = [
        (result.observed, result.observed_metrics, (observed, result.pipeline.observed.shape))
    ]
    for role, results in (("baseline", (result.baseline,)), ("result", result.results)):
        for each in results:
            change, error = result.step_change(each), result.step_change_error(each)
            of_result = {"role": role, "step_change_ratio": change, "step_change_error_ratio": error}
            every.append((each.timeline, each.metrics, (of_result, each)))
    by_rank: list[TableRow] = []
    for timeline, metrics, row in every:
        columns = [timeline.global_ranks, *(getattr(metrics, name) for name in ("rank_compute_ns", *_HIGHEST))]
        by_rank += [(dict(zip(_OF_EACH_RANK, figures, strict=True)), *row) for figures in zip(*columns, strict=True)]
    return _made({RESULTS: [(_highest(metrics), *row, metrics) for _, metrics, row in every], RANKS: by_rank})


@_tables.register(Explanation)
def _(result: Explanation) -> dict[str, pa.Table]:
    ranks = result.global_ranks
    causes: list[TableRow] = [
        (
            {
                "cause": cause.cause.value, "idle_ns": cause.mean_ns, "worst_rank": ranks[cause.worst_rank],
                "removal": cause.removal.how, "microbatches": cause.removal.microbatches or None,
            },
            cause.removal,
        )
        for cause in result.causes
    ]  # fmt: skip
    by_rank: list[TableRow] = [
        ({"cause": cause.cause.value, "rank": rank, "idle_ns": idle_ns},)
        for cause in result.causes
        for rank, idle_ns in zip(ranks, cause.rank_ns, strict=True)
    ]
    path: list[TableRow] = [
        ({"duration_ns": ns, **({"rank": ranks[what]} if isinstance(what, int) else {"cause": what.value})},)
        for what, ns in result.spent_ns.items()
    ]
    return _made({CAUSES: causes, CAUSE_RANKS: by_rank, PATH: path})


@_tables.register(Advice)
def _(result: Advice) -> dict[str, pa.Table]:
    verdicts = {id(plan): "rival" for plan in result.rivals} | {id(plan): "unproven" for plan in result.unproven}
    verdicts |= {} if result.best is None else {id(result.best): "best"}
    plans: list[TableRow] = [
        ({"verdict": verdicts.get(id(plan))}, _highest(plan.result.metrics), plan, plan.result)
        for plan in result.asked.plans
    ]
    gains: list[TableRow] = [
        ({"unit": gain.more.text}, gain, gain.plan, gain.plan.result, gain.more) for gain in result.gains
    ]
    return _made({PLANS: plans, GAINS: gains})


@_tables.register(Decision)
def _(result: Decision) -> dict[str, pa.Table]:
    rows: list[TableRow] = []
    for offer in result.offers:
        best, bought = offer.best, result.bought(offer)
        of_offer = {
            "fee": None if offer.fee is None else str(offer.fee),
            "seen_error_ratio": None if best is None or best.known_error is None else best.known_error.step_ratio,
            "to_today_ratio": result.to_today(offer), "run_days": result.run_days(offer),
            "run_fee": result.run_fee(offer),
        }  # fmt: skip
        rows.append((of_offer, *filter(None, (best, bought)), offer))
    return _made({OFFERS: rows})


@_tables.register(Decided)
def _(result: Decided) -> dict[str, pa.Table]:
    return _tables(result.decision)


@_tables.register(Comparison)
def _(result: Comparison) -> dict[str, pa.Table]:
    lines: list[TableRow] = [({"scope": line.key.scope or None}, line.key, line) for line in result.lines]
    changes: list[TableRow] = [
        ({"metric": metric, "value": float(cause.value)}, cause)
        for metric, causes in result.causes.items()
        for cause in causes
    ]
    checks: list[TableRow] = [({"limit": check.limit.text}, check) for check in result.checks]
    return _made({LINES: lines, CHANGES: changes, CHECKS: checks})


@_tables.register(Estimated)
def _(result: Estimated) -> dict[str, pa.Table]:
    rows: list[TableRow] = [
        ({"is_fitted": result.is_fitted(row), "peak_hbm_bytes": max(row.peak_hbm_bytes)}, row)
        for row in (result.job, *result.measured)
    ]
    return _made({ESTIMATES: rows})


@_tables.register(OnNetwork)
def _(result: OnNetwork) -> dict[str, pa.Table]:
    sizes: list[TableRow] = [(one,) for one in result.domains]
    return {PAIRS.name: traffic_rows(result).to_arrow().cast(PAIRS.arrow_schema()), **_made({HB_DOMAINS: sizes})}


def _highest(metrics: Metrics) -> dict[str, int | None]:
    """Figures of each rank as one: the largest, or None if any is unknown, for that one may be larger."""
    of_ranks: dict[str, Sequence[int | None]] = {name: getattr(metrics, name) for name in _HIGHEST}
    return {name: max_if_known(sizes) for name, sizes in of_ranks.items()}


def _made(rows: Mapping[Table, Sequence[TableRow]]) -> dict[str, pa.Table]:
    return {table.name: table.arrow(of_table) for table, of_table in rows.items()}
