"""What a rank logged that it exchanged with another member of a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoggedTraffic:
    """Bytes that a rank logged between two members of a group, counted inside the group."""

    own: int
    peer: int
    transport: str
    size_bytes: int
