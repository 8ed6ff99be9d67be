"""Building blocks that several schedules share.

Orders that repeat one building block per microbatch on a V of two stages per rank (V-Half, V-Min).

Source: Qi et al., arXiv 2405.15362 (pipeline parallelism with controllable memory). A block gives each rank the slots
of its four passes of one microbatch: forward of the first and second chunk, input gradient of the second and first.
The next microbatch's block starts six slots later, since a rank has six passes of a slot each (two weight gradients
take the slots left over, oldest first). Squeezing, that is starting each pass as early as its rank and its input allow,
does not change the order, so that replay does it. The paper's further step, reordering passes while the pipeline fills
and drains, is left out here: memory is the block's, bubbles are somewhat longer than with it.

The eight steps of DualPipe, on two copies of the pipeline or on a V.

Source: deepseek-ai/DualPipe, ``DualPipe.step`` and ``DualPipeV.step``. Half is p/2 ranks of two copies, or all p of a
V; i counts the ranks of a half from the outside. Stage 0 is where microbatches of phase 0 run on the rank, stage 1
those of phase 1:

1. F0 x 2(half - i - 1)
2. (F0, F1) x (i + 1)
3. (I1, W, F1) x (half - i - 1)
4. (F0 & B1, F1 & B0) x (n - 2 half + i + 1) for n microbatches of a phase; the innermost rank's first pair apart
5. (B1, F1 & B0) x (half - i - 1)
6. (B1, B0) x (i + 1), the second half of them I only
7. (W, I0) x (half - i - 1)
8. W x (i + 1)

A W is the oldest one put off; ``&`` runs two as one.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import PipelineShape, Placement


def warm_up_then_alternate(stage: int, warm_up: int, microbatches: int) -> tuple[Action, ...]:
    """``warm_up`` forwards, then (forward, backward) pairs, then the backwards that are left."""
    warm_up = min(warm_up, microbatches)
    order = [Action(stage, ActionKind.FORWARD, i) for i in range(warm_up)]
    for i in range(microbatches):
        if warm_up + i < microbatches:
            order.append(Action(stage, ActionKind.FORWARD, warm_up + i))
        order.append(Action(stage, ActionKind.BACKWARD, i))
    return tuple(order)


def torch_group(name: str, shape: PipelineShape) -> int:
    """Microbatches that torch's interleaved schedules take through one chunk before they turn to the next.

    Raises:
        UnsupportedShape: If the microbatches do not divide into such groups.
    """
    p, m = shape.ranks, shape.microbatches
    rounds = max(1, m // p)
    if m % rounds:
        raise UnsupportedShape(
            f"{name}: {m} microbatches cannot go round in {rounds} equal groups on {p} ranks.",
            hint=f"use a multiple of {p}",
        )
    return m // rounds


def rounds_of(shape: PipelineShape, group: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) in the order of interleaved forwards: group by group through all chunks."""
    m = shape.microbatches
    return [
        (chunk, microbatch)
        for first in range(0, m, group)
        for chunk in range(shape.chunks)
        for microbatch in range(first, min(m, first + group))
    ]


def require_one_chunk(name: str, shape: PipelineShape) -> None:
    """Refuse shapes with several stages per rank.

    Raises:
        UnsupportedShape: If there is more than one stage per rank.
    """
    if shape.chunks != 1:
        raise UnsupportedShape(
            f"{name} needs one stage per rank; the trace has {shape.stages} stages on {shape.ranks} ranks.",
            hint="replay 'observed', or use a trace with one stage per rank",
        )


def require_chunks(name: str, shape: PipelineShape, *, placement: Placement, most: int | None = None) -> None:
    """Refuse shapes with one stage per rank, too many, or the other placement.

    Raises:
        UnsupportedShape: If the shape has another number of stages per rank, or places them otherwise.
    """
    fits = shape.chunks >= 2 if most is None else shape.chunks == most
    if fits and shape.placement == placement:
        return
    wanted = f"{'at least 2' if most is None else most} stages per rank, {placement} placement"
    raise UnsupportedShape(
        f"{name} needs {wanted}; the trace has {shape.chunks} per rank"
        + (f", {shape.placement} placement." if shape.chunks > 1 else "."),
        hint="use a trace with that shape",
    )


