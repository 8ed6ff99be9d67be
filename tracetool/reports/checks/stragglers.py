"""What stragglers cost, as text for people and as JSON for scripts (``schemas/stragglers.schema.json``)."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import Option
from tracetool.model.notice import NoticeCode
from tracetool.reports import as_json
from tracetool.reports.answer.text import table
from tracetool.reports.lines import Note, lines_left, wrapped
from tracetool.tables.fields import Head, SchemaId, as_struct, doc
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reports import RunFacts
    from tracetool.stragglers import Stragglers, Suspect, WhatIfTimes

_SLOWER = 0.0005
"""A rank that computes longer by less than this would be said to compute 0.0% longer."""
_SHOWN = 8
"""So many of an axis are printed; JSON has all."""


class StepTimesInfo(msgspec.Struct, kw_only=True):
    """One step under the what-ifs."""

    number: Annotated[int, doc("Step number in the trace.")]
    observed_ns: Annotated[int, doc("From the first compute or leading collective to the end on all ranks.")]
    replayed_ns: Annotated[int, doc("Its observed order at its measured costs.")]
    error_ratio: Annotated[float, doc("Replayed over observed, minus one.")]
    measured_ns: Annotated[int, doc("Replayed without host gaps ahead of and after the pipeline.")]
    alike_ns: Annotated[
        int, doc("With one time for every kind of operation of a stage: of its ranks and microbatches.")
    ]
    equalized_ns: Annotated[int, doc("With one time for every kind of operation.")]
    slowdown_ratio: Annotated[float, doc("measured_ns over equalized_ns.")]


class SlowPlaceInfo(msgspec.Struct, kw_only=True):
    """A stage beside the others, or a rank beside those of the same stage."""

    stage: Annotated[int, doc("The stage.")]
    rank: Annotated[int | None, doc("Its global rank; null of a stage.")]
    compute_ratio: Annotated[
        float, doc("How much longer it computes than the mean stage, or the other ranks: 0 for as long.")
    ]


class SuspectInfo(msgspec.Struct, kw_only=True):
    """One kind, stage, pipeline or rank, and what it costs."""

    axis: Annotated[str, doc("What it is one of: kind, stage, pipeline or rank.")]
    name: Annotated[str, doc("Its number (of a rank: the global one), or the name of the kind.")]
    step_ns: Annotated[int, doc("Mean step if it alone were equalized.")]
    saved_ns: Annotated[int, doc("How much shorter the mean step is then; negative: longer.")]
    slowdown_ratio: Annotated[float, doc("step_ns over the mean equalized step.")]
    share_ratio: Annotated[
        float | None, doc("saved_ns over what equalizing everything saves; null if that is nothing.")
    ]
    alone_ratio: Annotated[float, doc("Mean step with all but it equalized over the mean equalized step.")]
    without_ns: Annotated[list[int], doc("Per step, in the order of steps: the step if it alone were equalized.")]
    alone_ns: Annotated[list[int], doc("Per step, in the order of steps: the step if all but it were equalized.")]


class StragglersInfo(Head, kw_only=True):
    """Result of tracetool replay --equalize."""

    schema: SchemaId = "urn:tracetool:schema:1:stragglers"
    run: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    pipelines: Annotated[list[list[int]], doc("Global ranks of each pipeline, in stage order.")]
    observed_ns: Annotated[int, doc("Mean over the steps, as are the next four.")]
    replayed_ns: Annotated[int, doc("Observed order at measured costs.")]
    measured_ns: Annotated[int, doc("The same without host gaps ahead of and after the pipeline.")]
    alike_ns: Annotated[int, doc("With one time for every kind of operation of a stage.")]
    equalized_ns: Annotated[int, doc("With one time for every kind of operation.")]
    slowdown_ratio: Annotated[float, doc("measured_ns over equalized_ns.")]
    slow_stage: Annotated[SlowPlaceInfo | None, doc("The stage that computes longest; null of a single one.")]
    slow_rank: Annotated[
        SlowPlaceInfo | None, doc("The rank that is slowest beside those of its stage; null where each has one.")
    ]
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
        alike_ns=result.mean_ns(lambda s: s.alike_ns),
        equalized_ns=result.mean_ns(lambda s: s.equalized_ns),
        slow_stage=None if result.slow_stage is None else SlowPlaceInfo(**result.slow_stage._asdict()),
        slow_rank=None if result.slow_rank is None else SlowPlaceInfo(**result.slow_rank._asdict()),
        notes=list(map(str, result.notes)),
    )


def render_json(result: Stragglers, facts: RunFacts) -> bytes:
    """The report as indented JSON, with a final newline."""
    return as_json(stragglers_info(result, facts))


def render_text(result: Stragglers, facts: RunFacts, *, verbose: bool = True) -> bytes:
    """The report as text of at most 80 columns, names and paths aside.

    Args:
        result: The answer.
        facts: Facts about the Run and the call.
        verbose: Everything; else one screen.
    """
    ranks = "; ".join(", ".join(map(str, ranks)) for ranks in result.ranks)
    asked = f"  {format_count(len(result.steps), 'step')}, {format_count(len(result.ranks), 'pipeline')}"
    if not verbose:
        return _screen(result, asked)
    lines = [
        *_sentences(result),
        "",
        facts.name,
        f"{asked} (ranks {ranks})",
        "",
        *_steps_table(result.steps),
        f"  replay misses the observed steps by at most {result.fidelity_ratio:+.2%}",
        "",
        *_verdict(result),
        "",
        *_suspects_table(result, _SHOWN),
        "  step, saved, left: the mean step and its slowdown if this alone were equalized",
        "  (what is faster than the mean would take longer then)",
        "  alone: the slowdown if all but this were equalized",
        "",
        *map(Note, result.notes),
    ]
    return ("\n".join(wrapped(lines)) + "\n").encode()


def _screen(result: Stragglers, asked: str) -> bytes:
    axes = len({suspect.axis for suspect in result.suspects})
    notes = wrapped([f"{format_count(len(result.notes), 'note')} more, and everything tried: -v"])
    lines = wrapped([*_sentences(result), "", f"{asked}: mean of its steps", ""])
    with_parts = [*lines, *wrapped(_parts_table(result)), ""]
    beside = len(notes) + 3  # what the table of suspects has besides rows, and an empty line
    if lines_left(with_parts) - beside >= 2 * axes:
        lines = with_parts
    most = max(1, (lines_left(lines) - beside) // max(1, axes))
    return ("\n".join([*lines, *wrapped(_suspects_table(result, most)), "", *notes]) + "\n").encode()


def _sentences(result: Stragglers) -> list[str]:
    """What equal ranks would gain, what of it is the cut and what the ranks, and who is slow."""
    measured, alike, equalized = (
        result.mean_ns(of) for of in (lambda s: s.measured_ns, lambda s: s.alike_ns, lambda s: s.equalized_ns)
    )
    gained = f"Equal ranks and stages would take {format_duration(equalized)} a step instead of "
    lines = [f"{gained}{format_duration(measured)} ({equalized / measured - 1:+.1%})."]
    lines += [f"warning: {note}" for note in result.notes if note.code is NoticeCode.FIDELITY]
    gain = measured - equalized
    if result.slow_stage is not None:
        lines.append(
            f"Uneven stages, a matter of the cut, cost {_cost(alike - equalized, gain)}: stage "
            f"{result.slow_stage.stage} takes {result.slow_stage.compute_ratio:.1%} longer than the mean one."
        )
    sentence = f"Stragglers, slow beside the median rank of their stage, cost {_cost(measured - alike, gain)}: "
    slow = result.slow_rank
    if slow is None:
        return [
            *lines,
            f"{sentence}of microbatches alone, as each stage has one rank, and its slowness is the stage's.",
        ]
    if slow.compute_ratio < _SLOWER:
        return [*lines, f"{sentence}of microbatches alone, as no rank is slower than the others of its stage."]
    beside = f"{slow.compute_ratio:.1%} longer than those of the other ranks of stage {slow.stage}"
    lines.append(f"{sentence}actions of rank {slow.rank} take {beside}.")
    if any(note.code is NoticeCode.PEERS_UNMATCHED for note in result.notes):
        lines.append(
            "Ranks meet others inside computes (tensor parallel) whose waits are not known: peers of a slow rank look "
            "slow, too, and mending it saves more than its row says."
        )
    return lines


def _cost(ns: int, gain_ns: int) -> str:
    """What of a gain something costs; by itself where it is more: the mean that all get has the slow ones in it."""
    return f"{format_duration(ns)}{' of it' if ns <= gain_ns else ''}" if ns > 0 else "nothing"


def _parts_table(result: Stragglers) -> list[str]:
    """What each part costs the mean step."""
    times = {
        "as measured": result.mean_ns(lambda s: s.measured_ns),
        "ranks of a stage alike": result.mean_ns(lambda s: s.alike_ns),
        "stages alike, too": result.mean_ns(lambda s: s.equalized_ns),
    }
    rows = [(name, format_duration(ns), f"{ns / times['as measured'] - 1:+.1%}") for name, ns in times.items()]
    return table([("", "step", ""), (*rows[0][:2], ""), *rows[1:]])


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
        share = "" if worst.share_ratio is None else f", {worst.share_ratio:.0%} of what equal ranks and stages gain"
        lines.append(f"  {_name(worst)} costs most: {format_duration(worst.saved_ns)} of the step{share}")
    return lines


def _suspects_table(result: Stragglers, most: int) -> list[str]:
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
            for s in members[:most]
        ]
        if len(members) > most:
            more.append(f"{len(members) - most} more of {axis}")
    return table(rows) + ([f"  {', '.join(more)}: {Option.JSON}"] if more else [])


def _name(suspect: Suspect) -> str:
    return suspect.name if suspect.axis == "kind" else f"{suspect.axis} {suspect.name}"


def _saved(saved_ns: int) -> str:
    return format_duration(saved_ns) if saved_ns >= 0 else f"-{format_duration(-saved_ns)}"
