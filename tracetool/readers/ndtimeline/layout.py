"""What a labelled trace says as a whole: who is where, and when its steps are.

The operations of NDTimeline and of the straggler analysis, by name.

Both write Megatron's timer names. A send or receive stands alone (``forward-send``) or in a batch whose
name lists its parts (``forward-send-backward-recv``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import MalformedTrace
from tracetool.readers import Group, Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.readers import FilePlace

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


TIME_LIMIT_NS = 2**61
"""Sums of two such times still fit int64."""
_EPOCH_FROM_NS = 10**17
"""Earlier times (before 1973) are no Unix time."""


_TEXT_ROUNDING_NS = 1000
_SUM_ROUNDING = 1e-5


class RankPlace(NamedTuple):
    """A rank's coordinates; ``tp`` is None where the trace does not say it."""

    dp: int
    pp: int
    tp: int | None = None


class Operation(NamedTuple):
    """One recorded operation of a rank.

    Attributes:
        place: Where it was met.
        rank: Global rank.
        where: Coordinates of the rank.
        step: Step number.
        name: Its name.
        start_ns: Start; relative to its step if the layout says so.
        duration_ns: Duration.
        order: Number among operations of its name in the step; None if not given.
        chunk: Model chunk of the rank; None if not given.
        stage: Global (virtual) stage; None if not given.
        microbatch: Microbatch; None if not given.
    """

    place: FilePlace
    rank: int
    where: RankPlace
    step: int
    name: str
    start_ns: int
    duration_ns: int
    order: int | None = None
    chunk: int | None = None
    stage: int | None = None
    microbatch: int | None = None

    @property
    def at(self) -> int:
        """Row or byte it was met at; it tells apart the operations of one rank and step."""
        return self.place.at


