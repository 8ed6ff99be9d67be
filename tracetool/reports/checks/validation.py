"""What ``tracetool validate`` prints: a table for people, JSON for scripts.

The structs are the schema: ``schemas/validation.schema.json`` is made from them. Keys may be added within a major
version; none is renamed or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tracetool.reports import as_json
from tracetool.reports.answer.text import table
from tracetool.reports.lines import Note, lines_left, terminal_width, wrapped
from tracetool.tables.fields import Head, SchemaId, as_struct, doc
from tracetool.units import format_count, format_duration
from tracetool.validation.notes import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.validation import Validation
    from tracetool.validation.rows import PredictedRow


class InputInfo(msgspec.Struct, kw_only=True):
    """An input of the comparison."""

    name: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over its content.")]


class RowInfo(msgspec.Struct, kw_only=True):
    """One measured configuration and its prediction."""

    name: Annotated[str, doc("Name of the row.")]
    measured_ms: Annotated[float | None, doc("Measured step time.")]
    predicted_ms: Annotated[float | None, doc("Predicted step time; null if it could not be predicted.")]
    error_ratio: Annotated[float | None, doc("Predicted over measured step time, minus one.")]
    peak_measured_bytes: Annotated[list[int | None], doc("Measured peak of each rank; empty if none was measured.")]
    peak_predicted_bytes: Annotated[
        list[int | None],
        doc("Predicted peak of each rank, in the measured ones' order; null where unknown, empty if not predicted."),
    ]
    left_over_bytes: Annotated[
        list[int],
        doc(
            "Of the predicted peak of each pipeline rank, receive buffers that the row's process had from larger steps "
            "before, as static_allocated_gib tells; empty where it does not."
        ),
    ]
    reason: Annotated[str | None, doc("Why it could not be predicted.")]
    schedule: Annotated[str | None, doc("Schedule that was replayed.")]
    p2p: Annotated[str | None, doc("How its transfers were issued.")]
    stages: Annotated[int | None, doc("Its pipeline stages.")]
    microbatches: Annotated[int, doc("Microbatches per step.")]
    nccl: Annotated[str | None, doc("How communication was set up, as the row says.")]
    remarks: Annotated[list[str], doc("How costs or memory came about.")]


class ValidationInfo(Head, kw_only=True):
    """Result of tracetool validate."""

    schema: SchemaId = "urn:tracetool:schema:1:validation"
    run: Annotated[InputInfo, doc("The Run that predictions were made from.")]
    memory_run: Annotated[InputInfo | None, doc("The Run that memory figures are from; null if the same.")]
    measured: Annotated[InputInfo, doc("The file of measured steps.")]
    step: Annotated[int, doc("Step of the Run that costs are from.")]
    recorded_ms: Annotated[float, doc("What that step took, with the profiler at work.")]
    replayed_ms: Annotated[float, doc("What replay of its own order gives for it.")]
    rows: Annotated[list[RowInfo], doc("One per row of the file, in its order.")]
    mape_ratio: Annotated[float | None, doc("Mean absolute error of the step times; null if none can be compared.")]
    max_error_ratio: Annotated[float | None, doc("Largest absolute error of a step time.")]
    max_peak_error_ratio: Annotated[float | None, doc("Largest absolute error of a rank's peak.")]
    kendall_tau: Annotated[
        float | None, doc("Kendall's tau-b of predicted and measured step times; null if either is all the same.")
    ]
    not_predicted: Annotated[int, doc("Rows that could not be predicted.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]


@dataclass(frozen=True, slots=True)
class ValidationFacts:
    """What the output says about inputs and call."""

    run: InputInfo
    memory_run: InputInfo | None
    measured: InputInfo
    tool_version: str
    command: str


def validation_facts(
    names: Sequence[str], manifests: Sequence[Mapping[str, Any]], measured: InputInfo, command: str
) -> ValidationFacts:
    """Facts from the manifests of the Run and, where there is one, the Run of the memory figures."""
    from tracetool.version import __version__

    runs = [
        InputInfo(name=name, digest=str(manifest.get("digest", "")))
        for name, manifest in zip(names, manifests, strict=True)
    ]
    return ValidationFacts(runs[0], runs[1] if len(runs) > 1 else None, measured, __version__, command)


def validation_info(done: Validation, facts: ValidationFacts) -> ValidationInfo:
    """The comparison as the structs of the schema."""
    return as_struct(
        ValidationInfo,
        done.sources.run.pipeline,
        done,
        facts,
        recorded_ms=done.recorded_ns / 1e6,
        replayed_ms=done.replayed_ns / 1e6,
        rows=[_row(row) for row in done.rows],
        notes=list(map(str, done.notes)),
    )


def _row(row: PredictedRow) -> RowInfo:
    prediction = row.prediction
    return as_struct(
        RowInfo,
        row,
        row.measured,
        measured_ms=row.measured.step_ms,
        predicted_ms=None if prediction is None else prediction.step_ns / 1e6,
        peak_measured_bytes=list(row.measured.peak_bytes),
        peak_predicted_bytes=list(row.peak_bytes),
        left_over_bytes=[]
        if prediction is None or not prediction.left_over_microbatches
        else list(prediction.left_over_bytes),
        schedule=None if prediction is None else prediction.schedule.name,
        p2p=None if prediction is None else prediction.p2p,
        stages=None if prediction is None else prediction.schedule.shape.stages,
        remarks=[] if prediction is None else list(map(str, prediction.remarks)),
    )


def render_json(done: Validation, facts: ValidationFacts) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(validation_info(done, facts))


_HEAD = ("", "ms", "predicted", "error", "peak GiB", "predicted GiB", "error")
_STEPS = 4
"""The columns that are of steps, behind which those of memory stand."""
_PEAKS = "  peak GiB: rN is the pipeline rank, from 0, whose predicted peak is furthest off"
_MOST_NOTES = 1


def render_text(done: Validation, facts: ValidationFacts, *, verbose: bool = True) -> bytes:
    """The answer, a table, what could not be predicted and why; as wide as the terminal at most.

    Args:
        done: The comparison.
        facts: About inputs and call.
        verbose: Everything; else one screen: the rows that are furthest off.
    """
    if not verbose:
        return _screen(done, facts)
    lines = [*_summary(done), "", facts.measured.name]
    lines.append(f"  predicted from {facts.run.name}, step {done.sources.run.pipeline.step}")
    if facts.memory_run is not None:
        lines.append(f"  memory from {facts.memory_run.name}")
    took, replayed = format_duration(done.recorded_ns), format_duration(done.replayed_ns)
    lines.append(f"  which took {took} with the profiler, {replayed} replayed")
    after = [] if done.max_peak_error_ratio is None else [_PEAKS]
    after += _folded(done, lambda row: () if row.reason is None else (f"not predicted: {row.reason}",))
    after += _folded(done, lambda row: list(map(str, row.prediction.remarks)) if row.prediction else ())
    after += map(Note, done.notes)
    return ("\n".join([*wrapped(lines), "", *_figures(done.rows), "", *wrapped(after)]) + "\n").encode()


def _screen(done: Validation, facts: ValidationFacts) -> bytes:
    named = f"  {facts.measured.name} from step {done.sources.run.pipeline.step}{_host_time(done)}"
    lines = wrapped([*_summary(done), "", named, ""])
    reasons = _folded(done, lambda row: () if row.reason is None else (f"not predicted: {row.reason}",))
    after = wrapped([*([] if done.max_peak_error_ratio is None else [_PEAKS]), *reasons[:_MOST_NOTES]])
    hidden = format_count(len(reasons[_MOST_NOTES:]) + len(done.notes), "note")
    predicted = [row for row in done.rows if row.prediction is not None]
    most = max(3, lines_left(lines) - len(after) - 4)
    shown = sorted(predicted, key=lambda row: -abs(row.error_ratio or 0))[:most]
    figures = _figures([row for row in done.rows if any(row is one for one in shown)])
    if figures and _HEAD[_STEPS] not in figures[0]:
        after = wrapped(reasons[:_MOST_NOTES])
    left = len(done.rows) - len(shown)
    after += wrapped([f"{format_count(left, 'row')} and {hidden} more: -v"])
    return ("\n".join([*lines, *figures, "", *after]) + "\n").encode()


def _host_time(done: Validation) -> str:
    """Why steps are longer than those of a replay."""
    outside_ns = max((row.prediction.outside_ns for row in done.rows if row.prediction is not None), default=0)
    words = f", with the host's {format_duration(outside_ns)} around a step, which replay and advise leave out"
    return words if outside_ns else ""


def _figures(shown: Sequence[PredictedRow]) -> list[str]:
    """Rows as a table, those of memory where there is room and something to tell."""
    rows = [_HEAD, *(_cells(row) for row in shown)]
    columns = [i for i in range(len(_HEAD)) if any(row[i] for row in rows[1:])]
    if sum(2 + max(len(row[i]) for row in rows) for i in columns) > terminal_width():
        columns = [i for i in columns if i < _STEPS]
    return table([[row[i] for i in columns] for row in rows]) if columns else []


def _cells(row: PredictedRow) -> tuple[str, ...]:
    measured = row.measured.step_ms
    prediction = row.prediction
    return (
        row.measured.name,
        "-" if measured is None else f"{measured:.1f}",
        "-" if prediction is None else f"{prediction.step_ns / 1e6:.1f}",
        _signed(row.error_ratio),
        *_peak_cells(row),
    )


def _peak_cells(row: PredictedRow) -> tuple[str, str, str]:
    """Of the rank whose peak is furthest off, else of the largest measured or predicted peak."""
    errors = [(abs(error), rank) for rank, error in enumerate(row.peak_error_ratios) if error is not None]
    measured, predicted = row.measured.peak_bytes, row.peak_bytes
    if errors:
        rank = max(errors, key=lambda rank_error: (rank_error[0], -rank_error[1]))[1]
        return f"r{rank} {_size(measured[rank])}", _size(predicted[rank]), _signed(row.peak_error_ratios[rank])
    return _size(max(_known(measured), default=None)), _size(max(_known(predicted), default=None)), ""


def _known(sizes: Sequence[int | None]) -> list[int]:
    return [size for size in sizes if size is not None]


def _size(value: int | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f}"


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.2%}".replace("-0.00%", "+0.00%")


def _folded(done: Validation, said: Callable[[PredictedRow], Sequence[str]]) -> list[str]:
    """Each thing said of rows once, with the rows it is about."""
    about: dict[str, list[str]] = {}
    for row in done.rows:
        for text in said(row):
            about.setdefault(text, []).append(row.measured.name)
    return [f"  {listed(names)}: {text}" for text, names in about.items()]


def _summary(done: Validation) -> list[str]:
    """How far off predictions are, in a sentence."""
    compared = f"{len(done.errors)} of {len(done.rows)} rows compared, {done.not_predicted} not predicted"
    peak = done.max_peak_error_ratio
    peaks = "" if peak is None else f"; peak memory: worst {peak:.2%}"
    if done.mape_ratio is None or done.max_error_ratio is None:
        return [f"{compared}{peaks}."]
    worst = max(done.rows, key=lambda row: abs(row.error_ratio or 0))
    tau = "" if done.kendall_tau is None else f", Kendall tau of the ranking {done.kendall_tau:.3f}"
    return [
        f"MAPE {done.mape_ratio:.2%}, worst {_signed(worst.error_ratio)} ({worst.measured.name}){tau}: "
        f"{compared}{peaks}."
    ]