def require_copies(name: str, shape: PipelineShape) -> None:
    """Refuse shapes without two copies of one stage per rank.

    Raises:
        UnsupportedShape: If the shape places its stages otherwise.
    """
    if shape.is_bidirectional and shape.chunks == 2:
        return
    raise UnsupportedShape(
        f"{name} needs two copies of one stage per rank (bidirectional placement); the trace has {shape.chunks} "
        f"per rank, {shape.placement} placement.",
        hint="use a trace with one stage per rank",
    )


_PERIOD = 6

Block = tuple[int, int, int, int]
"""Slots of F of the first chunk, F of the second, I of the second, I of the first."""


def repeat_block(rank: int, shape: PipelineShape, block: Block) -> tuple[Action, ...]:
    """The order of one rank whose passes of microbatch j take the slots ``block`` + 6 j.

    The slots of a block must differ modulo six.
    """
    last = shape.stages - 1 - rank
    passes = [
        (block[0], rank, ActionKind.FORWARD),
        (block[1], last, ActionKind.FORWARD),
        (block[2], last, ActionKind.BACKWARD_INPUT),
        (block[3], rank, ActionKind.BACKWARD_INPUT),
    ]
    slots = sorted(
        (first + _PERIOD * j, Action(stage, kind, j))
        for first, stage, kind in passes
        for j in range(shape.microbatches)
    )
    order: list[Action] = []
    weights: list[Action] = []
    done, free = 0, 0
    for slot, action in slots:
        filled = min(max(0, slot - free), len(weights) - done)
        order += weights[done : done + filled]
        done, free = done + filled, slot + 1
        order.append(action)
        if action.kind is ActionKind.BACKWARD_INPUT:
            weights.append(action._replace(kind=ActionKind.BACKWARD_WEIGHT))
    return (*order, *weights[done:])


F, B, I, W = (ActionKind(code) for code in "FBIW")  # noqa: E741


def eight_steps(
    position: int, half: int, phases: Sequence[tuple[int, range]]
) -> tuple[tuple[Action, ...], frozenset[int]]:
    """Order of a rank.

    Args:
        position: Rank in its half, from the outside.
        half: Ranks of a half.
        phases: Stage and microbatches of phase 0, then of phase 1.

    Returns:
        The order, and the positions of forwards that run as one with the backward behind them.
    """
    steps = _Steps(phases)
    inner, run = half - position - 1, steps.run
    for _ in range(2 * inner):
        run(0, F)
    for _ in range(position + 1):
        run(0, F)
        run(1, F)
    for _ in range(inner):
        run(1, I)
        steps.weight()
        run(1, F)
    for turn in range(len(phases[0][1]) - 2 * half + position + 1):
        steps.both(0, 1, as_one=turn > 0 or inner > 0)
        steps.both(1, 0)
    for _ in range(inner):
        run(1, B)
        steps.both(1, 0)
    # The switch to I alone lies before the backward of phase 0, or of phase 1 for odd positions.
    for turn in range(2 * (position + 1)):
        run(1 - turn % 2, I if turn > position else B)
    for _ in range(inner):
        steps.weight()
        run(0, I)
    for _ in range(position + 1):
        steps.weight()
    return tuple(steps.order), frozenset(steps.overlaps)


class _Steps:
    """Writes an order, counting the microbatches of each phase and direction."""

    def __init__(self, phases: Sequence[tuple[int, range]]) -> None:
        self.order: list[Action] = []
        self.overlaps: set[int] = set()
        self._phases = phases
        self._done: Counter[tuple[int, bool]] = Counter()
        self._put_off: deque[Action] = deque()

    def run(self, phase: int, kind: ActionKind) -> None:
        """The next forward or backward of a phase."""
        stage, microbatches = self._phases[phase]
        key = phase, kind is F
        action = Action(stage, kind, microbatches[self._done[key]])
        self._done[key] += 1
        self.order.append(action)
        if kind is I:
            self._put_off.append(action._replace(kind=W))

    def weight(self) -> None:
        """The oldest weight gradient that was put off."""
        self.order.append(self._put_off.popleft())

    def both(self, forward: int, backward: int, *, as_one: bool = True) -> None:
        """A forward of one phase and a backward of the other."""
        if as_one:
            self.overlaps.add(len(self.order))
        self.run(forward, F)
        self.run(backward, B)
