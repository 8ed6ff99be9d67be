"""The actions of one step, the messages between them and what follows the last backward.

What one rank computed in a step: the segments of its actions, and the tail after the last one.

One kernel of a rank, with what the trace says around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.pipeline import TailPart

if TYPE_CHECKING:
    from tracetool.model.action import ActionKind
    from tracetool.reconstruction.capture import Evidence


ACCUMULATE_NODE = "AccumulateGrad"
"""Autograd node that adds a weight gradient to those of the microbatches before: as large whatever the microbatch."""

_ENGINE = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_GRADIENT = re.compile(r"Grad", re.IGNORECASE)
_MARKER = re.compile(r"FlashAttention|RmsNorm|LayerNorm|Softmax|PromptFlash|FusionAttention", re.IGNORECASE)
_CLIPPING = re.compile(r"LpNorm", re.IGNORECASE)


class Kernel(NamedTuple):
    """One kernel.

    Attributes:
        start_ns: Start on the device.
        end_ns: End on the device.
        launch_ns: Host time of its launch (Ascend: its start).
        label: Name of the framework label around the launch; of a trace that lists operations, its action.
        sequence_number: Autograd number of the op that launched it.
        in_backward: Whether an autograd node launched it.
        backward_of: Sequence number of that node: that of the forward op it undoes.
        is_p2p: Whether it sends or receives.
        is_barrier: Whether it belongs to a barrier.
        is_collective: Whether it is a collective.
        is_compute: Whether its time is its action's: it runs on the compute stream and is no copy.
        is_optimizer: Whether it was launched inside the optimizer's step.
        kernel_class: Ascend kernel type.
        event: Number of the event within its rank; None for a communication operation that is none.
        name: Name of the kernel.
        stream: Device stream.
        blocks: Thread blocks of its grid.
        node: Event number of the autograd node around its launch, the innermost one; None outside a backward.
        root_node: Event number of the outermost node around its launch.
        node_name: Name of the innermost node, as ``MmBackward0``.
        root_of: Like ``backward_of``, of the outermost node (they differ where a backward runs another one).
        op_name: Name of the op that launched it.
        op: Number of that op: kernels of one call share it.
    """

    start_ns: int
    end_ns: int
    launch_ns: int
    label: str | None = None
    sequence_number: int | None = None
    in_backward: bool = False
    backward_of: int | None = None
    is_p2p: bool = False
    is_barrier: bool = False
    is_collective: bool = False
    is_optimizer: bool = False
    kernel_class: str | None = None
    is_compute: bool = True
    event: int | None = None
    name: str = ""
    stream: int | None = None
    blocks: int | None = None
    node: int | None = None
    root_node: int | None = None
    node_name: str | None = None
    root_of: int | None = None
    op_name: str | None = None
    op: int | None = None

    @property
    def issued_ns(self) -> int:
        """Host time at which the host was through with it: an op of the host itself is then over."""
        return self.launch_ns if self.stream is not None or self.launch_ns != self.start_ns else self.end_ns

    @property
    def is_recompute(self) -> bool:
        """Whether it repeats a forward inside the backward: ops get autograd numbers only where a graph is built.

        A node shows a number, too, that of the forward it undoes, and may launch kernels without an op in between.
        """
        return self.in_backward and self.sequence_number is not None and not self._is_of_node

    @property
    def _is_of_node(self) -> bool:
        """Whether the node around the launch launched it itself."""
        return self.node_name is not None and _ENGINE.sub("", self.op_name or "") == self.node_name

    @property
    def is_gradient(self) -> bool:
        """Whether its type names a gradient."""
        return _GRADIENT.search(self.kernel_class or "") is not None

    @property
    def is_clipping(self) -> bool:
        """Whether its type is that of the gradient norm, which follows the last backward."""
        return _CLIPPING.search(self.kernel_class or "") is not None

    @property
    def is_root_gradient(self) -> bool:
        """Whether its type is that of the fill with which autograd starts a backward from the loss."""
        return self.kernel_class == "Fill"

    @property
    def is_marker(self) -> bool:
        """Whether its type exists in a forward and a backward form, so that it tells them apart."""
        return _MARKER.search(self.kernel_class or "") is not None


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
