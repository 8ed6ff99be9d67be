"""What reports say: of their steps, where they hold no recording, and of the schedules that they replayed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.comparison.values import Key, Values
from tracetool.model.notice import Notice, NoticeCode
from tracetool.tables.metrics import IN_REPORTS, OF_RANK, OF_REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.comparison.report import ReportInfo

StepOf = tuple[str, tuple[int, ...], int]
"""What tells a step from all others: digest of the traces, ranks of the pipeline, number."""

_OVER_BASELINE = ("reduction", "step_change_ratio", "step_change_error_ratio")
_WORDS = frozenset(
    ("$schema", "schema_version", "tool_version", "command", "notes", "warnings", "remark", "name", "refused",
     "scenario", "taken", "choice")
)  # fmt: skip
"""What of a report is no figure, but words or what was asked."""


def values_of_reports(reports: Sequence[ReportInfo], known: set[StepOf]) -> tuple[dict[Key, Values], list[Notice]]:
    """Values of reports, each step once, and notes on schedules that were replayed in several ways.

    Args:
        reports: Those of one side.
        known: Steps that a recording of the side tells.
    """
    ways: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        for result in report.results:
            told = "".join(f", {name} {value}" for name, value in result.chosen.items())
            ways[result.schedule].add(f"{result.variant}, {result.microbatches} microbatches{told}")
    rows: dict[Key, dict[StepOf, float]] = defaultdict(dict)
    for report in reports:
        of = report.run.digest, tuple(report.run.global_ranks)
        looked_at = (*of, report.step.number)
        for result in report.results:
            if len(ways[result.schedule]) > 1:
                continue
            for name in OF_REPLAY:
                for number, value in result.by_step(name, report.step.number).items():
                    rows[Key(name, result.schedule)].setdefault((*of, number), value)
            _add_peak(rows, result.peak_hbm_bytes, result.schedule, looked_at)
        if report.recording is None and looked_at not in known:
            _add_step(rows, report, looked_at)
    several = [
        Notice(
            NoticeCode.NOT_COMPARED,
            f"{name} was replayed in several ways on one side ({'; '.join(sorted(found))}): it is not compared",
        )
        for name, found in ways.items()
        if len(found) > 1
    ]
    return {key: Values(tuple(found.values())) for key, found in rows.items()}, several


def _add_step(rows: dict[Key, dict[StepOf, float]], report: ReportInfo, step: StepOf) -> None:
    for name in IN_REPORTS:
        rows[Key(name)].setdefault(step, getattr(report.step, name))
    _add_peak(rows, report.step.peak_hbm_bytes, "", step)
    for name in OF_RANK:
        for rank, size in zip(report.run.global_ranks, getattr(report.step, name), strict=False):
            if size is not None:
                rows[Key(name, f"rank{rank}")].setdefault(step, size)


def _add_peak(rows: dict[Key, dict[StepOf, float]], sizes: Sequence[int | None], scope: str, step: StepOf) -> None:
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        rows[Key("peak_hbm_bytes", scope)].setdefault(step, max(known))


def scenario_of(reports: Sequence[ReportInfo]) -> Mapping[str, Any] | None:
    """What the reports asked; None if they asked several things."""
    asked = [report.asked for report in reports]
    return asked[0] if asked and all(each == asked[0] for each in asked) else None


def figures_of(path: Path) -> dict[str, object]:
    """Every figure of a report by its path, as ``results[geopipe].feasible``; words are none.

    Args:
        path: A report that was read already.
    """
    report = msgspec.json.decode(path.read_bytes())
    # Reductions and changes are over the baseline, which may be another schedule.
    over = (report.get("baseline") or {}).get("schedule")
    return {f"{at} over {over}" if at.endswith(_OVER_BASELINE) else at: value for at, value in _figures(report, "")}


def _figures(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        if path == "baseline":
            path = f"baseline[{value.get('schedule')}]"
        if path.endswith(".jitter"):
            path = f"{path}[{value.get('seed')}]"
        for key, of_key in value.items():
            if key not in _WORDS:
                yield from _figures(of_key, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            # Schedules by their names: two reports need not have asked for the same ones.
            named = each.get("schedule", place) if isinstance(each, dict) else place
            yield from _figures(each, f"{path}[{named}]")
    else:
        yield path, value