@dataclass(slots=True)
class JobLayout:
    """Filled in by showing it every usable operation of a file.

    Attributes:
        places: Rank to its coordinates, as most of its operations say.
        steps: Step to start of its first and end of its last operation on any rank.
        chunks: Model chunks per rank.
        splits_backward: Whether weight gradients have operations of their own.
        numbered: Ranks whose computes name microbatches.
        unplaced: Damaged records that may be of any rank.
        computing_ns: (rank, step) to the time of its computes.
        names_chunks: Whether computes name their model chunk or global stage.
    """

    places: dict[int, RankPlace] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    chunks: int = 1
    splits_backward: bool = False
    numbered: set[int] = field(default_factory=set)
    names_chunks: bool = False
    _forwards: set[tuple[int, str]] = field(default_factory=set)
    _votes: dict[int, Counter[RankPlace]] = field(default_factory=lambda: defaultdict(Counter))
    _owners: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    unplaced: int = 0
    computing_ns: Counter[tuple[int, int]] = field(default_factory=Counter)

    def take(self, operation: Operation) -> None:
        """Look at one operation."""
        self._votes[operation.rank][operation.where] += 1
        is_compute = operation.name in COMPUTE
        self.computing_ns[operation.rank, operation.step] += operation.duration_ns if is_compute else 0
        start, end = operation.start_ns, operation.start_ns + operation.duration_ns
        first, last = self.steps.get(operation.step, (start, end))
        self.steps[operation.step] = (min(first, start), max(last, end))
        if is_compute and operation.name != OPTIMIZER:
            self.splits_backward |= operation.name == WEIGHT
            if operation.chunk is not None:
                self.chunks = max(self.chunks, operation.chunk + 1)
            if operation.microbatch is not None:
                self.numbered.add(operation.rank)
            self.names_chunks |= operation.chunk is not None or operation.stage is not None
            if operation.stage is not None:
                self._owners[operation.stage][operation.where.pp] += 1
        else:
            self._forwards |= {(operation.where.pp, m.operation) for m in messages_of(operation.name) if m.kind == "F"}

    def done(self) -> JobLayout:
        """Settle what the operations disagree about."""
        self.places = {rank: votes.most_common(1)[0][0] for rank, votes in sorted(self._votes.items())}
        return self

    def merged(self, other: JobLayout) -> JobLayout:
        """This and the layout of another file of the same job."""
        both = JobLayout(chunks=max(self.chunks, other.chunks))
        both.splits_backward = self.splits_backward or other.splits_backward
        both.unplaced = self.unplaced + other.unplaced
        both.names_chunks = self.names_chunks or other.names_chunks
        both._forwards = self._forwards | other._forwards
        both.numbered = self.numbered | other.numbered
        for one in (self, other):
            for rank, votes in one._votes.items():
                both._votes[rank] += votes
            for stage, owners in one._owners.items():
                both._owners[stage] += owners
            for moment, duration in one.computing_ns.items():
                both.computing_ns[moment] += duration
            for step, (start, end) in one.steps.items():
                first, last = both.steps.get(step, (start, end))
                both.steps[step] = (min(first, start), max(last, end))
        return both.done()

    def is_view_of(self, other: JobLayout) -> bool:
        """Whether it shows operations of the other: the same ranks at the same places, computing equally long.

        Either may have ranks and steps that the other lacks. A microsecond is allowed for, as a timeline's text is
        rounded, and what sums of 32-bit seconds are off by.
        """
        shared = self.computing_ns.keys() & other.computing_ns.keys()
        places = [(self.places[rank], other.places[rank]) for rank in self.places.keys() & other.places.keys()]
        return (
            bool(shared)
            and all((one.dp, one.pp) == (two.dp, two.pp) for one, two in places)
            and all(
                abs(self.computing_ns[moment] - other.computing_ns[moment])
                <= max(_TEXT_ROUNDING_NS, other.computing_ns[moment] * _SUM_ROUNDING)
                for moment in shared
            )
        )

    @property
    def stages(self) -> int:
        """Pipeline ranks."""
        return max((where.pp for where in self.places.values()), default=0) + 1

    def owner(self, stage: int) -> int | None:
        """Pipeline rank of a global stage, or None if there is no such stage."""
        if not 0 <= stage < self.stages * self.chunks:
            return None
        votes = self._owners.get(stage)
        return votes.most_common(1)[0][0] if votes else stage % self.stages

    @property
    def is_looped(self) -> bool:
        """Whether every stage is where looping places it: chunk x pipeline ranks + pipeline rank."""
        # Only those that were seen somewhere may be elsewhere; a damaged number may make stages by the billion.
        return all(self.owner(stage) in (None, stage % self.stages) for stage in self._owners)

    @property
    def wraps_around(self) -> bool:
        """Whether ranks seem to hold several chunks that no operation names: activations leave the last one."""
        ends = {(self.stages - 1, "send"), (0, "recv")}
        return not self.names_chunks and self.stages > 1 and ends <= self._forwards

    @property
    def restarts(self) -> bool:
        """Whether the clock starts anew with every step (most of them: a damaged time is no new start)."""
        starts = [self.steps[step][0] for step in sorted(self.steps)]
        anew = sum(later <= earlier for earlier, later in pairwise(starts))
        return 2 * anew > len(starts) - 1

    @property
    def has_epoch(self) -> bool:
        """Whether times are Unix times."""
        return min((first for first, _ in self.steps.values()), default=0) >= _EPOCH_FROM_NS

    def offsets(self) -> dict[int, int]:
        """What to add to the times of each step: where the clock restarts, steps are laid end to end.

        Raises:
            MalformedTrace: If they would not fit into 64 bits.
        """
        if not self.restarts:
            return dict.fromkeys(self.steps, 0)
        offsets, end = {}, 0
        for step in sorted(self.steps):
            first, last = self.steps[step]
            offsets[step] = end - first
            end += last - first
        if end > TIME_LIMIT_NS:
            raise MalformedTrace(f"its steps last {end:,} ns together: some of its times are damaged.")
        return offsets

    def identity(self, rank: int, tp_size: int | None, world_size: int | None) -> Identity:
        """Who a rank is: its groups as far as every member of them is recorded."""
        world = max(world_size or 0, max(self.places) + 1)
        return Identity(
            rank=rank,
            world_size=world,
            groups=tuple(
                Group(name, name, ranks)
                for name in (PP, DP, TP, EMBEDDING, WORLD)
                if (ranks := self.group(name, rank, tp_size, world))
            ),
        )

    def group(self, name: str, rank: int, tp_size: int | None, world_size: int) -> tuple[int, ...]:
        """Global ranks of one of a rank's groups; empty if the trace does not tell all of them."""
        where, cells = self.places[rank], self._cells()
        own = cells[where.dp, where.pp]
        member = own.index(rank)
        column = self._line(self.stages, lambda stage: cells.get((where.dp, stage), []))
        row = self._line(max(w.dp for w in self.places.values()) + 1, lambda dp: cells.get((dp, where.pp), []))
        if name == WORLD:
            return tuple(self.places) if len(self.places) == world_size else ()
        if name == TP:
            return tuple(own) if where.tp is not None or len(own) == tp_size else ()
        if name == EMBEDDING:
            column = [column[0], column[-1]] if where.pp in (0, self.stages - 1) and self.stages > 1 else []
        cells_of_group = row if name == DP else column
        if any(len(cell) != len(own) for cell in cells_of_group):
            return ()
        return tuple(cell[member] for cell in cells_of_group)

    def _line(self, count: int, cell: Callable[[int], list[int]]) -> list[list[int]]:
        """So many cells; empty ones at once where there are fewer ranks, as a damaged number may be in the billions."""
        return [cell(number) for number in range(count)] if count <= len(self.places) else [[], []]

    def _cells(self) -> dict[tuple[int, int], list[int]]:
        cells: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank, where in self.places.items():
            cells[where.dp, where.pp].append(rank)
        for ranks in cells.values():
            ranks.sort(key=lambda r: (self.places[r].tp or 0, r))
        return dict(cells)
