"""A Schedule is pure order: per rank, the actions it computes one after another, without times."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tracetool.errors import InvalidSchedule
from tracetool.model.action import COMPUTE_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Placement = Literal["loop", "v"]


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """How many ranks, stages and microbatches, and which rank holds which stage.

    Attributes:
        ranks: Pipeline ranks p.
        microbatches: Microbatches m per step.
        chunks: Stages per rank v.
        placement: ``loop`` puts stage s on rank s mod p; ``v`` turns round at the last rank.
    """

    ranks: int
    microbatches: int
    chunks: int = 1
    placement: Placement = "loop"

    @property
    def stages(self) -> int:
        """Number of stages, p times v."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """Pipeline rank that holds a stage."""
        lap, position = divmod(stage, self.ranks)
        turned = self.placement == "v" and lap % 2 == 1
        return self.ranks - 1 - position if turned else position


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per pipeline rank, the order of its compute actions.

    Attributes:
        name: What it is called in results.
        shape: Ranks, stages, microbatches.
        orders: One tuple of actions per pipeline rank.
        extra_forwards: Warm-up forwards of each rank beyond 1F1B's, where the schedule has any.
        blocking: Whether the schedule is meant for transfers that block compute (1F1B in Megatron)
            or needs ones that do not (geopipe).
        remark: How the order came about, where a search made it.
    """

    name: str
    shape: PipelineShape
    orders: tuple[tuple[Action, ...], ...]
    extra_forwards: tuple[int, ...] | None = None
    blocking: bool = True
    remark: str | None = None

    def validate(self) -> Schedule:
        """Check that each stage runs every microbatch forward once and then backward once.

        Returns:
            The schedule itself.

        Raises:
            InvalidSchedule: With the order of the rank at fault and an arrow at the action.
        """
        if len(self.orders) != self.shape.ranks:
            raise InvalidSchedule(
                f"schedule {self.name!r} has {len(self.orders)} ranks, the pipeline has {self.shape.ranks}."
            )
        for rank, order in enumerate(self.orders):
            self._validate_rank(rank, order)
        return self

    def _validate_rank(self, rank: int, order: Sequence[Action]) -> None:
        done: set[Action] = set()
        for index, action in enumerate(order):
            fault = self._fault(rank, action, done)
            if fault is not None:
                raise InvalidSchedule(
                    f"schedule {self.name!r}, rank {rank}, action {index} ({action}): {fault}.\n"
                    + self._pointed(rank, index),
                    hint="each stage runs every microbatch forward once, then backward once (B, or I then W)",
                )
            done.add(action)
        expected = {
            Action(stage, ActionKind.FORWARD, microbatch)
            for stage in range(self.shape.stages)
            if self.shape.rank_of(stage) == rank
            for microbatch in range(self.shape.microbatches)
        }
        for forward in sorted(expected):
            stage, _, microbatch = forward
            backward = Action(stage, ActionKind.BACKWARD, microbatch)
            weight = Action(stage, ActionKind.BACKWARD_WEIGHT, microbatch)
            if forward not in done or (backward not in done and weight not in done):
                missing = forward if forward not in done else backward
                raise InvalidSchedule(
                    f"schedule {self.name!r}, rank {rank}: {missing} is missing.\n" + self._pointed(rank, len(order)),
                    hint=f"the pipeline has stages 0..{self.shape.stages - 1} "
                    f"and microbatches 0..{self.shape.microbatches - 1}",
                )

    def _fault(self, rank: int, action: Action, done: set[Action]) -> str | None:
        """What is wrong with the next action of a rank, or None."""
        if action.kind.value not in COMPUTE_KINDS:
            return "an order holds computes only; transfers follow from it"
        if not (action.stage < self.shape.stages and action.microbatch < self.shape.microbatches):
            return "no such stage or microbatch in this pipeline"
        if self.shape.rank_of(action.stage) != rank:
            return f"stage {action.stage} sits on rank {self.shape.rank_of(action.stage)}"
        return "it ran before" if action in done else _out_of_turn(action, done)

    def _pointed(self, rank: int, index: int) -> str:
        """The grid of orders, with an arrow under the action at fault."""
        width = max((len(str(a)) for order in self.orders for a in order), default=1) + 1
        first = max(0, index - 8)
        lines = []
        for r, order in enumerate(self.orders):
            cells = "".join(f"{a!s:>{width}}" for a in order[first : index + 5])
            lines.append(f"  rank {r:>2} {'..' if first else '  '}{cells}")
            if r == rank:
                lines.append(" " * (11 + width * (index - first + 1) - 1) + "^")
        return "\n".join(lines)

    def grid(self) -> str:
        """All orders as text, one line per rank."""
        width = max(len(str(a)) for order in self.orders for a in order) + 1
        return "\n".join(
            f"rank {rank:>2} " + "".join(f"{a!s:>{width}}" for a in order) for rank, order in enumerate(self.orders)
        )

    def to_csv(self) -> str:
        """The orders in torch's ``compute_only`` CSV of actions: one row per rank."""
        return "".join(",".join(str(a) for a in order) + "\n" for order in self.orders)


