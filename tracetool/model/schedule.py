"""A Schedule is pure order: per rank, the actions it computes one after another, without times."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.errors import InvalidSchedule
from tracetool.model.action import COMPUTE_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OBSERVED = "observed"
"""Name of the order that was recorded, whatever schedule it is."""

Placement = Literal["loop", "v", "bidirectional"]


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """How many ranks, stages and microbatches, and which rank holds which stage.

    Attributes:
        ranks: Pipeline ranks p.
        microbatches: Microbatches m per step.
        chunks: Stages per rank v.
        placement: ``loop`` puts stage s on rank s mod p; ``v`` turns round at the last rank; ``bidirectional`` has two
            copies of p stages: stage s on rank s, and stage p + s, the second copy of the model's stage s, on rank
            p - 1 - s. The first copy runs microbatches 0 to m/2 - 1, the second the others; nothing flows between them.
        copies: Equal pipelines side by side, each on as many of the ranks: the n-th has the n-th part of ranks and
            stages. Nothing flows between them.
    """

    ranks: int
    microbatches: int
    chunks: int = 1
    placement: Placement = "loop"
    copies: int = 1

    @property
    def stages(self) -> int:
        """Number of stages, p times v; both copies of a bidirectional pipeline count."""
        return self.ranks * self.chunks

    @property
    def text(self) -> str:
        """The same in short: ranks, stages per rank, microbatches."""
        return f"p={self.ranks} v={self.chunks} m={self.microbatches}"

    @property
    def is_bidirectional(self) -> bool:
        """Whether there are two copies of every stage."""
        return self.placement == "bidirectional"

    def rank_of(self, stage: int) -> int:
        """Pipeline rank that holds a stage."""
        ranks = self.ranks // self.copies
        copy, own = divmod(stage, ranks * self.chunks)
        lap, position = divmod(own, ranks)
        turned = self.placement != "loop" and lap % 2 == 1
        return copy * ranks + (ranks - 1 - position if turned else position)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that a pipeline rank holds, in stage order."""
        ranks = self.ranks // self.copies
        copy, own = divmod(rank, ranks)
        base = copy * ranks * self.chunks
        laps = range(0, ranks * self.chunks, ranks)
        return tuple(base + first + self.rank_of(first + own) for first in laps)

    def previous(self, stage: int) -> int | None:
        """The stage that a stage's forward gets its input from; None for a first stage."""
        is_first = stage % (self.stages // self.copies) == 0 or (self.is_bidirectional and stage == self.ranks)
        return None if is_first else stage - 1

    def next(self, stage: int) -> int | None:
        """The stage that a stage's backward gets its gradient from; None for a last stage."""
        is_last = (stage + 1) % (self.stages // self.copies) == 0 or (self.is_bidirectional and stage == self.ranks - 1)
        return None if is_last else stage + 1

    def profile_of(self, stage: int) -> int:
        """The stage of the model that a stage is: the measured one whose costs it has."""
        return stage % self.ranks if self.is_bidirectional else stage

    def microbatches_of(self, stage: int) -> range:
        """Microbatches that a stage runs."""
        if not self.is_bidirectional:
            return range(self.microbatches)
        half = self.microbatches // 2
        return range(half) if stage < self.ranks else range(half, self.microbatches)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per pipeline rank, the order of its compute actions.

    Attributes:
        name: What it is called in results.
        shape: Ranks, stages, microbatches.
        orders: One tuple of actions per pipeline rank.
        extra_forwards: Warm-up forwards of each rank beyond 1F1B's, where the schedule has any.
        blocking: Whether the schedule is meant for transfers that block compute (1F1B in Megatron)
            or needs ones that do not.
        batched: Whether a runtime whose hosts wait for each batch runs it in batches all the same (Megatron).
        overlaps: Per pipeline rank, the positions of actions that run as one with the action after them: a forward and
            a backward whose kernels overlap, torch's ``OVERLAP_F_B``. Empty if there are none on any rank.
        remark: How the order came about, where a search made it.
    """

    name: str
    shape: PipelineShape
    orders: tuple[tuple[Action, ...], ...]
    extra_forwards: tuple[int, ...] | None = None
    blocking: bool = True
    batched: bool = False
    overlaps: tuple[frozenset[int], ...] = ()
    remark: str | None = None

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.shape.text}>"

    def validate(self) -> Schedule:
        """Check that each stage runs every microbatch it has forward once and then backward once.

        Where no stage runs any backward, forwards are all.

        Returns:
            The schedule itself.

        Raises:
            InvalidSchedule: With the order of the rank at fault and an arrow at the action.
        """
        if len(self.orders) != self.shape.ranks:
            raise InvalidSchedule(
                f"schedule {self.name!r} has {len(self.orders)} ranks, the pipeline has {self.shape.ranks}."
            )
        ends = _ENDS if self.has_backwards else _FORWARD
        for rank, order in enumerate(self.orders):
            self._validate_rank(rank, order, ends)
        if self.overlaps:
            self._validate_overlaps()
        return self

    @property
    def has_backwards(self) -> bool:
        """Whether it runs more than forwards: without gradients it is an inference, or an evaluation."""
        return any(action.kind is not ActionKind.FORWARD for order in self.orders for action in order)

    def units(self, rank: int) -> list[tuple[Action, ...]]:
        """What a rank computes one after another: single actions, and pairs that run as one."""
        order, starts = self.orders[rank], self.overlaps[rank] if self.overlaps else frozenset()
        return [order[at : at + (2 if at in starts else 1)] for at in range(len(order)) if at - 1 not in starts]

    def overlapping(self) -> set[Action]:
        """All actions that run as one with another."""
        return {
            action for rank in range(len(self.overlaps)) for unit in self.units(rank) if unit[1:] for action in unit
        }

    def _validate_rank(self, rank: int, order: Sequence[Action], ends: int) -> None:
        mine = self.shape.stages_of(rank)
        done = {(s, j): 0 for s in mine for j in self.shape.microbatches_of(s)}
        rules = {s: _FIRST_RULES if self.shape.previous(s) is None else _RULES for s in mine}
        for index, action in enumerate(order):
            stage, kind, microbatch = action
            now = done.get((stage, microbatch))
            rule = rules[stage].get(kind) if now is not None else None
            if now is None or rule is None or now & rule.excludes or now & rule.needs != rule.needs:
                raise self._refusal(rank, index, now)
            done[stage, microbatch] = now | rule.bit
        for (stage, microbatch), now in done.items():
            if not now & _FORWARD or not now & ends:
                kind = ActionKind.BACKWARD if now & _FORWARD else ActionKind.FORWARD
                raise InvalidSchedule(
                    f"schedule {self.name!r}, rank {rank}: {Action(stage, kind, microbatch)} is missing.\n"
                    + self._pointed(rank, len(order)),
                    hint=f"the pipeline has stages 0..{self.shape.stages - 1} "
                    f"and microbatches 0..{self.shape.microbatches - 1}",
                )

    def _refusal(self, rank: int, index: int, now: int | None) -> InvalidSchedule:
        action = self.orders[rank][index]
        return InvalidSchedule(
            f"schedule {self.name!r}, rank {rank}, action {index} ({action}): {self._fault(rank, action, now)}.\n"
            + self._pointed(rank, index),
            hint="each stage runs every microbatch forward once, then backward once (B, or I then W)",
        )

    def _fault(self, rank: int, action: Action, now: int | None) -> str:
        """What is wrong with an action of a rank, given what ran of its stage and microbatch."""
        shape, (stage, kind, microbatch) = self.shape, action
        if kind.value not in COMPUTE_KINDS:
            return "an order holds computes only; transfers follow from it"
        if not (stage < shape.stages and microbatch < shape.microbatches):
            return "no such stage or microbatch in this pipeline"
        if shape.rank_of(stage) != rank:
            return f"stage {stage} sits on rank {shape.rank_of(stage)}"
        if now is None:
            mine = shape.microbatches_of(stage)
            return f"this copy of the stage runs microbatches {mine.start}..{mine.stop - 1} only"
        return _out_of_turn(action, now, _FIRST_RULES if shape.previous(stage) is None else _RULES)

    def _validate_overlaps(self) -> None:
        for rank, (order, starts) in enumerate(zip(self.orders, self.overlaps, strict=True)):
            for at in sorted(starts):
                kinds = [a.kind.value for a in order[at : at + 2]]
                if len(kinds) < 2 or (kinds[0] == "F") == (kinds[1] == "F") or at + 1 in starts:
                    raise InvalidSchedule(
                        f"schedule {self.name!r}, rank {rank}: action {at} and the one after it cannot run as one.\n"
                        + self._pointed(rank, at),
                        hint="a forward and a backward that are neighbours can, each in one overlap at most",
                    )

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

    def cells(self, rank: int) -> list[str]:
        """A rank's order as text; two actions that run as one are one cell, as in ``(2F3;5B1)OVERLAP_F_B``."""
        return [f"({unit[0]};{unit[1]}){OVERLAP}" if unit[1:] else str(unit[0]) for unit in self.units(rank)]

    def grid(self, width: int | None = None) -> str:
        """All orders as text, one line per rank; in parts one below another where that is wider than ``width``."""
        rows = [self.cells(rank) for rank in range(len(self.orders))]
        widths = [1 + max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
        starts = [0]
        taken = _RANK_WIDTH
        for at, cell in enumerate(widths):
            if width is not None and taken + cell > width and at > starts[-1]:
                starts.append(at)
                taken = _RANK_WIDTH
            taken += cell
        parts = [slice(*ends) for ends in zip(starts, [*starts[1:], None], strict=True)]
        lines = [
            [f"rank {rank:>2} " + "".join(map(str.rjust, row[part], widths[part])) for rank, row in enumerate(rows)]
            for part in parts
        ]
        return "\n\n".join("\n".join(line.rstrip() for line in of_part) for of_part in lines)

    @property
    def order_digest(self) -> str:
        """SHA-256 of shape and order: equal for schedules that are the same under other names."""
        return sha256(f"{self.shape}\n{self.to_csv()}".encode()).hexdigest()

    def to_csv(self) -> str:
        """The orders in torch's ``compute_only`` CSV of actions: one row per rank."""
        return "".join(",".join(self.cells(rank)) + "\n" for rank in range(len(self.orders)))


_RANK_WIDTH = len("rank 00 ")

OVERLAP = "OVERLAP_F_B"
"""What torch prints behind two actions that run as one."""

_OVERLAPPED = re.compile(rf"^\((?P<one>[^;)]+);(?P<other>[^;)]+)\){OVERLAP}$")

_FORWARD, _BACKWARD, _INPUT, _WEIGHT, _RECOMPUTE = 1, 2, 4, 8, 16
_ENDS = _BACKWARD | _WEIGHT


class _Rule(NamedTuple):
    """Of an action: its bit in what ran of its stage and microbatch, what must not be there, and what must be."""

    bit: int
    excludes: int
    needs: int


_RULES = {
    ActionKind.FORWARD: _Rule(_FORWARD, _FORWARD, 0),
    ActionKind.BACKWARD: _Rule(_BACKWARD, _BACKWARD | _INPUT, _FORWARD),
    ActionKind.BACKWARD_INPUT: _Rule(_INPUT, _INPUT | _BACKWARD, _FORWARD),
    ActionKind.BACKWARD_WEIGHT: _Rule(_WEIGHT, _WEIGHT | _BACKWARD, _INPUT),
    ActionKind.RECOMPUTE: _Rule(_RECOMPUTE, _RECOMPUTE, _FORWARD),
}

# torch runs the whole backward of a first stage as W: nobody waits for its input gradient.
_FIRST_RULES = {**_RULES, ActionKind.BACKWARD_WEIGHT: _Rule(_WEIGHT, _WEIGHT | _BACKWARD, _FORWARD)}


def _out_of_turn(action: Action, now: int, rules: dict[ActionKind, _Rule]) -> str:
    """What an action comes too late after, or has to wait for, given what ran of its stage and microbatch."""
    mine = rules[action.kind]
    if now & mine.bit:
        return "it ran before"
    ran = next((kind for kind, rule in rules.items() if now & rule.bit & mine.excludes), None)
    if ran is not None:
        return f"{action._replace(kind=ran)} already ran: B is the full backward"
    needed = next(kind for kind, rule in rules.items() if rule.bit == mine.needs)
    return f"{action._replace(kind=needed)} has not run yet"


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
    overlaps: list[frozenset[int]] = []
    rows = csv.reader(io.StringIO(text))
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                order, starts = _parse_row(c for c in cells if c and not c.endswith(_WITHOUT_MICROBATCH))
                orders.append(order)
                overlaps.append(starts)
    except InvalidSchedule as error:
        raise InvalidSchedule(f"line {rows.line_num}: {error.message}", hint=error.hint) from error
    except csv.Error as error:
        raise InvalidSchedule(f"line {rows.line_num} is no CSV: {error}.") from error
    if not any(orders):
        raise InvalidSchedule("the schedule file holds no compute actions.", hint="expected cells such as 0F0")
    schedule = schedule_from_orders(orders, name=name)
    # What runs such files (torch's action runtime) issues transfers one by one, without blocking.
    return replace(schedule, blocking=False, overlaps=tuple(overlaps) if any(overlaps) else ()).validate()


def _parse_row(cells: Iterable[str]) -> tuple[tuple[Action, ...], frozenset[int]]:
    """The computes of a row, and which of them run as one with the next."""
    order: list[Action] = []
    starts = set()
    for cell in cells:
        both = _OVERLAPPED.match(cell)
        if both is not None:
            starts.add(len(order))
            order += [Action.parse(both["one"]), Action.parse(both["other"])]
        elif (action := Action.parse(cell)).kind.value in COMPUTE_KINDS:
            order.append(action)
    return tuple(order), frozenset(starts)


def schedule_from_orders(orders: Iterable[Sequence[Action]], *, name: str) -> Schedule:
    """Wrap bare orders, finding out stages, microbatches and placement from them.

    Raises:
        InvalidSchedule: If no placement explains where the stages sit, or an order is incomplete.
    """
    per_rank = tuple(tuple(order) for order in orders)
    actions = [a for order in per_rank for a in order]
    stages = 1 + max(a.stage for a in actions)
    microbatches = 1 + max(a.microbatch for a in actions)
    if stages * microbatches > len(actions):
        raise InvalidSchedule(
            f"schedule {name!r} is incomplete: {stages:,} stages and {microbatches:,} microbatches are named, with "
            f"{len(actions):,} actions in all.",
            hint="each stage runs every microbatch forward once, then backward once (B, or I then W)",
        )
    chunks = -(-stages // len(per_rank))
    seats = {a.stage: rank for rank, order in enumerate(per_rank) for a in order}
    # Stages sit as in a V where there are two copies: those are told by the halves of the microbatches.
    placements: tuple[Placement, ...] = ("bidirectional", "loop", "v") if chunks == 2 else ("loop", "v")
    for placement in placements:
        shape = PipelineShape(len(per_rank), microbatches, chunks, placement)
        runs = [shape.microbatches_of(stage) for stage in range(shape.stages)]
        fits = all(shape.rank_of(stage) == rank for stage, rank in seats.items())
        if fits and all(a.microbatch in runs[a.stage] for a in actions):
            return Schedule(name, shape, per_rank).validate()
    raise InvalidSchedule(
        f"schedule {name!r}: the stages sit on ranks {seats}, which is neither looped nor V placement."
    )
