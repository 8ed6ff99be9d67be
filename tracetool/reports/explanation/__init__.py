"""Explanations as text and as JSON.

Steps of a critical path in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.causes.cause import LATE
from tracetool.model.action import ActionKind
from tracetool.units import format_duration, format_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.explanation.path import PathStep
    from tracetool.model.timeline import Op, Transfer


_KINDS = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "input gradient",
    ActionKind.BACKWARD_WEIGHT: "weight gradient",
    ActionKind.RECOMPUTE: "recompute",
}


class PathWords:
    """Steps in words, with global ranks.

    Args:
        global_ranks: Of each pipeline rank.
    """

    def __init__(self, global_ranks: Sequence[int]) -> None:
        self._ranks = global_ranks

    def rank(self, rank: int) -> int:
        """The global rank of a pipeline rank."""
        return self._ranks[rank]

    def step(self, step: PathStep) -> str:
        """A step of the critical path."""
        return self._computes(step) if step.ops else self._way(step)

    def _computes(self, step: PathStep) -> str:
        ranks = [self.rank(rank) for rank in step.ranks]
        if len(ranks) > 1:
            who = f"ranks {' → '.join(map(str, ranks))}" if len(ranks) < 6 else f"ranks {ranks[0]} → … → {ranks[-1]}"
            what = self._work(step.ops[:1])
        else:
            who, what = f"rank {ranks[0]}", self._work(step.ops)
        moving, host = (
            sum(ns for cause, ns in step.wait_ns().items() if (cause in LATE) == is_host) for is_host in (False, True)
        )
        besides = [
            f"{format_duration(ns)} {name}"
            for ns, name in ((moving, "of messages"), (host, "of the host"))
            if ns >= max(1, _LEAST_TOLD_RATIO * step.duration_ns)
        ]
        return f"{who}: {what}" + (f" (with {', '.join(besides)})" if besides else "")

    @staticmethod
    def _work(ops: Sequence[Op]) -> str:
        """Kinds and microbatches: ``forwards of microbatches 0-3``."""
        kinds: dict[ActionKind, list[int]] = {}
        for op in ops:
            kinds.setdefault(op.kind, []).append(op.microbatch)
        words = []
        for kind, microbatches in kinds.items():
            word = _KINDS[kind] + ("s" if len(microbatches) > 1 else "")
            words.append(f"{word} {format_ranges(sorted(set(microbatches)))}")
        return " and ".join(words)

    def _way(self, step: PathStep) -> str:
        """What one message waited for on its way, or that the host was late."""
        message = next((transfer for _, _, transfer in reversed(step.waits) if transfer is not None), None)
        if message is None:
            return "the host is late"
        waited_ns: dict[str, int] = {}
        for cause, duration, transfer in step.waits:
            is_behind = transfer is not None and transfer is not message
            word = cause.words.on_path or cause.words.label
            what = f"behind {self._name(transfer)}" if is_behind and transfer else word
            waited_ns[what] = waited_ns.get(what, 0) + duration
        parts = [
            f"{format_duration(ns)} {what}"
            for what, ns in waited_ns.items()
            if ns >= _LEAST_TOLD_RATIO * step.duration_ns
        ]
        where = f"link {message.link.replace('-', '→', 1)}" if message.link else "inside the DC"
        return f"{where}: {self._name(message)}: {', '.join(parts)}"

    def _name(self, transfer: Transfer) -> str:
        what = "activation" if transfer.kind is ActionKind.FORWARD else "gradient"
        return f"{what} {transfer.microbatch} (rank {self.rank(transfer.src_rank)} → {self.rank(transfer.dst_rank)})"


_LEAST_TOLD_RATIO = 0.01
"""Waits that a step has besides are told from such a share of it on."""
