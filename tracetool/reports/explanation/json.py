"""Why a step takes as long as it does, as JSON: ``schemas/explanation.schema.json`` is made from these structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, UnsetType

from tracetool.causes.cause import Cause
from tracetool.comparison.report import IdleInfo, LinkInfo, ScenarioInfo, TakenInfo
from tracetool.reports import as_json
from tracetool.reports.answer.json import link_infos, scenario_info, taken_info
from tracetool.reports.explanation import PathWords
from tracetool.tables.fields import Head, SchemaId, WithFigures, as_struct, doc, fields_of
from tracetool.tables.results import CAUSES

if TYPE_CHECKING:
    from tracetool.causes.removals import Removal
    from tracetool.explanation import Explanation
    from tracetool.explanation.path import PathPart
    from tracetool.reports import RunFacts


class RemovalInfo(WithFigures, kw_only=True):
    """The step without a cause, replayed."""

    how: Annotated[str, doc("What was replayed instead, or why nothing was.")]
    __annotations__.update(fields_of("step_ns", "microbatches", of=CAUSES))
    change_ratio: Annotated[
        float | None,
        doc(
            "Time per microbatch over that of replayed_step_ns, minus one; null if not replayed, and for host, without "
            "which a step takes replayed_step_ns."
        ),
    ]


class CauseInfo(msgspec.Struct, kw_only=True):
    """A cause of idle time."""

    cause: Annotated[str, doc("Its name.")]
    meaning: Annotated[str, doc("What it means.")]
    idle: IdleInfo
    removal: RemovalInfo


class PathStepInfo(msgspec.Struct, kw_only=True):
    """A step of the critical path."""

    text: Annotated[str, doc("In words; ranks are global.")]
    start_ns: Annotated[int, doc("From the start of the window.")]
    duration_ns: Annotated[int, doc("Its length.")]
    ranks: Annotated[list[int], doc("Pipeline ranks that compute in it.")]
    microbatches: Annotated[list[int], doc("Microbatches that it computes, or that of its message.")]
    actions: Annotated[list[str], doc("Computes, as in 2F0: stage, kind, microbatch.")]
    link: Annotated[str | None, doc("The link that its message crosses.")]
    wait_ns: Annotated[dict[str, int], doc("What is no compute, by cause.")]


class PartInfo(msgspec.Struct, kw_only=True):
    """Steps of the critical path, and how often the like of them came in a row."""

    times: Annotated[int, doc("How often.")]
    start_ns: Annotated[int, doc("Of the first, from the start of the window.")]
    duration_ns: Annotated[int, doc("Of all together.")]
    steps: Annotated[list[PathStepInfo], doc("Of the first time.")]


class SpentInfo(msgspec.Struct, kw_only=True):
    """What the critical path was spent with."""

    what: Annotated[str, doc("compute, or a cause.")]
    rank: Annotated[int | None, doc("Pipeline rank that computed.")]
    duration_ns: Annotated[int, doc("Its time.")]


class ExplanationInfo(Head, kw_only=True):
    """Result of tracetool explain."""

    schema: SchemaId = "urn:tracetool:schema:1:explanation"
    run: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    global_ranks: Annotated[list[int], doc("Global rank of each pipeline rank.")]
    subject: Annotated[str, doc("observed (the recording itself) or replayed.")]
    __annotations__.update(fields_of("schedule", "extra_forwards", "p2p", "microbatches"))
    links: Annotated[list[LinkInfo], doc("Links between data centres.")]
    scenario: Annotated[ScenarioInfo, doc("The what-if, all of it.")]
    taken: TakenInfo
    __annotations__.update(fields_of("step_ns", "window_ns", "bubble_ns"))
    replayed_step_ns: Annotated[int, doc("The step replayed: of a replay step_ns.")]
    rank_compute_ns: Annotated[list[int], doc("Compute per pipeline rank: no step can be shorter than the largest.")]
    causes: Annotated[
        list[CauseInfo], doc("The largest causes of idle time in the step, its window and what follows, largest first.")
    ]
    other_causes_ns: Annotated[int, doc("Idle time of causes that are not listed, mean over ranks.")]
    without_any: Annotated[RemovalInfo, doc("All removed at once that can be from the window.")]
    over_no_links: Annotated[
        RemovalInfo | None, doc("Where collectives inside computes cross no link; null if none does.")
    ]
    tiers: Annotated[
        dict[str, RemovalInfo] | UnsetType, doc("The step without each tier of the network that messages pass.")
    ] = UNSET
    critical_path: Annotated[list[PartInfo], doc("What each moment of the window was spent with.")]
    spent: Annotated[list[SpentInfo], doc("The critical path in sums, largest first.")]
    __annotations__.update(fields_of("remark"))
    warnings: Annotated[list[str], doc("Why not to trust any of it.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]


def explanation_info(explained: Explanation, facts: RunFacts) -> ExplanationInfo:
    """The explanation as the structs of the schema."""
    metrics, answer = explained.metrics, explained.answer
    words = PathWords(explained.global_ranks)
    return as_struct(
        ExplanationInfo,
        explained,
        metrics,
        answer.observed,
        facts,
        run=facts.name,
        global_ranks=list(explained.global_ranks),
        subject="observed" if explained.is_recorded else "replayed",
        schedule=explained.name,
        links=link_infos(answer.scenario.topology),
        scenario=scenario_info(answer.scenario),
        taken=taken_info(answer.taken),
        causes=[
            CauseInfo(
                cause=each.cause.value,
                meaning=each.cause.words.meaning,
                idle=IdleInfo(mean_ns=each.mean_ns, rank_ns=list(each.rank_ns)),
                removal=_removal(each.removal),
            )
            for each in explained.causes
        ],
        other_causes_ns=explained.rest_ns,
        without_any=_removal(explained.without_any),
        over_no_links=None if explained.over_no_links is None else _removal(explained.over_no_links),
        tiers={name: _removal(gone) for name, gone in explained.tiers.items()} or UNSET,
        critical_path=[_part(part, words) for part in explained.path],
        spent=[
            SpentInfo(
                what=what.value if isinstance(what, Cause) else "compute",
                rank=None if isinstance(what, Cause) else what,
                duration_ns=duration,
            )
            for what, duration in explained.spent_ns.items()
        ],
        warnings=list(map(str, answer.warnings)),
        notes=list(map(str, answer.notes)),
    )


def _removal(removal: Removal) -> RemovalInfo:
    return as_struct(RemovalInfo, removal, microbatches=removal.microbatches or None)


def _part(part: PathPart, words: PathWords) -> PartInfo:
    steps = [
        as_struct(
            PathStepInfo,
            step,
            text=words.step(step),
            microbatches=step.microbatches(),
            actions=[f"{op.stage}{op.kind.value}{op.microbatch}" for op in step.ops],
            link=next((t.link for _, _, t in step.waits if t is not None and t.link), None),
            wait_ns={cause.value: ns for cause, ns in step.wait_ns().items()},
        )
        for step in part.steps
    ]
    return PartInfo(times=part.times, start_ns=part.start_ns, duration_ns=part.end_ns - part.start_ns, steps=steps)


def render_json(explained: Explanation, facts: RunFacts) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(explanation_info(explained, facts))
