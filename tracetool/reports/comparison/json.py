"""What ``tracetool compare --json`` prints, and the forms that a comparison is written in.

The structs are the schema: ``schemas/comparison.schema.json`` is made from them. Keys may be added within a major
version; none is renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tracetool.comparison.job import outlying_rank
from tracetool.comparison.summary import summary
from tracetool.comparison.values import whole_contributions
from tracetool.reports import CallFacts, as_json
from tracetool.tables.fields import Head, SchemaId, WithFigures, as_struct, doc, fields_of
from tracetool.tables.results import CHANGES, CHECKS, LINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.comparison import Comparison
    from tracetool.comparison.causes import ChangeCause
    from tracetool.comparison.sides import Side, SideSource
    from tracetool.comparison.verdict import Line


class ComparedInfo(msgspec.Struct, kw_only=True):
    """Which pipeline of a job is compared."""

    global_ranks: Annotated[list[int], doc("Its ranks, in pipeline order.")]
    sets_step: Annotated[bool | None, doc("Whether it takes as long as the slowest that was recorded whole, if known.")]
    slow_rank: Annotated[
        int | None, doc("Of its ranks and those that share their layers, the one that stands out as slow; or none.")
    ]


class SourceInfo(msgspec.Struct, kw_only=True):
    """A Run or report of a side."""

    name: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("Digest of its traces.")]
    tool_version: Annotated[str, doc("Version of tracetool that measured it.")]
    schema_version: Annotated[str, doc("Version of the schema that it was written by.")]
    steps: Annotated[list[int], doc("Steps it holds.")]
    pipeline: Annotated[ComparedInfo | UnsetType, doc("Of a job of several pipelines, which is compared.")] = UNSET


class SideInfo(msgspec.Struct, kw_only=True):
    """The base, or the new side."""

    sources: Annotated[list[SourceInfo], doc("Its Runs and reports.")]
    scenario: Annotated[dict[str, Any] | None, doc("What its reports replayed; null for Runs, or if they differ.")]


class RulesInfo(msgspec.Struct, kw_only=True):
    """When a change counts."""

    alpha: Annotated[float, doc("Chance at which the rank test calls equal sets different.")]
    least_ratio: Annotated[float, doc("Least change of a median.")]
    least_share_ratio: Annotated[float, doc("Least change of a part, as a share of the step.")]


class LineInfo(WithFigures, kw_only=True):
    """One value side by side."""

    name: Annotated[str, doc("Metric, and behind a slash what it is of.")]
    __annotations__.update(fields_of("metric", "scope", of=LINES))
    unit: Annotated[str, doc("ns, bytes or 1.")]
    better: Annotated[str, doc("lower or higher.")]
    __annotations__.update(fields_of("base", "new", of=LINES))
    change: Annotated[float | None, doc("New minus base.")]
    __annotations__.update(fields_of("change_ratio", "base_count", "new_count", of=LINES))
    sampled: Annotated[str, doc("What the values are of: steps, actions, or exact figures.")]
    __annotations__.update(fields_of("p", "verdict", "why", of=LINES))


class ChangeCauseInfo(WithFigures, kw_only=True):
    """A part of a change."""

    __annotations__ = fields_of("kind", "name", "value", "detail", of=CHANGES)
    ranks: Annotated[
        list[int] | UnsetType, doc("Of computes in a job of several pipelines, the ranks whose kernels changed so.")
    ] = UNSET


class CheckInfo(WithFigures, kw_only=True):
    """How a limit fared."""

    __annotations__ = fields_of(of=CHECKS)


class ComparisonInfo(Head, kw_only=True):
    """Result of tracetool compare."""

    schema: SchemaId = "urn:tracetool:schema:1:comparison"
    summary: Annotated[str, doc("The change that matters most, its verdict, its causes.")]
    gate: Annotated[str, doc("tool: same traces, so results must be the same; workload: other traces.")]
    passed: Annotated[bool, doc("Whether the gate is open.")]
    failures: Annotated[list[str], doc("Why it is closed.")]
    informational: Annotated[bool, doc("Whether it was only to be told what would fail.")]
    accepted: Annotated[bool, doc("Whether other results of the same traces were accepted.")]
    base: Annotated[SideInfo, doc("What is compared with.")]
    new: Annotated[SideInfo, doc("What is new.")]
    rules: RulesInfo
    lines: Annotated[list[LineInfo], doc("Every value side by side.")]
    causes: Annotated[dict[str, list[ChangeCauseInfo]], doc("Per metric the causes of its change, the largest first.")]
    checks: Annotated[list[CheckInfo], doc("How the limits fared.")]
    notes: Annotated[list[str], doc("What could not be compared or told.")]
    figures: Annotated[list[str], doc("Of the same traces, paths of figures that are not the same in both reports.")]


def comparison_info(done: Comparison, facts: CallFacts) -> ComparisonInfo:
    """The comparison as the structs of the schema."""
    return as_struct(
        ComparisonInfo,
        done,
        facts,
        summary=summary(done),
        base=_side(done.base),
        new=_side(done.new),
        rules=as_struct(RulesInfo, done.rules),
        lines=[_line(line) for line in done.lines],
        causes={metric: _causes(metric, causes) for metric, causes in done.causes.items()},
        checks=[as_struct(CheckInfo, check, limit=check.limit.text) for check in done.checks],
        notes=list(map(str, done.notes)),
    )


def _side(side: Side) -> SideInfo:
    return as_struct(SideInfo, side, sources=[_source(side, source) for source in side.sources])


def _source(side: Side, source: SideSource) -> SourceInfo:
    of = (source.digest, source.global_ranks)
    recording = next((one for one in side.recordings if (one.digest, tuple(one.global_ranks)) == of), None)
    if recording is None or recording.job is UNSET:
        return as_struct(SourceInfo, source)
    slow = outlying_rank(recording)
    compared = as_struct(ComparedInfo, recording, recording.job, slow_rank=None if slow is None else slow.rank)
    return as_struct(SourceInfo, source, pipeline=compared)


def _line(line: Line) -> LineInfo:
    return as_struct(
        LineInfo, line.metric, line, metric=line.key.metric, name=line.key.text, scope=line.key.scope or None
    )


def _causes(metric: str, causes: Sequence[ChangeCause]) -> list[ChangeCauseInfo]:
    values = whole_contributions(metric, [cause.value for cause in causes])
    return [
        as_struct(ChangeCauseInfo, cause, value=value, ranks=list(cause.ranks) or UNSET)
        for cause, value in zip(causes, values, strict=True)
    ]


def render_json(done: Comparison, facts: CallFacts) -> bytes:
    """The comparison as indented JSON, with a final newline."""
    return as_json(comparison_info(done, facts))