def _out_of_turn(action: Action, done: set[Action]) -> str | None:
    """What an action of a stage and microbatch has to wait for or comes too late after, or None."""
    stage, kind, microbatch = action
    forward = Action(stage, ActionKind.FORWARD, microbatch)
    full = Action(stage, ActionKind.BACKWARD, microbatch)
    split = Action(stage, ActionKind.BACKWARD_INPUT, microbatch)
    if kind is ActionKind.FORWARD:
        return None
    if kind is not ActionKind.RECOMPUTE and full in done:
        return f"{full} already ran: B is the full backward"
    if kind is ActionKind.BACKWARD and split in done:
        return f"{split} already ran: B is the full backward"
    # torch runs the whole backward of the first stage as W: nobody waits for its input gradient.
    needed = split if kind is ActionKind.BACKWARD_WEIGHT and stage > 0 else forward
    return None if needed in done else f"{needed} has not run yet"


_WITHOUT_MICROBATCH = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


def schedule_from_csv(text: str, *, name: str = "csv") -> Schedule:
    """Read torch's CSV of actions.

    Transfers and FSDP actions in the file are left out: the replay derives transfers from the order.

    Args:
        text: One row per rank, cells such as ``2F0``; empty cells are skipped.
        name: Name of the schedule in results.

    Raises:
        InvalidSchedule: If a cell is no action or the orders are incomplete.
    """
    orders: list[tuple[Action, ...]] = []
    for row in csv.reader(io.StringIO(text)):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        actions = [Action.parse(c) for c in cells if c and not c.endswith(_WITHOUT_MICROBATCH)]
        orders.append(tuple(a for a in actions if a.kind.value in COMPUTE_KINDS))
    if not any(orders):
        raise InvalidSchedule("the schedule file holds no compute actions.", hint="expected cells such as 0F0")
    # What runs such files (torch's action runtime) issues transfers one by one, without blocking.
    return replace(schedule_from_orders(orders, name=name), blocking=False)


def schedule_from_orders(orders: Iterable[Sequence[Action]], *, name: str) -> Schedule:
    """Wrap bare orders, finding out stages, microbatches and placement from them.

    Raises:
        InvalidSchedule: If no placement explains where the stages sit, or an order is incomplete.
    """
    per_rank = tuple(tuple(order) for order in orders)
    actions = [a for order in per_rank for a in order]
    stages = 1 + max(a.stage for a in actions)
    microbatches = 1 + max(a.microbatch for a in actions)
    chunks = -(-stages // len(per_rank))
    seats = {a.stage: rank for rank, order in enumerate(per_rank) for a in order}
    placements: tuple[Placement, ...] = ("loop", "v")
    for placement in placements:
        shape = PipelineShape(len(per_rank), microbatches, chunks, placement)
        if all(shape.rank_of(stage) == rank for stage, rank in seats.items()):
            return Schedule(name, shape, per_rank).validate()
    raise InvalidSchedule(
        f"schedule {name!r}: the stages sit on ranks {seats}, which is neither looped nor V placement."
    )
