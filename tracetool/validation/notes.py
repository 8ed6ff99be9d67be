"""What to know about a comparison beside its figures: what was left out, what is unknown, what looks mistaken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.costs.over_links import crossing_uses
from tracetool.errors import Option
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.topology import Topology
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.validation.rows import PredictedRow

_UNITS = {1e-3: "seconds", 1e3: "microseconds", 1e6: "nanoseconds"}
"""What a step is in whose number is so many times that of milliseconds."""

_FACTOR = 5
"""A unit is suspected where a time is off by its factor, give or take this one."""

_LARGEST_GIB = 4096
"""No device holds so much."""


def notes_on(rows: Sequence[PredictedRow], pipeline: Pipeline) -> list[Notice]:
    """All that holds for these rows."""
    return [
        *_other_ranks(rows),
        *_other_units(rows),
        *_unknown_memory(rows),
        *_left_over(rows),
        *_beyond_replay(rows),
        *_collectives_kept(rows, pipeline),
    ]


def _other_units(rows: Sequence[PredictedRow]) -> list[Notice]:
    """Rows whose step or peaks are off by what another unit would make of them."""
    notes = []
    for factor, unit in _UNITS.items():
        off = [row for row in rows if (ratio := _measured_ratio(row)) and factor / _FACTOR < ratio < factor * _FACTOR]
        notes += _asked("step_ms", off, f"about {_power(factor)} of what is predicted: is it in {unit}?")
    large = [row for row in rows if any(gib and gib > _LARGEST_GIB for gib in row.measured.peak_allocated_gib or ())]
    notes += _asked("peak_allocated_gib", large, "more than any device holds: is it in bytes or MiB?")
    return notes


def _measured_ratio(row: PredictedRow) -> float | None:
    """Measured over predicted step time."""
    if row.prediction is None or row.measured.step_ms is None:
        return None
    return row.measured.step_ms * 1e6 / row.prediction.step_ns


def _power(factor: float) -> str:
    return f"1/{1 / factor:,.0f}" if factor < 1 else f"{factor:,.0f} times"


def _asked(field: str, rows: Sequence[PredictedRow], what: str) -> list[Notice]:
    return (
        [Notice(NoticeCode.MEASURED_ODD, f"{field} of {listed([row.measured.name for row in rows])} is {what}")]
        if rows
        else []
    )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a row, the first few of many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _other_ranks(rows: Sequence[PredictedRow]) -> list[Notice]:
    """Say which rows' measured peaks belong to no ranks that are known."""
    return [
        Notice(
            NoticeCode.NOT_COMPARED,
            f"{row.measured.name}: peaks of {len(row.measured.peak_bytes)} ranks were measured, "
            f"{len(row.peak_bytes)} were predicted: not compared",
        )
        for row in rows
        if row.prediction and row.measured.peak_bytes and len(row.measured.peak_bytes) != len(row.peak_bytes)
    ]


def _beyond_replay(rows: Sequence[PredictedRow]) -> list[Notice]:
    """Say what predictions have in them that ``replay`` leaves out."""
    outside = {row.prediction.outside_ns for row in rows if row.prediction is not None and row.prediction.outside_ns}
    return [
        Notice(
            NoticeCode.STEP_BEYOND_REPLAY,
            f"predicted steps include the host's time around a step, as the recording had it ({format_duration(ns)}), "
            "which replay leaves out",
        )
        for ns in sorted(outside)
    ]


def _collectives_kept(rows: Sequence[PredictedRow], pipeline: Pipeline) -> list[Notice]:
    """Say that links of rows are for messages alone, where collectives of several of the pipeline's ranks exist."""
    apart = Topology(tuple(map(str, range(len(pipeline.ranks)))))
    if not any(row.measured.links for row in rows) or not crossing_uses(pipeline, apart):
        return []
    return [
        Notice(
            NoticeCode.COLLECTIVES_KEPT,
            "links of rows hold for messages alone: collectives over several ranks of the pipeline take what they took "
            "when recorded, while replay has those cross the links, too",
        )
    ]


def _left_over(rows: Sequence[PredictedRow]) -> list[Notice]:
    """Say which rows' processes held more than their step needs, as their own figures tell."""
    by_count: dict[int, list[str]] = {}
    for row in rows:
        if row.prediction is not None and row.prediction.left_over_microbatches:
            by_count.setdefault(row.prediction.left_over_microbatches, []).append(row.measured.name)
    return [
        Notice(
            NoticeCode.PEAKS_OF_BUFFERS,
            f"{listed(names)}: between steps every rank had receive buffers for {count:,} more microbatches than the "
            "step has (static_allocated_gib), as a process keeps them that ran a larger step before; the predicted "
            "peaks have them too, replay has not",
        )
        for count, names in sorted(by_count.items())
    ]


def _unknown_memory(rows: Sequence[PredictedRow]) -> list[Notice]:
    """Say how many rows' measured peaks have no prediction to compare with."""
    lacking = [
        row
        for row in rows
        if row.prediction and row.measured.peak_bytes and None in row.prediction.metrics.peak_hbm_bytes
    ]
    if not lacking:
        return []
    return [
        Notice(
            NoticeCode.MEMORY_UNKNOWN,
            f"peaks of {format_count(len(lacking), 'predicted row')} are unknown: what their actions hold was not "
            "recorded (record with profile_memory=True, or name such a recording of the same model with "
            f"{Option.MEMORY_FROM})",
        )
    ]
