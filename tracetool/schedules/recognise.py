"""Which schedule an observed order is."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import Placement, Schedule

_ONE_CHUNK = ("1f1b", "gpipe", "eager-1f1b", "geopipe", "zb-h1", "zb-h2")
_SEVERAL_CHUNKS: dict[Placement, tuple[str, ...]] = {
    "loop": ("interleaved", "looped-bfs", "interleaved-zero-bubble"),
    "v": ("zb-v", "dualpipev", "v-half", "v-min", "hanayo"),
    "bidirectional": ("dualpipe", "chimera"),
}


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
    shape = observed.shape
    found = []
    for name in _ONE_CHUNK if shape.chunks == 1 else _SEVERAL_CHUNKS[shape.placement]:
        extra = _extra_forwards(observed) if name == "geopipe" else None
        if name == "geopipe" and (extra is None or not any(extra)):
            continue
        for group in (None, _group(observed)) if name == "interleaved" else (None,):
            try:
                built = build_schedule(name, shape, extra_forwards=extra, group=group)
            except UnsupportedShape:
                continue
            if built not in found:
                found.append(built)
    return found


def _group(observed: Schedule) -> int | None:
    """Forwards of the last rank's first stage ahead of another action: Megatron's group; None if there are none."""
    order = observed.orders[-1]
    stage = observed.shape.ranks - 1
    ahead = (i for i, a in enumerate(order) if a.kind is not ActionKind.FORWARD or a.stage != stage)
    return next(ahead, len(order)) or None


def _extra_forwards(observed: Schedule) -> tuple[int, ...] | None:
    """Forwards of each rank ahead of its first backward, beyond 1F1B's; None if they grow downstream."""
    extra = []
    for rank, order in enumerate(observed.orders):
        ahead = next((i for i, a in enumerate(order) if a.kind is not ActionKind.FORWARD), len(order))
        # The forward just before the first backward belongs to the first (F, B) pair.
        extra.append(max(0, ahead - 1 - (observed.shape.ranks - rank - 1)))
    return tuple(extra) if extra == sorted(extra, reverse=True) else None


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
