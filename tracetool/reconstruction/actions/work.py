"""What one rank computed in a step: the segments of its actions, and the tail after the last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.pipeline import TailPart

if TYPE_CHECKING:
    from tracetool.model.action import ActionKind
    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.capture.account import Evidence

Tail = tuple[TailPart, ...]


@dataclass(slots=True, kw_only=True)
class Segment:
    """The kernels of one action.

    Attributes:
        kind: F, B, I or W.
        microbatch: Microbatch.
        stage: Global stage.
        start_ns: Start of its first kernel.
        end_ns: End of its last kernel.
        issue_ns: Host time of its first launch.
        issued_ns: Host time of its last launch.
        kernels: Its kernels in launch order, copies and collectives beside it among them.
    """

    kind: ActionKind
    microbatch: int
    stage: int
    start_ns: int
    end_ns: int
    issue_ns: int
    issued_ns: int
    kernels: tuple[Kernel, ...] = ()


@dataclass(frozen=True, slots=True)
class RankWork:
    """What one rank computed in a step: its segments in order, and what followed the last one.

    Attributes:
        segments: In order of their start.
        tail: Gradient reduction and optimizer as observed, waiting included.
        evidence: label, autograd or kernels.
        loose: Kernels that belong to no action: messages, gradient reduction, optimizer and the like.
    """

    segments: tuple[Segment, ...]
    tail: Tail
    evidence: Evidence
    loose: tuple[Kernel, ...] = ()
