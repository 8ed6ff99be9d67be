"""One action, kernel by kernel.

What each layer of an action allocates and frees, from the allocator's log and the host times of launches.

Forwards, or parts of them, that backwards repeat (activation checkpointing): which, and for how long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.notice import SubjectKind
from tracetool.model.pipeline import ActionCost
from tracetool.reconstruction.memory.actions import HostSpan, memory_by_action
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel, Segment
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.closeup.layers import LayerPlace
    from tracetool.reconstruction.closeup.split import Part
    from tracetool.reconstruction.memory.log import Log


class Sum(NamedTuple):
    """Some kernels of an action together: how many, their time, and that without and with slowdown all along."""

    kernels: int
    duration_ns: int
    alone_ns: int
    contended_ns: int

    def plus(self, other: Sum) -> Sum:
        """Both together."""
        return Sum(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def cost(self) -> ActionCost:
        """The time, without memory."""
        return ActionCost(self.duration_ns, uncontended_ns=self.alone_ns, contended_ns=self.contended_ns)


_NOTHING = Sum(0, 0, 0, 0)


@dataclass(slots=True)
class ActionView:
    """One action, kernel by kernel.

    Attributes:
        rank: Global rank.
        segment: The action.
        times_ns: What each kernel adds to the action's time, launch gaps included.
        alone_ns: The same without slowdown beside communication kernels.
        contended_ns: The same with a communication kernel beside them all along.
        beside_ns: Per kernel, for how long a communication kernel was on the device.
        beside_messages_ns: The same for sends and receives alone.
        late_ns: Per kernel, for how long its start waited for a launch that is no part of the action's own cost.
        places: Place of each kernel among the layers; None if unknown.
        parts: Of a backward, the gradient that each kernel computes; None if not known.
    """

    rank: int
    segment: Segment
    times_ns: list[int]
    alone_ns: list[int]
    contended_ns: list[int]
    beside_ns: list[int]
    beside_messages_ns: list[int]
    late_ns: Sequence[int]
    places: tuple[LayerPlace, ...] | None = None
    parts: list[Part | None] | None = None
    _sums: dict[tuple[int | None, bool], Sum] = field(default_factory=dict)

    def layer(self, layer: int) -> Sum:
        """Its kernels in one layer."""
        sums = self._summed()
        return sums.get((layer, True), _NOTHING).plus(sums.get((layer, False), _NOTHING))

    def half(self, kind: ActionKind, layer: int) -> Sum:
        """Those of them that go into one gradient; what tells neither goes with the input's."""
        return self._summed().get((layer, kind is ActionKind.BACKWARD_WEIGHT), _NOTHING)

    def whole_half(self, kind: ActionKind) -> Sum:
        """All its kernels that go into one gradient."""
        chosen = kind is ActionKind.BACKWARD_WEIGHT
        total = _NOTHING
        for (_, is_weight), of_layer in self._summed().items():
            if is_weight == chosen:
                total = total.plus(of_layer)
        return total

    def _summed(self) -> dict[tuple[int | None, bool], Sum]:
        """By layer and whether it is for weights. Made when first asked for: nothing may change after that."""
        if not self._sums:
            layers = [None] * len(self.times_ns) if self.places is None else [place.layer for place in self.places]
            parts = self.parts or [None] * len(layers)
            rows = zip(layers, parts, self.times_ns, self.alone_ns, self.contended_ns, strict=True)
            for layer, part, time, alone, contended in rows:
                key = (layer, part == "weight")
                self._sums[key] = self._sums.get(key, _NOTHING).plus(Sum(1, time, alone, contended))
        return self._sums


class BlockMemory(NamedTuple):
    """Bytes that a part of an action holds at its end beyond its start, and its highest level above that."""

    held_bytes: int
    peak_bytes: int


ByAction = dict[tuple[int, "ActionKind", int], dict[int, BlockMemory]]


def memory_of_blocks(views: Sequence[ActionView], logs: Mapping[int, Log]) -> ByAction:
    """Memory per action (stage, kind, microbatch) and layer, by the rules for whole actions.

    Args:
        views: The actions, with the places of their kernels.
        logs: The allocator's log of each rank that has one.
    """
    by_action: ByAction = defaultdict(dict)
    by_rank: dict[int, list[ActionView]] = defaultdict(list)
    for view in views:
        by_rank[view.rank].append(view)
    for rank, of_rank in by_rank.items():
        if rank not in logs or any(view.places is None for view in of_rank):
            continue
        spans = sorted((span for view in of_rank for span in _spans(view)), key=lambda s: s.begin_ns)
        memory = memory_by_action(logs[rank], spans)
        for view in of_rank:
            s = view.segment
            for span in _spans(view):
                layer = int(span.key[3])
                held, peak = memory.held[span.key], memory.peak[span.key]
                by_action[s.stage, s.kind, s.microbatch][layer] = BlockMemory(held, peak)
    return dict(by_action)


def _spans(view: ActionView) -> Iterator[HostSpan]:
    s = view.segment
    launches: dict[int, list[int]] = defaultdict(list)
    for kernel, place in zip(s.kernels, view.places or (), strict=True):
        launches[place.layer].append(kernel.launch_ns)
    for layer, times in launches.items():
        yield HostSpan((s.stage, s.kind.value, s.microbatch, layer), min(times), max(times))


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
            "recompute", SubjectKind.STAGE(stage),
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
