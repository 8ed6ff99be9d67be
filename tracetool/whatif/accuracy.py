"""How far off predictions were on recorded runs: of step times, and of what one step differs by from another.

The figures are ``seen_errors``'; tests hold them to every measured row there is (``tracetool help accuracy``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BLOCKING
from tracetool.schedules import SCHEDULES
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.layers import NO_ERROR, LayersError, LayersGain, layers_error
from tracetool.whatif.seen_errors import SEEN

if TYPE_CHECKING:
    from tracetool.model.pipeline import LayerOverlap, P2PMode, Pipeline
    from tracetool.model.scenario import Scenario, Taken
    from tracetool.model.schedule import Schedule
    from tracetool.model.topology import Topology
    from tracetool.whatif.seen_errors import Backwards, Change

_WIDER = 1.25
"""Errors given are so many times the largest seen: then of pairs of runs that were held back at least 95 in 100 lie
within what the others tell (a test draws them)."""


@dataclass(frozen=True, slots=True)
class KnownError:
    """How far off predictions like one were on recorded runs.

    Attributes:
        step_ratio: Largest error of the step time.
        own_ratio: By how much replay misses its own recording.
        topology: The links that it is over.
        microbatches: Microbatches of its step.
        is_split: Whether its costs are of a recording with split backwards, which profilers slow down most.
        layers: Of it, what layers that do not run as recorded add.
    """

    step_ratio: float
    own_ratio: float
    topology: Topology
    microbatches: int
    is_split: bool = False
    layers: LayersError = NO_ERROR


def known_error(
    measured: Pipeline, schedule: Schedule, p2p: P2PMode, scenario: Scenario, own_ratio: float
) -> KnownError | None:
    """What is known of the error of a prediction, over all pairs of recorded H100 runs; None if none was like it.

    They had four ranks with one stage each (two, re-cut, of as many microbatches as recorded, in ``interleaved``), half
    to twice the recorded microbatches, and at most one DC boundary; anything else was not tried, nor receives posted
    ahead, nor interleaved stages in blocking batches.

    Args:
        measured: The recorded pipeline, its stages not cut anew.
        schedule: The order that was replayed.
        p2p: How its transfers were issued.
        scenario: The what-if.
        own_ratio: By how much replay misses the recording: other orders it misses by as much at least.
    """
    shape = measured.observed.shape
    kind = SCHEDULES.get(schedule.name) if schedule.name in SCHEDULES else None
    is_recut = kind is not None and kind.is_compared_recut and schedule.shape == replace(shape, chunks=2)
    microbatches = schedule.shape.microbatches
    is_as_long = shape.microbatches <= 2 * microbatches and microbatches <= 2 * shape.microbatches
    is_whole = is_as_long and schedule.shape == replace(shape, microbatches=microbatches)
    tried = shape.ranks == 4 and shape.chunks == 1 and (is_whole or is_recut)
    boundaries = len(scenario.topology.boundaries())
    tried = tried and kind is not None and kind.is_compared and boundaries <= 1 and p2p != "posted-ahead"
    tried = tried and not (is_recut and p2p in BLOCKING)
    tried = tried and scenario.interference and scenario.pipelines_on_link == 1 and schedule.has_backwards
    layers = layers_error(measured)
    if not tried or layers is None or any(rank.load is None or rank.load.device != "H100" for rank in measured.ranks):
        return None
    is_split = any(ActionKind.BACKWARD_WEIGHT in stage.costs for stage in measured.stages)
    given = SEEN.given_step_ratio["split" if is_split else "recut" if is_recut else "whole"]
    step = max(given, own_ratio) + layers.way_ratio + layers.links_ratio
    return KnownError(step, own_ratio, scenario.topology, microbatches, is_split, layers)


def with_copies(known: KnownError | None, taken: Taken) -> KnownError | None:
    """What is known where ranks are copies: as much more as recorded ranks of their stages are apart.

    Between two results of the same copies that is the same, so that it is no part of the error of a change. Where
    nothing tells how far ranks are apart, the error of a step is unknown.
    """
    if known is None or not taken.copied_ranks:
        return known
    spread = taken.copied_spread_ratio
    return None if spread is None else replace(known, step_ratio=known.step_ratio + spread)


def change_of(base: KnownError, other: KnownError) -> Change:
    """In what two predictions differ."""
    if (base.topology, base.microbatches) != (other.topology, other.microbatches):
        return "scenario"
    return "links" if base.topology.boundaries() else "inside"


def change_error_ratio(base: KnownError | None, other: KnownError | None, change_ratio: float) -> float | None:
    """How far off a predicted change of the step may be, in shares of the base's step; None if that is not known.

    Args:
        base: What is known of the base's prediction.
        other: What is known of the other one.
        change_ratio: Step of the other over that of the base, minus one.
    """
    if base is None or other is None:
        return None
    backwards: Backwards = "split" if base.is_split or other.is_split else "whole"
    given = widened(SEEN.largest_of_change(backwards, change_of(base, other)))
    # Of the longer step: whichever of the two is called the base, a change is within the error or is not.
    error = max(given, base.own_ratio, other.own_ratio) + base.layers.beside(other.layers)
    return error * max(1.0, 1 + change_ratio)


class LayersStep(NamedTuple):
    """A step, and what is known of its error.

    Attributes:
        step_ns: The step.
        known_error: How far off such predictions were; None if nothing was like it.
        layers_error: How far off it may be for its layers; None if that is not known.
    """

    step_ns: int
    known_error: KnownError | None
    layers_error: LayersError | None


def layers_gain(overlap: LayerOverlap, plain: LayersStep, other: LayersStep) -> LayersGain:
    """What layers that overlap make of a step.

    Where nothing is known of the error of such replays, that of the layers alone stands: replays of the same order miss
    it alike.

    Args:
        overlap: How they overlap.
        plain: The step with layers as they are, over the same links.
        other: The step with layers that overlap.
    """
    change = other.step_ns / plain.step_ns - 1
    error = change_error_ratio(plain.known_error, other.known_error, change)
    if error is None and plain.layers_error is not None and other.layers_error is not None:
        error = plain.layers_error.beside(other.layers_error) * max(1.0, 1 + change)
    return LayersGain(
        way=overlap.way, tensor_bandwidth_bytes_per_s=overlap.bandwidth_bytes_per_s, step_ns=other.step_ns,
        plain_ns=plain.step_ns, error_ratio=error, is_bound=overlap.is_bound,
    )  # fmt: skip


def widened(seen_ratio: float) -> float:
    """The error to give where the largest seen was this: wider, and rounded up to half a percent."""
    return math.ceil(round(seen_ratio * _WIDER * 200, 6)) / 200


def is_within_error(base: KnownError | None, other: KnownError | None, change_ratio: float) -> bool:
    """Whether a predicted change may be none: no larger than its error, or than steps that are repeated scatter.

    Where nothing is known of one of them, it is as far off as the other at least; where of neither, nothing tells.

    Args:
        base: What is known of the base's prediction.
        other: What is known of the other one.
        change_ratio: Step of the other over that of the base, minus one.
    """
    error = change_error_ratio(base or other, other or base, change_ratio)
    return abs(change_ratio) <= max(RELEVANT_RATIO, error or 0.0)


def format_error(ratio: float) -> str:
    """An error in percent, never rounded down: as ``3.5%`` or, from 5 % on, ``7%``."""
    tenths = math.ceil(round(ratio * 1000, 6))
    return f"{tenths / 10:.1f}%" if tenths < 50 and tenths % 10 else f"{math.ceil(tenths / 10)}%"
