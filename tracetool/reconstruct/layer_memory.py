"""What each layer of an action allocates and frees, from the allocator's log and the host times of launches."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from tracetool.model.action import ActionKind
    from tracetool.reconstruct.action_view import ActionView
    from tracetool.store import Run

_SQL = """
SELECT rank, time_ns, delta_bytes
FROM memory
WHERE list_contains($ranks, rank) AND time_ns >= $first AND time_ns < $last
  AND delta_bytes IS NOT NULL AND allocated_bytes IS NOT NULL
ORDER BY rank, time_ns
"""


class BlockMemory(NamedTuple):
    """Bytes that a part of an action holds at its end beyond its start, and its highest level above that."""

    held_bytes: int
    peak_bytes: int


ByAction = dict[tuple[int, "ActionKind", int], dict[int, BlockMemory]]


class _Block(NamedTuple):
    """Launches of one action within one layer, in host time."""

    action: tuple[int, ActionKind, int]
    layer: int
    first_ns: int
    last_ns: int


def memory_of_blocks(run: Run, views: Sequence[ActionView], spans: Mapping[int, tuple[int, int]]) -> ByAction:
    """Memory per action (stage, kind, microbatch) and layer; none for ranks that log no single allocations.

    As between actions, what is freed between two parts belongs to the one before, and what is allocated to the
    one after.

    Args:
        run: Holds the log.
        views: The actions, with the places of their kernels.
        spans: Host times of the step on each rank.
    """
    import numpy as np

    log = run.query(
        _SQL,
        {
            "ranks": list(spans),
            "first": min(first for first, _ in spans.values()),
            "last": max(last for _, last in spans.values()),
        },
    )
    found: ByAction = defaultdict(dict)
    by_rank: dict[int, list[ActionView]] = defaultdict(list)
    for view in views:
        by_rank[view.rank].append(view)
    ranks = log["rank"].to_numpy()
    for rank, of_rank in by_rank.items():
        low, high = np.searchsorted(ranks, [rank, rank + 1])
        if low == high or any(view.places is None for view in of_rank):
            continue
        times, deltas = (log[name].to_numpy()[low:high] for name in ("time_ns", "delta_bytes"))
        blocks = sorted((b for view in of_rank for b in _blocks(view)), key=lambda b: b.first_ns)
        for block, memory in zip(blocks, _memory(blocks, times, deltas, spans[rank]), strict=True):
            found[block.action][block.layer] = memory
    return dict(found)


def _blocks(view: ActionView) -> Iterator[_Block]:
    s = view.segment
    launches: dict[int, list[int]] = defaultdict(list)
    for kernel, place in zip(s.kernels, view.places or (), strict=True):
        launches[place.layer].append(kernel.launch_ns)
    for layer, times in launches.items():
        yield _Block((s.stage, s.kind, s.microbatch), layer, min(times), max(times))


def _memory(
    blocks: Sequence[_Block],
    times: npt.NDArray[np.int64],
    deltas: npt.NDArray[np.int64],
    span: tuple[int, int],
) -> Iterator[BlockMemory]:
    import numpy as np

    starts = np.searchsorted(times, [b.first_ns for b in blocks])
    ends = np.searchsorted(times, [b.last_ns for b in blocks], side="right")
    # What is allocated ahead of the first action follows the last free before it.
    before = np.flatnonzero(deltas[: starts[0]] < 0)
    gaps = [
        (int(before[-1]) + 1 if len(before) else int(np.searchsorted(times, span[0])), int(starts[0])),
        *((int(end), int(start)) for end, start in zip(ends[:-1], starts[1:], strict=True)),
        (int(ends[-1]), int(ends[-1])),
    ]
    for block, (gap, after) in enumerate(pairwise(gaps)):
        ahead, behind = deltas[slice(*gap)], deltas[slice(*after)]
        own = deltas[starts[block] : ends[block]]
        # At the end of the last action, memory is freed as long as nothing is allocated.
        if block == len(blocks) - 1:
            rest = deltas[ends[-1] :]
            rising = np.flatnonzero(rest > 0)
            behind = rest[: rising[0]] if len(rising) else rest
        changes = np.concatenate([ahead[ahead > 0], own, behind[behind < 0]])
        levels = np.cumsum(changes)
        yield BlockMemory(int(changes.sum()), int(max(levels.max(initial=0), 0)))
