"""The report as JSON: the contract for scripts and CI.

The structs below are the schema: ``schemas/report.schema.json`` is made from them. Keys may be added
within a major version; none is renamed or removed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tracetool.causes import idle_by_cause, mean_by_cause
from tracetool.causes.cause import Cause
from tracetool.ingestion.recording import Recording  # noqa: TC001 - msgspec reads it
from tracetool.model.pipeline import P2P_MODE_NAMES
from tracetool.reports import Report, RunFacts
from tracetool.reports.answer.best import BestInfo, best_info
from tracetool.tables.fields import doc
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import DataclassInstance

    from tracetool.causes.idle import Idle
    from tracetool.model.choice import Taken
    from tracetool.model.metrics import Metrics
    from tracetool.model.scenario import Scenario
    from tracetool.model.topology import Topology
    from tracetool.whatif.memory_limit import Shortage
    from tracetool.whatif.results import Answer, Result

SCHEMA_ID = "urn:tracetool:schema:1:report"


_BY_CAUSE = "Idle time by cause; per rank the causes sum to window minus compute. " + " ".join(
    f"{cause.value}: {cause.words.meaning}" for cause in Cause
)


class IdleInfo(msgspec.Struct, kw_only=True):
    """Idle time within the window that one cause has."""

    mean_ns: Annotated[int, doc("Mean over ranks, rounded so that all causes sum to bubble_ns.")]
    rank_ns: Annotated[list[int], doc("Per pipeline rank.")]


class RunInfo(msgspec.Struct, kw_only=True):
    """The traces."""

    name: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    global_ranks: Annotated[list[int], doc("Global rank of each pipeline rank.")]


class StepInfo(msgspec.Struct, kw_only=True):
    """The observed step."""

    number: Annotated[int, doc("Step number in the trace.")]
    schedule: Annotated[str | None, doc("Name of the observed order, null if it is none that is known.")]
    p2p: Annotated[str, doc(f"How its transfers were issued: {P2P_MODE_NAMES}.")]
    stages: Annotated[int, doc("Pipeline stages.")]
    ranks: Annotated[int, doc("Pipeline ranks.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    step_ns: Annotated[int, doc("First forward to the end of gradient reduction and optimizer.")]
    window_ns: Annotated[int, doc("First forward on any rank to last backward on any rank.")]
    bubble_ns: Annotated[int, doc("Idle time within the window, mean over ranks.")]
    bubble_ratio: Annotated[float, doc("Idle share of the window: 1 - compute / (ranks x window).")]
    peak_hbm_bytes: Annotated[list[int | None], doc("Highest allocation per rank, null if unknown.")]
    overhead_bytes: Annotated[
        list[int | None], doc("Device memory needed per rank beyond it, as measured; null if unknown.")
    ]
    bubble_by_cause_ns: Annotated[dict[str, IdleInfo], doc(_BY_CAUSE)]


class JitterInfo(msgspec.Struct, kw_only=True):
    """Step times of replays with costs drawn anew from the measured microbatches (--jitter)."""

    seed: Annotated[int | None, doc("Of the draws; null in reports of earlier versions.")] = None
    resamples: Annotated[int, doc("How many.")]
    p50_ns: Annotated[int, doc("Median step time.")]
    p95_ns: Annotated[int, doc("Step time that one in twenty exceeds.")]


class FidelityInfo(msgspec.Struct, kw_only=True):
    """How well replay of the observed order gives back the observed pipeline window."""

    observed_ns: Annotated[int, doc("Observed pipeline window.")]
    replayed_ns: Annotated[int, doc("Replayed pipeline window.")]
    error_ratio: Annotated[float, doc("Replayed over observed without ``profiler_ns``, minus one.")]
    profiler_ns: Annotated[
        int, doc("How much of the observed window the profiler's own work held up; replay leaves it out.")
    ] = 0


class LinkInfo(msgspec.Struct, kw_only=True):
    """One direction between two data centres."""

    src_dc: Annotated[str, doc("Sending data centre.")]
    dst_dc: Annotated[str, doc("Receiving data centre.")]
    bandwidth_bytes_per_s: Annotated[int, doc("Bandwidth.")]
    latency_ns: Annotated[int, doc("One-way latency.")]


class RankPlaceInfo(msgspec.Struct, kw_only=True):
    """Where a rank of the job sits."""

    rank: Annotated[int, doc("Global rank.")]
    dc: Annotated[str, doc("Its data centre.")]


class ScenarioInfo(msgspec.Struct, kw_only=True):
    """What differs from the measurement: all of it, for other scenarios give other answers."""

    dcs: Annotated[list[str], doc("Data centre of each pipeline rank; empty if nothing was said.")]
    links: Annotated[list[LinkInfo], doc("Links between data centres.")]
    hbm_bytes: Annotated[int | None, doc("Memory limit per rank.")]
    p2p: Annotated[str | None, doc("p2p mode asked for, null if left to the trace.")]
    activation_bytes: Annotated[int | None, doc("Activation bytes asked for, null if measured.")]
    static_bytes: Annotated[int | None, doc("Static bytes asked for, null if measured.")]
    overlap_ratio: Annotated[float, doc("Time of a forward and backward run as one over the sum of both alone.")]
    interference: Annotated[bool, doc("Whether slowdown beside communication and under load is modelled.")]
    pipelines: Annotated[int, doc("Equal pipelines that share the links.")]
    link_sharing: Annotated[str, doc("How they share them: temporal or spatial.")]
    microbatches: Annotated[int | None, doc("Microbatches per step asked for, null if as in the trace.")] = None
    rank_dcs: Annotated[
        list[RankPlaceInfo], doc("Ranks of the job that the map places: which collectives cross data centres.")
    ] = []
    partial: Annotated[bool, doc("Whether places that no link joins exchange messages as fast as was measured.")] = (
        False
    )


class TakenInfo(msgspec.Struct, kw_only=True):
    """What was not measured where it is used."""

    costs_from: Annotated[str | None, doc("Digest of the recording named by --costs-from.")] = None
    memory_from: Annotated[str | None, doc("Digest of the recording named by --memory-from.")] = None
    copied_ranks: Annotated[dict[int, int], doc("Per rank that was not recorded, the rank copied.")] = {}


class ChoiceInfo(msgspec.Struct, kw_only=True):
    """What was asked of one schedule; null where it was left to be chosen, or the schedule does not heed it."""

    extra_forwards: Annotated[list[int] | None, doc("Warm-up forwards per rank beyond 1F1B's.")] = None
    chunks: Annotated[int | None, doc("Stages per rank to cut one into.")] = None
    time_limit_s: Annotated[float | None, doc("How long a search may take.")] = None
    order: Annotated[str | None, doc("SHA-256 of an order read from a file.")] = None


class ShortageInfo(msgspec.Struct, kw_only=True):
    """How the memory limit is exceeded."""

    rank: Annotated[int, doc("Pipeline rank that lacks most.")]
    missing_bytes: Annotated[int, doc("Bytes it needs beyond the limit.")]
    first_rank: Annotated[int, doc("Pipeline rank that exceeds the limit first.")]
    first_ns: Annotated[int, doc("When it does, from the start of the pipeline window.")]
    first_action: Annotated[
        str | None,
        doc("Its action then, such as 0F3, or OPTIMIZER; null: what it holds before its first is too much."),
    ]


class EachStepInfo(msgspec.Struct, kw_only=True):
    """A result by what one recorded step took (--each-step)."""

    number: Annotated[int, doc("Step number in the trace.")]
    step_ns: Annotated[int, doc("First forward to the end of gradient reduction and optimizer.")]
    window_ns: Annotated[int, doc("First forward on any rank to last backward on any rank.")]
    bubble_ns: Annotated[int, doc("Idle time within the window, mean over ranks.")]
    bubble_ratio: Annotated[float, doc("Idle share of the window.")]
    cross_dc_bubble_ns: Annotated[int, doc("Window minus the window with free cross-DC links.")]


class ResultInfo(msgspec.Struct, kw_only=True):
    """One schedule in the scenario."""

    schedule: Annotated[str, doc("Name of the schedule.")]
    extra_forwards: Annotated[list[int] | None, doc("Warm-up forwards per rank beyond 1F1B's; null if n/a.")]
    p2p: Annotated[str, doc(f"How its transfers were issued: {P2P_MODE_NAMES}.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    feasible: Annotated[bool | None, doc("Fits the memory limit; null if memory is unknown.")]
    shortage: Annotated[ShortageInfo | None, doc("How it does not fit.")]
    step_ns: Annotated[int, doc("First forward to the end of gradient reduction and optimizer.")]
    window_ns: Annotated[int, doc("First forward on any rank to last backward on any rank.")]
    bubble_ns: Annotated[int, doc("Idle time within the window, mean over ranks.")]
    bubble_ratio: Annotated[float, doc("Idle share of the window: 1 - compute / (ranks x window).")]
    cross_dc_bubble_ns: Annotated[int, doc("Window minus the window with free cross-DC links.")]
    peak_hbm_bytes: Annotated[list[int | None], doc("Highest allocation per rank, null if unknown.")]
    overhead_bytes: Annotated[
        list[int | None], doc("Device memory needed per rank beyond it, as measured; null if unknown.")
    ]
    bubble_reduction: Annotated[float | None, doc("1 - bubble_ns / the baseline's; null if that is 0.")]
    cross_dc_bubble_reduction: Annotated[float | None, doc("The same for cross_dc_bubble_ns.")]
    seen_error_ratio: Annotated[
        float | None, doc("Largest step time error of such predictions on recorded runs; null if none was like it.")
    ]
    step_change_ratio: Annotated[float | None, doc("step_ns over the baseline's, minus one.")] = None
    step_change_error_ratio: Annotated[
        float | None,
        doc("Error of step_change_ratio, as pairs of recorded runs tell it; null if none was like both."),
    ] = None
    bubble_by_cause_ns: Annotated[
        dict[str, IdleInfo],
        doc(_BY_CAUSE),
    ]
    evidence: Annotated[str, doc("What the prediction rests on: recorded, measured or unproven.")] = "measured"
    rests_on: Annotated[list[str], doc("Of an unproven one, what nothing recorded was like.")] = []
    remark: Annotated[str | None, doc("Why this variant was chosen.")]
    jitter: Annotated[JitterInfo | None, doc("Spread of the step time, null if it was not asked for.")]
    each_step: Annotated[
        list[EachStepInfo],
        doc("The same by each recorded step, for tracetool compare; empty without --each-step."),
    ] = []
    choice: ChoiceInfo = msgspec.field(default_factory=ChoiceInfo)


class RefusedInfo(msgspec.Struct, kw_only=True):
    """A schedule that was asked for and does not fit."""

    schedule: Annotated[str, doc("Name of the schedule.")]
    reason: Annotated[str, doc("Why it cannot be replayed.")]
    hint: Annotated[str | None, doc("What to do about it.")]


class ReportInfo(msgspec.Struct, kw_only=True):
    """Result of tracetool replay."""

    schema: Annotated[str, doc("Identifier of this schema.")] = msgspec.field(name="$schema", default=SCHEMA_ID)
    schema_version: Annotated[str, doc("Version of the schema.")] = SCHEMA_VERSION
    tool_version: Annotated[str, doc("Version of tracetool.")]
    command: Annotated[str, doc("Command line that made the report.")]
    run: RunInfo
    step: StepInfo
    fidelity: FidelityInfo
    scenario: ScenarioInfo
    taken: TakenInfo = msgspec.field(default_factory=TakenInfo)
    baseline: Annotated[ResultInfo, doc("The schedule that the results are compared with.")]
    results: Annotated[list[ResultInfo], doc("One per schedule asked for that fits.")]
    best: Annotated[BestInfo | None, doc("What to run of baseline and results; null if none fits.")] = None
    refused: Annotated[list[RefusedInfo], doc("Schedules asked for that do not fit, and why.")]
    warnings: Annotated[list[str], doc("Why not to trust any of it.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]
    recording: Annotated[
        Recording | None, doc("What every step measured, for tracetool compare; null where the Run keeps none.")
    ] = None


def report_info(answer: Answer, facts: RunFacts) -> ReportInfo:
    """The answer as the structs of the schema."""
    return ReportInfo(
        tool_version=facts.tool_version,
        command=facts.command,
        run=RunInfo(
            name=facts.name, digest=facts.digest, global_ranks=list(answer.observed.global_ranks)
        ),
        step=_step(answer, answer.observed_metrics),
        fidelity=FidelityInfo(
            observed_ns=answer.fidelity.observed_ns,
            replayed_ns=answer.fidelity.replayed_ns,
            error_ratio=answer.fidelity.error_ratio,
            profiler_ns=answer.fidelity.profiler_ns,
        ),
        scenario=scenario_info(answer.scenario),
        taken=taken_info(answer.taken),
        baseline=_result(answer, answer.baseline),
        results=[_result(answer, r) for r in answer.results],
        best=None if answer.best is None else best_info(answer, answer.best),
        refused=[RefusedInfo(schedule=r.schedule, reason=r.reason, hint=r.hint) for r in answer.refused],
        warnings=list(answer.warnings),
        notes=list(answer.notes),
    )  # fmt: skip


def scenario_info(scenario: Scenario) -> ScenarioInfo:
    """A what-if as the struct of the schema; a member of either that the schema lacks is an error."""
    own, places = _members(scenario), _members(scenario.topology)
    del own["topology"]
    # Who shares the links, asked for or found out.
    own["pipelines"] = scenario.pipelines_on_link
    del places["pipelines"]
    places["dcs"] = list(scenario.topology.dcs)
    places["links"] = link_infos(scenario.topology)
    places["rank_dcs"] = [RankPlaceInfo(rank=rank, dc=dc) for rank, dc in scenario.topology.rank_dcs]
    return ScenarioInfo(**own, **places)


def taken_info(taken: Taken) -> TakenInfo:
    """What was taken from elsewhere as the struct of the schema."""
    return TakenInfo(**_members(taken))


def link_infos(topology: Topology) -> list[LinkInfo]:
    """The links of a topology as structs."""
    return [LinkInfo(**_members(link)) for link in topology.links]


def _members(value: DataclassInstance) -> dict[str, Any]:
    return {member.name: getattr(value, member.name) for member in fields(value)}


def _step(answer: Answer, metrics: Metrics) -> StepInfo:
    shape = answer.pipeline.observed.shape
    return StepInfo(
        number=answer.pipeline.step,
        schedule=answer.observed_schedule,
        p2p=answer.pipeline.p2p,
        stages=shape.stages,
        ranks=shape.ranks,
        microbatches=shape.microbatches,
        step_ns=metrics.step_ns,
        window_ns=metrics.window_ns,
        bubble_ns=metrics.bubble_ns,
        bubble_ratio=metrics.bubble_ratio,
        peak_hbm_bytes=list(metrics.peak_hbm_bytes),
        overhead_bytes=list(metrics.overhead_bytes),
        bubble_by_cause_ns=idle_info(answer.observed_idles, shape.ranks),
    )


def _result(answer: Answer, result: Result) -> ResultInfo:
    metrics, shortage = result.metrics, result.shortage
    return ResultInfo(
        schedule=result.schedule,
        extra_forwards=None if result.extra_forwards is None else list(result.extra_forwards),
        p2p=result.p2p,
        microbatches=result.microbatches,
        feasible=result.feasible,
        shortage=None if shortage is None else shortage_info(shortage),
        step_ns=metrics.step_ns,
        window_ns=metrics.window_ns,
        bubble_ns=metrics.bubble_ns,
        bubble_ratio=metrics.bubble_ratio,
        cross_dc_bubble_ns=result.cross_dc_bubble_ns,
        peak_hbm_bytes=list(metrics.peak_hbm_bytes),
        overhead_bytes=list(metrics.overhead_bytes),
        bubble_reduction=answer.bubble_reduction(result),
        cross_dc_bubble_reduction=answer.cross_dc_bubble_reduction(result),
        seen_error_ratio=result.seen_error_ratio,
        step_change_ratio=answer.step_change(result),
        step_change_error_ratio=answer.step_change_error(result),
        bubble_by_cause_ns=idle_info(result.idles, len(metrics.rank_compute_ns)),
        evidence=result.evidence,
        rests_on=list(result.rests_on),
        remark=result.remark,
        jitter=None if result.spread is None else JitterInfo(seed=answer.jitter_seed, **_members(result.spread)),
        each_step=[
            EachStepInfo(
                number=one.number,
                step_ns=one.metrics.step_ns,
                window_ns=one.metrics.window_ns,
                bubble_ns=one.metrics.bubble_ns,
                bubble_ratio=one.metrics.bubble_ratio,
                cross_dc_bubble_ns=one.cross_dc_bubble_ns,
            )
            for one in result.each_step
        ],
        choice=ChoiceInfo(**_members(result.choice)),
    )


def shortage_info(shortage: Shortage) -> ShortageInfo:
    """How a limit is exceeded as the struct of the schema."""
    first = shortage.first
    return ShortageInfo(
        rank=shortage.rank,
        missing_bytes=shortage.missing_bytes,
        first_rank=first.rank,
        first_ns=first.at_ns,
        first_action=None if first.op is None else first.op.text,
    )


def idle_info(idles: Sequence[Idle], ranks: int) -> dict[str, IdleInfo]:
    """Idle time by cause, all causes in their order."""
    by_cause = idle_by_cause(idles, ranks)
    means = mean_by_cause(by_cause)
    return {cause.value: IdleInfo(mean_ns=means[cause], rank_ns=list(ns)) for cause, ns in by_cause.items()}


def render(answer: Answer, facts: RunFacts, _suffix: str) -> bytes:
    """The report as indented JSON, the recording last and on one line."""
    text = msgspec.json.format(msgspec.json.encode(report_info(answer, facts)), indent=2) + b"\n"
    if facts.recording is None:
        return text
    # Thousands of numbers: they get one line.
    return text.removesuffix(b"null\n}\n") + msgspec.json.encode(facts.recording) + b"\n}\n"


REPORT = Report((".json",), render)
