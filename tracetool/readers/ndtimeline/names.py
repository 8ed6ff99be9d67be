"""The operations of NDTimeline and of the straggler analysis, by name.

Both write Megatron's timer names. A send or receive stands alone (``forward-send``) or in a batch whose
name lists its parts (``forward-send-backward-recv``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHT = "forward-compute", "backward-compute", "backward-wgrad-compute"
OPTIMIZER = "optimizer"
COMPUTE = frozenset({FORWARD, BACKWARD, WEIGHT, OPTIMIZER})

PP, DP, TP, EMBEDDING, WORLD = "pp", "dp", "tp", "embedding", "world"

COLLECTIVES = {
    "params-all-gather": ("allgather", DP),
    "params-all-gather-nonoverlapping": ("allgather", DP),
    "unshard-all-gather": ("allgather", DP),
    "grads-reduce-scatter": ("reducescatter", DP),
    "grads-reduce-scatter-nonoverlapping": ("reducescatter", DP),
    "grad-reduce-scatter": ("reducescatter", DP),
    "separate-grads-all-reduce": ("allreduce", DP),
    "grad-all-reduce": ("allreduce", DP),
    "embedding-grads-all-reduce": ("allreduce", EMBEDDING),
    "layernorm-grads-all-reduce": ("allreduce", TP),
    # The norm of all gradients: every rank of the job waits in it, then scales its own.
    "optimizer-clip-main-grad": ("allreduce", WORLD),
    "tp-allreduce": ("allreduce", TP),
    "tp-allgather": ("allgather", TP),
    "tp-reducescatter": ("reducescatter", TP),
}
"""Name to operation and group."""

NOT_READ = {
    "gc": "garbage collection of the host",
    "data-load": "data loading of the host",
    "data-sync": "data loading of the host",
    "forward-backward": "whole pipeline of a step",
    "optimizer-inner-step": "part of the optimizer",
    "optimizer-copy-to-main-grad": "part of the optimizer",
    "optimizer-copy-main-to-model-params": "part of the optimizer",
}
"""Name to what it is, where no table needs it."""

_CROSS_MESH = {"cross-mesh-send": "send", "cross-mesh-recv": "recv"}
_PARTS = re.compile(r"((?:(?:forward|backward)-)+)(send|recv)(?:-|$)")
_WHOLE = re.compile(r"^(?:(?:(?:forward|backward)-)+(?:send|recv)(?:-(?!$)|$))+$")


class NamedMessage(NamedTuple):
    """One send or receive; ``kind`` is F or B, None where the name does not tell it."""

    operation: str
    kind: str | None


@lru_cache(maxsize=256)
def messages_of(name: str) -> tuple[NamedMessage, ...]:
    """The sends and receives that a name stands for, in its order; none for other names."""
    if name in _CROSS_MESH:
        return (NamedMessage(_CROSS_MESH[name], None),)
    if len(name) > 64 or not _WHOLE.match(name):
        return ()
    return tuple(
        NamedMessage(operation, kind[0].upper())
        for kinds, operation in _PARTS.findall(name)
        for kind in kinds.rstrip("-").split("-")
    )


def is_known(name: object) -> bool:
    """Whether an operation has this name."""
    return isinstance(name, str) and (
        name in COMPUTE or name in COLLECTIVES or name in NOT_READ or bool(messages_of(name))
    )
