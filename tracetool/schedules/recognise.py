"""Which schedule an observed order is."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.schedules import ScheduleKind


class Fit(NamedTuple):
    """The named schedule that is nearest to an observed order.

    Attributes:
        schedule: The schedule.
        mismatches: Actions that would have to move to make the observed order this one.
        actions: Actions in all.
        first: Where the first rank leaves it, for people; None if none does.
    """

    schedule: Schedule
    mismatches: int
    actions: int
    first: str | None


def recognise(observed: Schedule) -> Schedule | None:
    """The named schedule whose order on every rank equals the observed one, or None.

    With few microbatches several schedules coincide; the plainest one is named.
    """
    fit = best_fit(observed)
    return fit.schedule if fit is not None and fit.mismatches == 0 else None


def best_fit(observed: Schedule) -> Fit | None:
    """The nearest named schedule of the observed shape; None if there is none for it, or no backward.

    A full backward counts as an input gradient with its weight gradient right behind it (torch merges such
    pairs), and the input gradient of the first stage is left out (torch runs that whole backward as W).
    """
    if not observed.has_backwards:
        return None
    fits = []
    for candidate in _candidates(observed):
        fit = _fit(observed, candidate)
        if fit.mismatches == 0:
            return fit
        fits.append(fit)
    return min(fits, key=lambda fit: fit.mismatches, default=None)


def _candidates(observed: Schedule) -> list[Schedule]:
    candidates: list[Schedule] = []
    for kind in _kinds_of(observed.shape):
        for options in kind.options_in(observed):
            try:
                built = kind.build(observed.shape, options).validate()
            except UnsupportedShape:
                continue
            if built not in candidates:
                candidates.append(built)
    return candidates


def _kinds_of(shape: PipelineShape) -> list[ScheduleKind]:
    """Schedules of as many stages per rank, placed so, the plainest first."""
    ranked = [
        (kind.recognition_rank, kind)
        for kind in map(SCHEDULES.get, SCHEDULES.names())
        if kind.recognition_rank is not None
        and (kind.least_chunks > 1) == (shape.chunks > 1)
        and (shape.chunks == 1 or kind.placement == shape.placement)
    ]
    return [kind for _, kind in sorted(ranked, key=lambda one: one[0])]


def _fit(observed: Schedule, candidate: Schedule) -> Fit:
    mismatches, actions, first = 0, 0, None
    for rank, (one, other) in enumerate(zip(observed.orders, candidate.orders, strict=True)):
        ours, theirs = _parts(one), _parts(other)
        actions += len(ours)
        if ours == theirs:
            continue
        same = sum(block.size for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks())
        mismatches += max(len(ours), len(theirs)) - same
        if first is None:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), -1)
            first = f"rank {rank}, action {at}: {ours[at]} where {candidate.name} has {theirs[at]}"
    return Fit(candidate, mismatches, actions, first)


def _parts(order: Sequence[Action]) -> list[Action]:
    parts: list[Action] = []
    for action in order:
        stage, kind, microbatch = action
        if kind is ActionKind.BACKWARD:
            parts.append(Action(stage, ActionKind.BACKWARD_INPUT, microbatch))
            parts.append(Action(stage, ActionKind.BACKWARD_WEIGHT, microbatch))
        else:
            parts.append(action)
    return [a for a in parts if not (a.stage == 0 and a.kind is ActionKind.BACKWARD_INPUT)]
