"""Work whose worker is killed at it, once or always, as by a system that is short of memory."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Deadly:
    """A piece of work.

    Attributes:
        name: What it is called.
        mark: Made before the worker is killed; one that has it works. None for a piece that kills nobody.
        is_always: Whether every worker is killed.
    """

    name: str
    mark: Path | None = None
    is_always: bool = False


def work_on(piece: Deadly, advance: Callable[[int], None]) -> str:
    """The name of the piece, should its worker survive."""
    if piece.mark is not None and (piece.is_always or not piece.mark.exists()):
        piece.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    advance(1)
    return piece.name
