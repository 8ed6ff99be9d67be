"""Schedules as other people write them.

Options that only some schedules heed: told to others alone, they would be without effect.

Which schedule an observed order is.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, ScenarioError, UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.scenario import Choice
from tracetool.model.schedule import OBSERVED
from tracetool.schedules import SCHEDULES, Heeded, is_sourced, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.schedules import ScheduleKind


def normalised(name: str) -> str:
    """A name without case, separators and torch's ``Schedule`` in front."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return bare.removeprefix("schedule") or bare


def schedule_name(name: str) -> str:
    """The registered name of a schedule.

    Raises:
        UnknownName: If none is like it; the message suggests close names.
    """
    if is_sourced(name) or name in SCHEDULES.builtin_names:
        return name
    known = {normalised(registered): registered for registered in SCHEDULES.names()}
    asked = normalised(name)
    if asked in known:
        return known[asked]
    aliases = {
        normalised(alias): registered for registered in known.values() for alias in SCHEDULES.get(registered).aliases
    }
    if asked in aliases:
        return aliases[asked]
    SCHEDULES.get(name)
    return name


def named_here(asked: str) -> str | None:
    """What to tell who named a schedule by a word that is not its name here; None if nothing is to be told.

    Raises:
        UnknownName: If no schedule is like it.
    """
    name = schedule_name(asked)
    is_ours = normalised(asked) == normalised(name) and not asked.lower().startswith("schedule")
    return None if is_ours else f"{asked} is {name} here"


def check_schedules(names: Iterable[str]) -> list[str]:
    """Refuse schedules that there are not, and files that hold none, before the long work.

    Returns:
        The names as registered, where they were written otherwise (torch's classes, other cases).

    Raises:
        UnknownName: If there is none of such a name.
        InvalidSchedule: If a file cannot be read or holds none.
    """
    known = [schedule_name(name) for name in names]
    for name in known:
        kind_of(name)
    return list(dict.fromkeys(known))


def beside(name: str, folder: Path | None) -> str:
    """A name that was written in a folder: an order that it says where to find is found from there."""
    if folder is None or not is_sourced(name):
        return name
    source, _, file = name.partition(":")
    return f"{source}:{folder / file}"


_OPTIONS: dict[Heeded, Option] = {
    "extra forwards": Option.EXTRA_FORWARDS,
    "group": Option.GROUP,
    "overlap ratio": Option.OVERLAP_RATIO,
    "time limit": Option.TIME_LIMIT,
}


def refuse_unheeded(option: Heeded, names: Sequence[str], observed: Schedule | None = None) -> None:
    """Refuse an option that none of some schedules heeds.

    Args:
        option: What was asked for.
        names: The schedules, by their names here.
        observed: The order found in the trace.

    Raises:
        ScenarioError: If none of them heeds it, naming those that do.
        InvalidSchedule: If an order from a file cannot be read.
    """
    if any(_heeds(name, option, observed) for name in names):
        return
    takers = takers_of(option)
    raise ScenarioError(
        f"{_OPTIONS[option]} has no effect on {_listed(names)}: it is for {' and '.join(takers)}.",
        hint=f"leave it out, or ask for {' or '.join(takers)}",
    )


def takers_of(option: Heeded) -> list[str]:
    """The schedules that heed an option."""
    return [name for name in SCHEDULES.names() if SCHEDULES.get(name).takes(option)]


def refuse_chunks(names: Sequence[str], observed: Schedule) -> None:
    """Refuse a number of stages per rank to cut into where nothing is cut.

    Raises:
        ScenarioError: If the recording has several already, or none of the schedules takes several.
    """
    if observed.shape.chunks > 1:
        raise ScenarioError(
            f"the recording has {observed.shape.chunks} stages per rank already, which are not cut again.",
            hint=f"leave {Option.CHUNKS} out",
        )
    if any(takes_chunks(kind_of(name)) for name in names):
        return
    raise ScenarioError(
        f"{Option.CHUNKS} has no effect on {_listed(names)}: it cuts stages for schedules of several per rank, and "
        "an order "
        "from a file has its own number.",
        hint="leave it out, or ask for interleaved, zb-v, hanayo ...",
    )


def choice_of(
    name: str, extra_forwards: tuple[int, ...] | None, chunks: int | None, time_limit_s: float | None
) -> Choice:
    """What of the options a schedule heeds, and which order a file holds.

    Raises:
        InvalidSchedule: If an order from a file cannot be read.
    """
    kind = kind_of(name)
    return Choice(
        extra_forwards=extra_forwards if kind.takes("extra forwards") else None,
        chunks=chunks if takes_chunks(kind) else None,
        time_limit_s=time_limit_s if kind.takes("time limit") else None,
        order=None if kind.given is None else sha256(kind.given.to_csv().encode()).hexdigest(),
    )


def takes_chunks(kind: ScheduleKind) -> bool:
    """Whether stages are cut into several per rank for it, as many as asked for."""
    return kind.given is None and kind.least_chunks > 1 and kind.placement != "bidirectional"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _heeds(name: str, option: Heeded, observed: Schedule | None) -> bool:
    if name == OBSERVED:
        return option == "overlap ratio" and observed is not None and any(observed.overlaps)
    return kind_of(name).takes(option)


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


# Of each plan of an exploration it is asked again, and as many schedules are built for it as have the shape.
@lru_cache(maxsize=64)
def recognise(observed: Schedule) -> Schedule | None:
    """The named schedule whose order on every rank equals the observed one, or None.

    With few microbatches several schedules coincide; the plainest one is named, ours before a third party's.
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


def _candidates(observed: Schedule) -> Iterator[Schedule]:
    """Schedules of a shape, those of third parties once nothing else is left."""
    candidates: list[Schedule] = []
    for are_plugins in (False, True):
        for kind in _kinds_of(observed.shape, SCHEDULES.plugin_names if are_plugins else SCHEDULES.builtin_names):
            for options in kind.options_in(observed):
                try:
                    built = kind.build(observed.shape, options).validate()
                except UnsupportedShape:
                    continue
                if built not in candidates:
                    candidates.append(built)
                    yield built


def _kinds_of(shape: PipelineShape, names: Sequence[str]) -> list[ScheduleKind]:
    """Those of some names that have as many stages per rank, placed so, the plainest first."""
    ranked = [
        (kind.recognition_rank, kind)
        for kind in map(SCHEDULES.get, names)
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
