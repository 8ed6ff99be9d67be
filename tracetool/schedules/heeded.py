"""Options that only some schedules heed: told to others alone, they would be without effect."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.model.choice import Choice
from tracetool.schedules import SCHEDULES, Heeded, is_file, read_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import Schedule

_FLAGS: dict[Heeded, str] = {
    "extra forwards": "--extra-forwards",
    "group": "--group",
    "overlap ratio": "--overlap-ratio",
    "time limit": "--time-limit",
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
    takers = [name for name in SCHEDULES.names() if option in SCHEDULES.get(name).heeds]
    raise ScenarioError(
        f"{_FLAGS[option]} has no effect on {_listed(names)}: it is for {' and '.join(takers)}.",
        hint=f"leave it out, or ask for {' or '.join(takers)}",
    )


def refuse_chunks(names: Sequence[str], observed: Schedule) -> None:
    """Refuse a number of stages per rank to cut into where nothing is cut.

    Raises:
        ScenarioError: If the recording has several already, or none of the schedules takes several.
    """
    if observed.shape.chunks > 1:
        raise ScenarioError(
            f"the recording has {observed.shape.chunks} stages per rank already, which are not cut again.",
            hint="leave --chunks out",
        )
    if any(_takes_chunks(name) for name in names):
        return
    raise ScenarioError(
        f"--chunks has no effect on {_listed(names)}: it cuts stages for schedules of several per rank, and an order "
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
    if is_file(name):
        return Choice(order=sha256(read_order(name).to_csv().encode()).hexdigest())
    heeds = SCHEDULES.get(name).heeds
    return Choice(
        extra_forwards=extra_forwards if "extra forwards" in heeds else None,
        chunks=chunks if _takes_chunks(name) else None,
        time_limit_s=time_limit_s if "time limit" in heeds else None,
    )


def _takes_chunks(name: str) -> bool:
    if is_file(name):
        return False
    kind = SCHEDULES.get(name)
    return kind.least_chunks > 1 and kind.placement != "bidirectional"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _heeds(name: str, option: Heeded, observed: Schedule | None) -> bool:
    if is_file(name):
        return option == "overlap ratio" and any(read_order(name).overlaps)
    if name == "observed":
        return option == "overlap ratio" and observed is not None and any(observed.overlaps)
    return option in SCHEDULES.get(name).heeds
