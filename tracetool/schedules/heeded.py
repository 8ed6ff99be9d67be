"""Options that only some schedules heed: told to others alone, they would be without effect."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError
from tracetool.model.choice import Choice
from tracetool.schedules import SCHEDULES, Heeded, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import Schedule
    from tracetool.schedules import ScheduleKind

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
    if any(_takes_chunks(kind_of(name)) for name in names):
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
        chunks=chunks if _takes_chunks(kind) else None,
        time_limit_s=time_limit_s if kind.takes("time limit") else None,
        order=None if kind.given is None else sha256(kind.given.to_csv().encode()).hexdigest(),
    )


def _takes_chunks(kind: ScheduleKind) -> bool:
    return kind.given is None and kind.least_chunks > 1 and kind.placement != "bidirectional"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _heeds(name: str, option: Heeded, observed: Schedule | None) -> bool:
    if name == "observed":
        return option == "overlap ratio" and observed is not None and any(observed.overlaps)
    return kind_of(name).takes(option)
