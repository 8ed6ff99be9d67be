"""Replay distributed training traces under other pipeline schedules, links and memory limits.

What the command line does, in Python. Traces are read once into a Run, a folder of Parquet files:

    >>> import tracetool as tt
    >>> run = tt.ingest("sample_traces/h100-1f1b", "x.run")  # from then on: tt.open_run("x.run")
    >>> found = tt.reconstruct(run)
    >>> found.pipeline.observed.shape.ranks, found.pipeline.observed.shape.microbatches, found.pipeline.p2p
    (4, 8, 'grouped')

A scenario says what differs from the recording; its words are the options of ``tracetool replay``. What would two
schedules take over this link, within this memory?

    >>> scenario = tt.scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms", hbm="80GiB")
    >>> answer = tt.answer(found, ["gpipe", "geopipe"], scenario)
    >>> for result in (answer.baseline, *answer.results):
    ...     print(f"{result.schedule:7} {result.metrics.step_ns / 1e6:.1f} ms, fits: {result.feasible}")
    1f1b    347.2 ms, fits: True
    gpipe   458.1 ms, fits: True
    geopipe 319.6 ms, fits: True

``answer`` also says what to make of it: ``warnings``, ``notes`` and ``fidelity``, and of each result ``remark`` and
``seen_error_ratio``; ``step_change_error`` says how far off its change may be. Results are made of typed, frozen
values; ``to_polars`` and ``to_arrow`` give their tables:

    >>> tables = tt.to_polars(answer)
    >>> tables["results"].select("role", "schedule", "step_ns", "bubble_ratio")
    shape: (4, 4)
    ┌──────────┬──────────┬───────────┬──────────────┐
    │ role     ┆ schedule ┆ step_ns   ┆ bubble_ratio │
    │ ---      ┆ ---      ┆ ---       ┆ ---          │
    │ str      ┆ str      ┆ i64       ┆ f64          │
    ╞══════════╪══════════╪═══════════╪══════════════╡
    │ observed ┆ 1f1b     ┆ 246370042 ┆ 0.345479     │
    │ baseline ┆ 1f1b     ┆ 347225311 ┆ 0.548583     │
    │ result   ┆ gpipe    ┆ 458117362 ┆ 0.656055     │
    │ result   ┆ geopipe  ┆ 319617225 ┆ 0.427604     │
    └──────────┴──────────┴───────────┴──────────────┘
    >>> ops = tt.to_polars(answer.results[1])["ops"]  # when everything ran
    >>> ops.columns
    ['timeline', 'rank', 'stage', 'kind', 'microbatch', 'start_ns', 'duration_ns']

Of what was recorded, ``run.table`` gives a table as Arrow, and ``run.query`` asks in SQL (``run.arrow`` likewise):

    >>> run.query("SELECT src_rank, dst_rank, count(*) AS messages FROM transfers GROUP BY ALL ORDER BY ALL").rows()
    [(0, 1, 8), (1, 0, 8), (1, 2, 8), (2, 1, 8), (2, 3, 8), (3, 2, 8)]

Which schedule over which link? Why does a step take so long? What should be run?

    >>> grid = tt.grid(found, "1f1b,geopipe", dc="0-1,2-3", bandwidth="10..40Gbit/s*1", latency="2ms,10ms")
    >>> swept = tt.sweep(found, grid)
    >>> best = swept.best_first()[0]
    >>> len(swept.points), best.schedule, best.step_ns
    (12, '1f1b', 260939903)
    >>> [(why.cause.value, why.mean_ns) for why in tt.explain(found, "1f1b", scenario).causes[:2]]
    [('cross_dc_latency', 84228649), ('cross_dc_bandwidth', 40012310)]
    >>> advice = tt.advise(found, scenario, ["1f1b", "geopipe"])
    >>> advice.best.label, advice.binds
    ('geopipe +2,2,0,0', 'latency')
    >>> for offer in tt.decide(found, scenario, "100Gbit/s,10ms", ["1f1b", "geopipe"]).decision.offers:
    ...     print(f"{offer.name}: {offer.best.schedule} {offer.best.step_ns / 1e6:.1f} ms")
    25 Gbit/s, 10 ms: geopipe 319.6 ms
    100 Gbit/s, 10 ms: geopipe 295.9 ms

What changed between two recordings, or two versions of the tool, and why?

    >>> tt.compare(run, "x.run", fail_on="step_ns>+3%").failures
    ()

One schedule alone, without a comparison:

    >>> order = tt.build_schedule("gpipe", found.pipeline.observed.shape)
    >>> tt.measure(tt.replay(found.pipeline, order, scenario).timeline).step_ns
    458117362

Times are whole ns, sizes bytes, and names say so. What cannot be done raises a :class:`TraceToolError` that says what
was found; its ``hint`` says what to do (``tracetool.errors`` has the tree). One about a type is a TypeError, too.

    >>> try:
    ...     tt.answer(found, "geopip", scenario)
    ... except tt.TraceToolError as error:
    ...     print(error)
    ...     print(error.hint)
    no schedule named 'geopip'. Did you mean 'geopipe' or 'gpipe'?
    tracetool.schedules.SCHEDULES.names() lists all; csv:FILE reads torch's CSV of actions

Names are loaded when first used, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tracetool.version import __version__

_EXPORTS = {
    "Action": "tracetool.model.action",
    "ActionKind": "tracetool.model.action",
    "Advice": "tracetool.advice",
    "Answer": "tracetool.whatif.results",
    "Cause": "tracetool.causes.cause",
    "Comparison": "tracetool.comparison",
    "Estimated": "tracetool.estimates.asked",
    "Explanation": "tracetool.explanation",
    "Grid": "tracetool.sweeps",
    "IngestOptions": "tracetool.ingestion",
    "Link": "tracetool.network.link",
    "Metrics": "tracetool.model.timeline",
    "OnNetwork": "tracetool.whatif.on_network",
    "Pipeline": "tracetool.model.pipeline",
    "PipelineShape": "tracetool.model.schedule",
    "Price": "tracetool.sweeps",
    "Reconstruction": "tracetool.reconstruction",
    "Replayed": "tracetool.replays",
    "Result": "tracetool.whatif.results",
    "Run": "tracetool.store.run",
    "Scenario": "tracetool.model.scenario",
    "Schedule": "tracetool.model.schedule",
    "Sweep": "tracetool.sweeps",
    "Timeline": "tracetool.model.timeline",
    "Topology": "tracetool.model.topology",
    "TraceToolError": "tracetool.errors",
    "advise": "tracetool.advice",
    "answer": "tracetool.whatif.answer",
    "build_schedule": "tracetool.schedules",
    "compare": "tracetool.comparison.asked",
    "decide": "tracetool.advice",
    "estimate": "tracetool.estimates.asked",
    "explain": "tracetool.explanation",
    "grid": "tracetool.sweeps.asked",
    "ingest": "tracetool.ingestion.runs",
    "join_pipelines": "tracetool.whatif.job",
    "measure": "tracetool.model.timeline",
    "open_run": "tracetool.ingestion.runs",
    "over_tiers": "tracetool.sweeps.asked",
    "read_network": "tracetool.network.file",
    "record_job": "tracetool.reconstruction.job",
    "reconstruct": "tracetool.reconstruction",
    "replay": "tracetool.replays",
    "scenario": "tracetool.whatif.wording",
    "sweep": "tracetool.sweeps",
    "to_arrow": "tracetool.reports.columnar",
    "to_polars": "tracetool.reports.columnar",
    "traffic": "tracetool.whatif.on_network",
}

__all__ = ["__version__", *sorted(_EXPORTS)]  # noqa: PLE0604 - names of lazily loaded objects

if TYPE_CHECKING:
    from tracetool.advice import Advice as Advice
    from tracetool.advice import advise as advise
    from tracetool.advice import decide as decide
    from tracetool.causes.cause import Cause as Cause
    from tracetool.comparison import Comparison as Comparison
    from tracetool.comparison.asked import compare as compare
    from tracetool.errors import TraceToolError as TraceToolError
    from tracetool.estimates.asked import Estimated as Estimated
    from tracetool.estimates.asked import estimate as estimate
    from tracetool.explanation import Explanation as Explanation
    from tracetool.explanation import explain as explain
    from tracetool.ingestion import IngestOptions as IngestOptions
    from tracetool.ingestion.runs import ingest as ingest
    from tracetool.ingestion.runs import open_run as open_run
    from tracetool.model.action import Action as Action
    from tracetool.model.action import ActionKind as ActionKind
    from tracetool.model.pipeline import Pipeline as Pipeline
    from tracetool.model.scenario import Scenario as Scenario
    from tracetool.model.schedule import PipelineShape as PipelineShape
    from tracetool.model.schedule import Schedule as Schedule
    from tracetool.model.timeline import Metrics as Metrics
    from tracetool.model.timeline import Timeline as Timeline
    from tracetool.model.timeline import measure as measure
    from tracetool.model.topology import Topology as Topology
    from tracetool.network.file import read_network as read_network
    from tracetool.network.link import Link as Link
    from tracetool.reconstruction import Reconstruction as Reconstruction
    from tracetool.reconstruction import reconstruct as reconstruct
    from tracetool.reconstruction.job import record_job as record_job
    from tracetool.replays import Replayed as Replayed
    from tracetool.replays import replay as replay
    from tracetool.reports.columnar import to_arrow as to_arrow
    from tracetool.reports.columnar import to_polars as to_polars
    from tracetool.schedules import build_schedule as build_schedule
    from tracetool.store.run import Run as Run
    from tracetool.sweeps import Grid as Grid
    from tracetool.sweeps import Price as Price
    from tracetool.sweeps import Sweep as Sweep
    from tracetool.sweeps import sweep as sweep
    from tracetool.sweeps.asked import grid as grid
    from tracetool.sweeps.asked import over_tiers as over_tiers
    from tracetool.whatif.answer import answer as answer
    from tracetool.whatif.job import join_pipelines as join_pipelines
    from tracetool.whatif.on_network import OnNetwork as OnNetwork
    from tracetool.whatif.on_network import traffic as traffic
    from tracetool.whatif.results import Answer as Answer
    from tracetool.whatif.results import Result as Result
    from tracetool.whatif.wording import scenario as scenario


def __getattr__(name: str) -> object:
    """Load an exported name from its room."""
    if name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tracetool' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names offered to completion."""
    return sorted(__all__)
