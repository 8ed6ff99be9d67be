"""Schedules and p2p modes as other people write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.model.pipeline import P2P_MODES
from tracetool.schedules import SCHEDULES

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode

_ALIASES = {
    # torch.distributed.pipelining's classes, without "Schedule" in front (``schedules.get_schedule_class``).
    "interleaved1f1b": ("interleaved",),
    "loopedbfs": ("loopedbfs", "bfs"),
    "interleavedzerobubble": ("interleavedzerobubble", "interleavedzb", "zbinterleaved", "izb"),
    "zbvzerobubble": ("zbv",),
    # Papers and their code.
    "pipedreamflush": ("1f1b",),
    "vpp": ("interleaved",),
    "zb1p": ("zbh1",),
    "zb2p": ("zbh2",),
    "zerobubbleh1": ("zbh1",),
    "zerobubbleh2": ("zbh2",),
    "zerobubblev": ("zbv",),
    "bfs": ("loopedbfs",),
    "izb": ("interleavedzerobubble", "interleavedzb", "zbinterleaved"),
    "interleavedzb": ("interleavedzerobubble", "zbinterleaved", "izb"),
    "zbinterleaved": ("interleavedzerobubble", "interleavedzb", "izb"),
    "zbvhalf": ("vhalf",),
    "zbvmin": ("vmin",),
    "wave": ("hanayo",),
}
"""What a schedule is called elsewhere: normalised name to normalised names it may have here."""


def normalised(name: str) -> str:
    """A name without case, separators and torch's ``Schedule`` in front."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return bare.removeprefix("schedule") or bare


def schedule_name(name: str) -> str:
    """The registered name of a schedule.

    Raises:
        UnknownName: If none is like it; the message suggests close names.
    """
    if name.startswith("csv:"):
        return name
    known = {normalised(registered): registered for registered in SCHEDULES.names()}
    asked = normalised(name)
    for candidate in (asked, *_ALIASES.get(asked, ())):
        if candidate in known:
            return known[candidate]
    SCHEDULES.get(name)
    return name


def p2p_mode(name: str | None) -> P2PMode | None:
    """The p2p mode that a word stands for; None stays None.

    Raises:
        ScenarioError: If there is no such mode.
    """
    if name is None:
        return None
    for mode in P2P_MODES:
        if normalised(mode) == normalised(name):
            return mode
    raise ScenarioError(f"no p2p mode named {name!r}; known: {', '.join(P2P_MODES)}.")
