"""P2P modes as files of measured steps write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.model.pipeline import P2P_MODES
from tracetool.schedules.names import normalised

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode


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
