"""The report as JSON.

The schedule to run, as JSON has it in every report.

What ``tracetool report --json`` prints: which file was written, and its answer in short.

The struct is the schema: ``schemas/written.schema.json`` is made from it. Keys may be added within a major version;
none is renamed or removed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tracetool.causes import idle_by_cause, mean_by_cause
from tracetool.comparison.report import (
    AlikeInfo,
    AlikeTimesInfo,
    BestInfo,
    ChoiceInfo,
    EachStepInfo,
    FidelityInfo,
    IdleInfo,
    JitterInfo,
    LinkInfo,
    NearInfo,
    NetworkInfo,
    PipelinesInfo,
    RankPlaceInfo,
    RefusedInfo,
    ReportInfo,
    ResultInfo,
    RunByInfo,
    RunInfo,
    ScenarioInfo,
    ShortageInfo,
    SlowestInfo,
    StepInfo,
    TakenInfo,
    TierInfo,
)
from tracetool.reports import Report, RunFacts, as_json
from tracetool.reports.answer.verdict import verdict
from tracetool.tables.fields import Head, SchemaId, as_struct, doc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance

    from tracetool.causes.cause import Idle
    from tracetool.model.scenario import Scenario, Taken
    from tracetool.model.timeline import Metrics
    from tracetool.model.topology import Topology
    from tracetool.reports import RunFacts
    from tracetool.whatif.memory_limit import Shortage
    from tracetool.whatif.results import Answer, Result


def best_info(answer: Answer, best: Result) -> BestInfo:
    """The schedule to run as the struct of the schema."""
    chosen = answer.chosen
    return BestInfo(
        **msgspec.structs.asdict(_near(answer, best)),
        as_good=[_near(answer, result) for result in chosen.as_good],
        unproven=[_near(answer, result) for result in chosen.unproven],
    )


def _near(answer: Answer, best: Result) -> NearInfo:
    return as_struct(
        NearInfo, best, change_ratio=answer.step_change(best), change_error_ratio=answer.step_change_error(best)
    )


def report_info(answer: Answer, facts: RunFacts) -> ReportInfo:
    """The answer as the structs of the schema."""
    return ReportInfo(
        tool_version=facts.tool_version,
        command=facts.command,
        run=as_struct(RunInfo, facts, global_ranks=list(answer.observed.global_ranks)),
        step=_step(answer, answer.observed_metrics),
        fidelity=as_struct(FidelityInfo, answer.fidelity),
        scenario=scenario_info(answer.scenario),
        taken=taken_info(answer.taken),
        pipelines=_pipelines(answer),
        baseline=_result(answer, answer.baseline),
        results=[_result(answer, r) for r in answer.results],
        best=None if answer.best is None else best_info(answer, answer.best),
        refused=[as_struct(RefusedInfo, r) for r in answer.refused],
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
    seating = places.pop("seating")
    if seating is not None:
        tiers = [TierInfo(**_members(tier) | {"times": list(tier.times)}) for tier in seating.network.tiers]
        asked = sorted((sorted(devices), how) for devices, how in seating.algorithms)
        places["network"] = NetworkInfo(
            name=seating.network.name, tiers=tiers, devices=list(seating.devices),
            beside=[list(devices) for devices in seating.pipelines[1:]],
            rank_devices={str(rank): device for rank, device in seating.rank_devices},
            run_by=[RunByInfo(devices=devices, algorithm=how) for devices, how in asked],
        )  # fmt: skip
    places["dcs"] = list(scenario.topology.dcs)
    places["links"] = link_infos(scenario.topology)
    places["rank_dcs"] = [RankPlaceInfo(rank=rank, dc=dc) for rank, dc in scenario.topology.rank_dcs]
    return ScenarioInfo(**own, **places)


def taken_info(taken: Taken) -> TakenInfo:
    """What was taken from elsewhere as the struct of the schema."""
    return TakenInfo(**_members(taken))


def link_infos(topology: Topology) -> list[LinkInfo]:
    """The links of a topology as structs."""
    return [as_struct(LinkInfo, link) for link in topology.links]


def _members(value: DataclassInstance) -> dict[str, Any]:
    return {member.name: getattr(value, member.name) for member in fields(value)}


def _step(answer: Answer, metrics: Metrics) -> StepInfo:
    shape = answer.pipeline.observed.shape
    return as_struct(
        StepInfo,
        shape,
        metrics,
        number=answer.pipeline.step,
        p2p=answer.pipeline.p2p,
        schedule=answer.observed_schedule,
        bubble_by_cause_ns=idle_info(answer.observed_idles, shape.ranks),
    )


def _result(answer: Answer, result: Result) -> ResultInfo:
    metrics, shortage = result.metrics, result.shortage
    return as_struct(
        ResultInfo,
        result,
        metrics,
        shortage=None if shortage is None else shortage_info(shortage),
        bubble_reduction=answer.bubble_reduction(result),
        cross_dc_bubble_reduction=answer.cross_dc_bubble_reduction(result),
        step_change_ratio=answer.step_change(result),
        step_change_error_ratio=answer.step_change_error(result),
        bubble_by_cause_ns=idle_info(result.idles, len(metrics.rank_compute_ns)),
        jitter=None if result.spread is None else JitterInfo(seed=answer.jitter_seed, **_members(result.spread)),
        each_step=[as_struct(EachStepInfo, one, one.metrics) for one in result.each_step],
        choice=ChoiceInfo(**_members(result.choice)),
        slowest=_slowest(result),
    )


def _pipelines(answer: Answer) -> PipelinesInfo | None:
    known = answer.pipelines
    if known is None:
        return None
    return PipelinesInfo(
        alike=[as_struct(AlikeInfo, alike) for alike in known.alike],
        left_out=list(known.left_out),
        joined=answer.baseline.slowest is not None,
    )


def _slowest(result: Result) -> SlowestInfo | None:
    slowest = result.slowest
    if slowest is None:
        return None
    return as_struct(
        SlowestInfo,
        slowest,
        result.timeline,
        alike=[as_struct(AlikeTimesInfo, alike) for alike in slowest.alike],
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
    text = as_json(report_info(answer, facts))
    if facts.recording is None:
        return text
    # Thousands of numbers: they get one line.
    return text.removesuffix(b"null\n}\n") + msgspec.json.encode(facts.recording) + b"\n}\n"


REPORT = Report((".json",), render)


class WrittenInfo(Head, kw_only=True):
    """Result of tracetool report."""

    schema: SchemaId = "urn:tracetool:schema:1:written"
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    path: Annotated[str, doc("The file.")]
    size_bytes: Annotated[int, doc("Its size.")]
    headline: Annotated[str, doc("The answer as the page begins.")]
    best: Annotated[BestInfo, doc("What the answer is about.")]
    baseline: Annotated[str, doc("Name of the schedule that it is compared with.")]


def written_info(
    answer: Answer, facts: RunFacts, path: Path, size_bytes: int, best: Result | None, sentences: Sequence[str]
) -> WrittenInfo:
    """The struct of the schema; ``best`` as ``verdict`` takes it, the sentences as the page begins with them."""
    chosen = verdict(answer, best)
    best, base = chosen.best, answer.baseline
    return as_struct(
        WrittenInfo,
        chosen,
        facts,
        path=str(path),
        size_bytes=size_bytes,
        headline=" ".join(sentences),
        best=best_info(answer, best),
        baseline=base.schedule,
    )


def render_json(info: WrittenInfo) -> str:
    """Indented JSON, with a final newline."""
    return as_json(info).decode()
