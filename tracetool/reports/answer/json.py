"""The report as JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.causes import idle_by_cause, mean_by_cause
from tracetool.comparison.report import (
    ChoiceInfo,
    EachStepInfo,
    FidelityInfo,
    IdleInfo,
    JitterInfo,
    LinkInfo,
    RankPlaceInfo,
    RefusedInfo,
    ReportInfo,
    ResultInfo,
    RunInfo,
    ScenarioInfo,
    ShortageInfo,
    StepInfo,
    TakenInfo,
)
from tracetool.reports import Report, RunFacts
from tracetool.reports.answer.best import best_info

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
        warnings=list(map(str, answer.warnings)),
        notes=list(map(str, answer.notes)),
    )  # fmt: skip


def scenario_info(scenario: Scenario) -> ScenarioInfo:
    """A what-if as the struct of the schema; a member of either that the schema lacks is an error."""
    own, places = _members(scenario), _members(scenario.topology)
    del own["topology"]
    # Who shares the links, asked for or found out.
    own["pipelines"] = scenario.pipelines_on_link
    del places["pipelines"], places["free"]  # nobody asks for free links: results are compared with them
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
        **metrics.of_step(),
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
        **metrics.of_step() | {"cross_dc_bubble_ns": result.cross_dc_bubble_ns},
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
                **one.metrics.of_step() | {"cross_dc_bubble_ns": one.cross_dc_bubble_ns},
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
