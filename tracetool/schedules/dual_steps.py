"""The eight steps of DualPipe, on two copies of the pipeline or on a V.

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

from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

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
