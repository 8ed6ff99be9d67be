"""What stragglers cost, as text for people and as JSON for scripts (``schemas/stragglers.schema.json``)."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import Option
from tracetool.reports import as_json
from tracetool.reports.answer.text import Note, table, wrapped
from tracetool.tables.fields import Head, SchemaId, as_struct, doc
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reports import RunFacts
    from tracetool.stragglers import Stragglers, Suspect, WhatIfTimes

_SHOWN = 8
"""So many of an axis are printed; JSON has all."""


class StepTimesInfo(msgspec.Struct, kw_only=True):
    """One step under the what-ifs."""

    number: Annotated[int, doc("Step number in the trace.")]
    observed_ns: Annotated[int, doc("From the first compute or leading collective to the end on all ranks.")]
    replayed_ns: Annotated[int, doc("Its observed order at its measured costs.")]
    error_ratio: Annotated[float, doc("Replayed over observed, minus one.")]
    measured_ns: Annotated[int, doc("Replayed without host gaps ahead of and after the pipeline.")]
    equalized_ns: Annotated[int, doc("With one time for every kind of operation.")]
    slowdown_ratio: Annotated[float, doc("measured_ns over equalized_ns.")]


class SuspectInfo(msgspec.Struct, kw_only=True):
    """One kind, stage, pipeline or rank, and what it costs."""

    axis: Annotated[str, doc("What it is one of: kind, stage, pipeline or rank.")]
    name: Annotated[str, doc("Its number (of a rank: the global one), or the name of the kind.")]
    step_ns: Annotated[int, doc("Mean step if it alone were equalized.")]
    saved_ns: Annotated[int, doc("How much shorter the mean step is then; negative: longer.")]
    slowdown_ratio: Annotated[float, doc("step_ns over the mean equalized step.")]
    share_ratio: Annotated[float | None, doc("saved_ns over the time lost to stragglers; null if none is lost.")]
    alone_ratio: Annotated[float, doc("Mean step with all but it equalized over the mean equalized step.")]
    without_ns: Annotated[list[int], doc("Per step, in the order of steps: the step if it alone were equalized.")]
    alone_ns: Annotated[list[int], doc("Per step, in the order of steps: the step if all but it were equalized.")]


class StragglersInfo(Head, kw_only=True):
    """Result of tracetool replay --equalize."""

    schema: SchemaId = "urn:tracetool:schema:1:stragglers"
    run: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    pipelines: Annotated[list[list[int]], doc("Global ranks of each pipeline, in stage order.")]
    observed_ns: Annotated[int, doc("Mean over the steps, as are the next three.")]
    replayed_ns: Annotated[int, doc("Observed order at measured costs.")]
    measured_ns: Annotated[int, doc("The same without host gaps ahead of and after the pipeline.")]
    equalized_ns: Annotated[int, doc("With one time for every kind of operation.")]
    slowdown_ratio: Annotated[float, doc("measured_ns over equalized_ns.")]
    steps: Annotated[list[StepTimesInfo], doc("In order of time.")]
    suspects: Annotated[list[SuspectInfo], doc("Per axis, the one that costs most first.")]
    notes: Annotated[list[str], doc("What was inferred, left out or is not modelled.")]


def stragglers_info(result: Stragglers, facts: RunFacts) -> StragglersInfo:
    """The answer as the structs of the schema."""
    return as_struct(
        StragglersInfo,
        result,
        facts,
        run=facts.name,
        pipelines=result.ranks,
        steps=[as_struct(StepTimesInfo, step) for step in result.steps],
        suspects=[as_struct(SuspectInfo, suspect) for suspect in result.suspects],
        observed_ns=result.mean_ns(lambda s: s.observed_ns),
        replayed_ns=result.mean_ns(lambda s: s.replayed_ns),
        measured_ns=result.mean_ns(lambda s: s.measured_ns),
        equalized_ns=result.mean_ns(lambda s: s.equalized_ns),
        notes=list(map(str, result.notes)),
    )


def render_json(result: Stragglers, facts: RunFacts) -> bytes:
    """The report as indented JSON, with a final newline."""
    return as_json(stragglers_info(result, facts))


def render_text(result: Stragglers, facts: RunFacts) -> bytes:
    """The report as text of at most 80 columns, names and paths aside."""
    ranks = "; ".join(", ".join(map(str, ranks)) for ranks in result.ranks)
    lines = [
        facts.name,
        f"  {format_count(len(result.steps), 'step')}, {format_count(len(result.ranks), 'pipeline')} (ranks {ranks})",
        "",
        *_steps_table(result.steps),
        f"  replay misses the observed steps by at most {result.fidelity_ratio:+.2%}",
        "",
        *_verdict(result),
        "",
        *_suspects_table(result),
        "  step, saved, left: the mean step and its slowdown if this alone were equalized",
        "  (what is faster than the mean would take longer then)",
        "  alone: the slowdown if all but this were equalized",
        "",
        *map(Note, result.notes),
    ]
    return ("\n".join(wrapped(lines)) + "\n").encode()


def _steps_table(steps: Sequence[WhatIfTimes]) -> list[str]:
    times = {
        "observed": [s.observed_ns for s in steps],
        "replayed": [s.replayed_ns for s in steps],
        "without host gaps": [s.measured_ns for s in steps],
        "equalized": [s.equalized_ns for s in steps],
    }
    rows = [(name, *(format_duration(value) for value in _spread(values))) for name, values in times.items()]
    slowdowns = _spread([s.slowdown_ratio for s in steps])
    mean = sum(times["without host gaps"]) / sum(times["equalized"])
    rows.append(("slowdown", *(f"{value:.3f}" for value in (mean, *slowdowns[1:]))))
    head = ("step", "mean", "shortest", "median", "longest")
    return table([head, *rows] if len(steps) > 1 else [head[:2], *(row[:2] for row in rows)])


def _spread(values: Sequence[float]) -> tuple[float, float, float, float]:
    return sum(values) / len(values), min(values), median(values), max(values)


def _verdict(result: Stragglers) -> list[str]:
    """The worst of each axis in one line."""
    lines = []
    for axis in dict.fromkeys(suspect.axis for suspect in result.suspects):
        worst = result.worst(axis)
        if worst is None or worst.saved_ns <= 0:
            lines.append(f"  no {axis} costs anything by itself")
            continue
        share = "" if worst.share_ratio is None else f", {worst.share_ratio:.0%} of what stragglers cost"
        lines.append(f"  {_name(worst)} costs most: {format_duration(worst.saved_ns)} of the step{share}")
    return lines


def _suspects_table(result: Stragglers) -> list[str]:
    rows: list[tuple[str, ...]] = [("equalized", "step", "saved", "left", "alone")]
    more = []
    for axis in dict.fromkeys(suspect.axis for suspect in result.suspects):
        members = [suspect for suspect in result.suspects if suspect.axis == axis]
        rows += [
            (
                _name(s),
                format_duration(s.step_ns),
                _saved(s.saved_ns),
                f"{s.slowdown_ratio:.3f}",
                f"{s.alone_ratio:.3f}",
            )
            for s in members[:_SHOWN]
        ]
        if len(members) > _SHOWN:
            more.append(f"{len(members) - _SHOWN} more of {axis}")
    return table(rows) + ([f"  {', '.join(more)} ({Option.JSON} has all)"] if more else [])


def _name(suspect: Suspect) -> str:
    return suspect.name if suspect.axis == "kind" else f"{suspect.axis} {suspect.name}"


def _saved(saved_ns: int) -> str:
    return format_duration(saved_ns) if saved_ns >= 0 else f"-{format_duration(-saved_ns)}"
