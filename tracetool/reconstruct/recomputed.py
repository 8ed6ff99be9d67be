"""Forwards, or parts of them, that backwards repeat (activation checkpointing): which, and for how long."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.action_view import ActionView

_WHOLE = 0.9
"""Share of a forward's kernels from which on all of it counts as repeated: what only starts or ends it need not be."""


def tell_recompute(views: Iterable[ActionView], account: Account) -> None:
    """Say for each stage what its backwards repeat of its forwards, if anything.

    Args:
        views: All actions of a step.
        account: Takes up the findings.
    """
    forwards: dict[int, list[int]] = defaultdict(list)
    spent: dict[int, list[int]] = defaultdict(list)
    whole: dict[int, list[int]] = defaultdict(list)
    counts: dict[int, list[int]] = defaultdict(list)
    ops: dict[int, Counter[str]] = defaultdict(Counter)
    for view in views:
        stage, kernels = view.segment.stage, view.segment.kernels
        if view.segment.kind is ActionKind.FORWARD:
            forwards[stage].append(sum(kernel.is_compute for kernel in kernels))
            continue
        again = [(k, time) for k, time in zip(kernels, view.times_ns, strict=True) if k.is_recompute and k.is_compute]
        if not again:
            continue
        spent[stage].append(sum(time for _, time in again))
        whole[stage].append(sum(view.times_ns))
        counts[stage].append(len(again))
        for kernel, time in again:
            ops[stage][(kernel.op_name or kernel.name).removeprefix("aten::")] += time
    for stage, times in sorted(spent.items()):
        share = median(counts[stage]) / max(1.0, median(forwards[stage])) if forwards[stage] else 0.0
        most = ", ".join(name for name, _ in ops[stage].most_common(3))
        what = "its whole forward" if share >= _WHOLE else f"{share:.0%} of its forward's kernels ({most})"
        account.find(
            "recompute", f"stage {stage}",
            f"each backward repeats {what} for {format_duration(round(median(times)))}, "
            f"{median(times) / max(1.0, median(whole[stage])):.0%} of its time", "autograd", 1.0,
        )  # fmt: skip
