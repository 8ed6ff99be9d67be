"""The typical step of a side: the median of every cost over the steps that ran its usual order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tracetool.ingestion.recording import pipeline_of
from tracetool.model.pipeline import ActionCost, Pipeline, StageProfile, TailPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.ingestion.recording import Recording
    from tracetool.model.action import ActionKind
    from tracetool.model.pipeline import RankProfile


def typical(recordings: Sequence[Recording]) -> Pipeline:
    """The pipeline whose costs are the medians over steps.

    Args:
        recordings: At least one, with a step. Steps of another order than the most usual one are left out.
    """
    each = [pipeline_of(recording, step) for recording in recordings for step in recording.steps]
    usual = Counter((p.observed.orders, p.p2p) for p in each).most_common(1)[0][0]
    alike = [p for p in each if (p.observed.orders, p.p2p) == usual]
    first = alike[0]
    return replace(
        first,
        stages=tuple(_stage([p.stages[s.stage] for p in alike]) for s in first.stages),
        ranks=tuple(_rank([p.ranks[place] for p in alike]) for place in range(len(first.ranks))),
    )


def beside_ratios(recordings: Sequence[Recording]) -> dict[tuple[int, str], float]:
    """Per stage and kind, for which share of its actions' time a communication kernel ran beside them.

    Args:
        recordings: At least one; kinds are left out that one of their steps does not tell it of.
    """
    shares: dict[tuple[int, str], list[float | None]] = {}
    for recording in recordings:
        for step in recording.steps:
            for name, action in step.actions.items():
                whole = sum(action.duration_ns)
                share = sum(action.beside_ns) / whole if action.beside_ns and whole else None
                shares.setdefault((int(name[:-1]), name[-1]), []).append(share)
    known = {key: [each for each in found if each is not None] for key, found in shares.items()}
    return {key: median(each) for key, each in known.items() if each and len(each) == len(shares[key])}


def _stage(alike: Sequence[StageProfile]) -> StageProfile:
    first = alike[0]
    costs: dict[ActionKind, tuple[ActionCost, ...]] = {}
    for kind in first.costs:
        rows = [stage.costs[kind] for stage in alike]
        costs[kind] = tuple(
            ActionCost(
                round(median(cost.duration_ns for cost in of_microbatch)),
                _median([cost.held_bytes for cost in of_microbatch]),
                _median([cost.peak_bytes for cost in of_microbatch]),
            )
            for of_microbatch in zip(*rows, strict=True)
        )
    return replace(
        first,
        costs=costs,
        forward_payload_bytes=_median([s.forward_payload_bytes for s in alike]),
        backward_payload_bytes=_median([s.backward_payload_bytes for s in alike]),
        forward_transfer_ns=round(median(s.forward_transfer_ns for s in alike)),
        backward_transfer_ns=round(median(s.backward_transfer_ns for s in alike)),
    )


def _rank(alike: Sequence[RankProfile]) -> RankProfile:
    first = alike[0]
    parts = [[(part.kind, part.meet is None) for part in rank.tail] for rank in alike]
    same = [rank for rank, shape in zip(alike, parts, strict=True) if shape == parts[0]]
    tail = tuple(
        TailPart(first.tail[place].kind, round(median(r.tail[place].duration_ns for r in same)), first.tail[place].meet)
        for place in range(len(first.tail))
    )
    return replace(
        first,
        static_bytes=_median([r.static_bytes for r in alike]),
        tail_peak_bytes=round(median(r.tail_peak_bytes for r in alike)),
        tail=tail,
    )


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if len(known) == len(values) else None
