"""What each action of a rank allocates and frees, from the allocator's log.

The caching allocator works in host order, so a change belongs to the action whose launches surround it.
Between two actions, what is freed belongs to the one before and what is allocated to the one after.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.reconstruction.memory.log import NO_BLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.memory.log import Log, Numbers

NO_ALLOCATION = -1
"""In arrays, in place of the index of an allocation that the log does not hold."""

Key = tuple[int | str, ...]
"""Stage, kind and microbatch of an action; of a part of one, the number of the part besides."""


class HostSpan(NamedTuple):
    """When the host worked for an action.

    Attributes:
        key: The action.
        begin_ns: First launch.
        end_ns: Last launch.
    """

    key: Key
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class ActionMemory:
    """Memory of one rank by action.

    Attributes:
        static_bytes: Allocated before the first action.
        held: Per action, bytes allocated at its end minus at its start.
        peak: Per action, highest level above that at its start.
        tail_peak: After the last action (optimizer), highest level above that at its end.
        outliving: Per forward, what of it was freed after its backward ended; ``held`` counts that as freed there.
        names_blocks: Whether the log joins frees to allocations.
    """

    static_bytes: int
    held: Mapping[Key, int] = field(default_factory=dict)
    peak: Mapping[Key, int] = field(default_factory=dict)
    tail_peak: int = 0
    outliving: Mapping[Key, int] = field(default_factory=dict)
    names_blocks: bool = False


def memory_by_action(log: Log, spans: Sequence[HostSpan]) -> ActionMemory:
    """Split the allocator's log into what stood before the first action, the actions, and what came after.

    What a forward allocates is counted as freed at the end of its own backward where it was freed later: the last
    stage of 1F1B holds the logits of one microbatch until the next forward, after the backward that needed them;
    an order that puts that forward first frees them at the backward. So the sum over microbatches in flight holds
    in any order, and the levels of the observed one stay as they were. What the last forwards leave for those of the
    next step to free (DeepSpeed's pipe buffers), the first ones free of the step before: that is not static.

    Args:
        log: Every change of the step.
        spans: When the host worked for each action, in that order; they do not overlap.
    """
    import numpy as np

    count = len(spans)
    begin = _first_change(log, spans[0].begin_ns)
    static = log.base_bytes + int(log.delta_bytes[:begin].sum())
    delta = log.delta_bytes[begin:]
    made_at = allocations_of_frees(log.block, log.delta_bytes)[begin:] - begin
    maker = np.where(made_at >= 0, made_at, NO_ALLOCATION)
    owner = _owners(log.time_ns[begin:], delta, spans)
    _settle_after_last(log.time_ns[begin:], delta, owner, maker, spans)
    own = np.bincount(owner, weights=delta, minlength=count + 1).astype(np.int64)
    held = own.copy()
    outliving: dict[Key, int] = {}
    last_use = _last_backwards(spans)
    freed = np.flatnonzero((delta < 0) & (maker >= 0))
    made = owner[maker[freed]]
    for row, by in zip(freed.tolist(), made.tolist(), strict=True):
        home = last_use[by] if by < count else None
        if home is not None and owner[row] > home:
            held[home] += delta[row]
            held[owner[row]] -= delta[row]
            outliving[spans[by].key] = outliving.get(spans[by].key, 0) - int(delta[row])
    counted_static = static - _count_across_steps(
        np.where(log.block[begin:] == NO_BLOCK, 0, delta), owner, maker, last_use, held
    )
    # Stable: changes of one owner stay in order of time.
    order = np.argsort(owner, kind="stable")
    real = static + np.cumsum(delta[order])
    starts = np.searchsorted(owner[order], np.arange(count + 2))
    real_before = static + np.concatenate([[0], np.cumsum(own)])
    counted_before = counted_static + np.concatenate([[0], np.cumsum(held)])
    peaks = []
    for k in range(count + 1):
        inside = real[starts[k] : starts[k + 1]]
        highest = max(int(real_before[k]), int(inside.max()) if len(inside) else 0)
        peaks.append(highest - int(counted_before[k]))
    return ActionMemory(
        static_bytes=counted_static,
        held={span.key: int(held[k]) for k, span in enumerate(spans)},
        peak={span.key: peaks[k] for k, span in enumerate(spans)},
        tail_peak=peaks[count],
        outliving=outliving,
        names_blocks=bool((log.block != NO_BLOCK).any()),
    )


def _count_across_steps(
    delta: Numbers, owner: Numbers, maker: Numbers, last_use: Sequence[int | None], held: Numbers
) -> int:
    """Count what forwards leave to the next step as freed by their backwards, where this one frees as much so left.

    Returns:
        Bytes that stand ahead of the step for it to free.
    """
    import numpy as np

    count = len(last_use)
    inside = owner < count
    was_freed = np.zeros(len(delta), bool)
    was_freed[maker[maker >= 0]] = True
    left: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero((delta > 0) & inside & ~was_freed).tolist():
        home = last_use[owner[row]]
        if home is not None:
            left[int(delta[row])].append(home)
    across = 0
    for row in np.flatnonzero((delta < 0) & inside & (maker < 0)).tolist():
        size = -int(delta[row])
        if left.get(size):
            held[left[size].pop()] -= size
            held[owner[row]] += size
            held[count] += size
            across += size
    return across


def _first_change(log: Log, first_launch_ns: int) -> int:
    """Index of the first action's first change: its own allocations are those after the last free before its launch."""
    import numpy as np

    before = np.flatnonzero((log.time_ns < first_launch_ns) & (log.delta_bytes < 0))
    return int(before[-1]) + 1 if len(before) else 0


def allocations_of_frees(block: Numbers, delta: Numbers) -> Numbers:
    """Per change of a log, the index of the allocation that it frees; NO_ALLOCATION for none."""
    import numpy as np

    allocation = np.full(len(block), NO_ALLOCATION, np.int64)
    named = np.flatnonzero((block != NO_BLOCK) & (delta != 0))
    order = named[np.argsort(block[named], kind="stable")]
    earlier, later = order[:-1], order[1:]
    # Only a free that undoes all of it ends an allocation: records may be missing in between.
    pairs = (block[earlier] == block[later]) & (delta[earlier] > 0) & (delta[earlier] == -delta[later])
    allocation[later[pairs]] = earlier[pairs]
    return allocation


def _owners(time: Numbers, delta: Numbers, spans: Sequence[HostSpan]) -> Numbers:
    """Index of the action each change belongs to; the number of actions stands for what follows the last one."""
    import numpy as np

    begins = np.array([s.begin_ns for s in spans], np.int64)
    ends = np.array([s.end_ns for s in spans], np.int64)
    current = np.maximum(np.searchsorted(begins, time, "right") - 1, 0)
    owners: Numbers = current + ((time > ends[current]) & (delta > 0))
    return owners


def _settle_after_last(
    time: Numbers, delta: Numbers, owner: Numbers, maker: Numbers, spans: Sequence[HostSpan]
) -> None:
    """After the last launch, the last action still frees what it needed; the rest follows it.

    What an earlier backward made and kept until then is a gradient. Without names of blocks all frees before the
    next allocation are the last action's.
    """
    import numpy as np

    last = len(spans) - 1
    late = np.flatnonzero(time > spans[-1].end_ns)
    if not len(late):
        return
    fresh = np.flatnonzero(delta[late] > 0)
    until = int(fresh[0]) if len(fresh) else len(late)
    owner[late[until:]] = last + 1
    gradients = np.array([s.key[1] != ActionKind.FORWARD.value for s in spans] + [True])
    freed = late[delta[late] < 0]
    made = maker[freed]
    known = made >= 0
    makers = owner[made[known]]
    of_last = np.array([s.key[:3] == spans[-1].key[:3] for s in spans] + [False])
    kept = (makers < last) & gradients[makers] & ~of_last[makers]
    owner[freed[known][kept]] = last + 1
    owner[freed[known][of_last[makers]]] = last


def _last_backwards(spans: Sequence[HostSpan]) -> list[int | None]:
    """Per action, the index of the last backward of its microbatch if it is a forward, else None."""
    backward: dict[tuple[int | str, int | str], int] = {}
    for index, span in enumerate(spans):
        if span.key[1] != ActionKind.FORWARD.value:
            backward[span.key[0], span.key[2]] = index
    return [backward.get((s.key[0], s.key[2])) if s.key[1] == ActionKind.FORWARD.value else None for s in spans]
