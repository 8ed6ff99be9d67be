"""Forwards, or parts of them, that backwards repeat (activation checkpointing): which, and for how long."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.capture.account import Account
    from tracetool.reconstruction.closeup.action_view import ActionView

_WHOLE = 0.9
"""Share of a forward's kernels from which on all of it counts as repeated: what only starts or ends it need not be."""
_OWN = 0.5
"""Share of the kernels taken as repeated that must be among the forward's own, by name: kernels of dropout, of casts
and of fused operations may differ where a forward runs without a graph first, those that make up a layer do not."""
_LONGER = 1.5
"""So many times what the forward's kernels ran, those that repeat it run at most."""


class _Repeat(NamedTuple):
    """What one backward seems to repeat of its microbatch's forward.

    Attributes:
        again: Compute kernels that ops with nodes of their own launched inside the backward.
        forward: Compute kernels of the forward.
        left: How many other compute kernels the backward has.
        spent_ns: What those that repeat add to its time.
        whole_ns: Its time.
        ops: The time by op.
    """

    again: list[Kernel]
    forward: list[Kernel]
    left: int
    spent_ns: int
    whole_ns: int
    ops: Counter[str]

    @property
    def own(self) -> int:
        """How many of the kernels are the forward's, by name and number."""
        names = (Counter(kernel.name for kernel in kernels) for kernels in (self.again, self.forward))
        return (next(names) & next(names)).total()


def record_recompute(views: Iterable[ActionView], account: Account) -> None:
    """Say for each stage what its backwards repeat of its forwards, if anything.

    Nothing is said where the kernels are not the forward's, run longer than it, or leave nothing of the backward:
    they then are something else, such as a graph of the backward itself.

    Args:
        views: All actions of a step.
        account: Takes up the findings.
    """
    for stage, repeats in sorted(_repeats(list(views)).items()):
        if not _is_forward(repeats):
            continue
        ops: Counter[str] = Counter()
        for repeat in repeats:
            ops.update(repeat.ops)
        share = median(r.own for r in repeats) / median(len(r.forward) for r in repeats)
        most = ", ".join(name for name, _ in ops.most_common(3))
        what = "its whole forward" if share >= _WHOLE else f"{share:.0%} of its forward's kernels ({most})"
        spent = median(r.spent_ns for r in repeats)
        account.find(
            "recompute", f"stage {stage}",
            f"each backward repeats {what} for {format_duration(round(spent))}, "
            f"{spent / max(1.0, median(r.whole_ns for r in repeats)):.0%} of its time", "autograd", 1.0,
        )  # fmt: skip


def _repeats(views: Sequence[ActionView]) -> dict[int, list[_Repeat]]:
    """Per stage, the backwards that hold ops with nodes of their own, and whose forward is known."""
    forwards = {
        (view.segment.stage, view.segment.microbatch): [k for k in view.segment.kernels if k.is_compute]
        for view in views
        if view.segment.kind is ActionKind.FORWARD
    }
    by_stage: dict[int, list[_Repeat]] = defaultdict(list)
    for view in views:
        forward = forwards.get((view.segment.stage, view.segment.microbatch))
        timed = [(k, time) for k, time in zip(view.segment.kernels, view.times_ns, strict=True) if k.is_compute]
        again = [(k, time) for k, time in timed if k.is_recompute]
        if view.segment.kind is ActionKind.FORWARD or not forward or not again:
            continue
        ops: Counter[str] = Counter()
        for kernel, time in again:
            ops[(kernel.op_name or kernel.name).removeprefix("aten::")] += time
        by_stage[view.segment.stage].append(
            _Repeat(
                [k for k, _ in again],
                forward,
                len(timed) - len(again),
                sum(time for _, time in again),
                sum(view.times_ns),
                ops,
            )
        )
    return by_stage


def _is_forward(repeats: Iterable[_Repeat]) -> bool:
    """Whether most of a stage's backwards repeat their forwards, and do something else besides."""
    repeating = [
        repeat.own >= _OWN * len(repeat.again)
        and _run_ns(repeat.again) <= _LONGER * _run_ns(repeat.forward)
        and repeat.left > 0
        for repeat in repeats
    ]
    return 2 * sum(repeating) > len(repeating)


def _run_ns(kernels: Iterable[Kernel]) -> int:
    return sum(kernel.end_ns - kernel.start_ns for kernel in kernels)
