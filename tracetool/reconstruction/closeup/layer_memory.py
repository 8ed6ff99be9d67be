"""What each layer of an action allocates and frees, from the allocator's log and the host times of launches."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reconstruction.memory.actions import HostSpan, memory_by_action

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.reconstruction.closeup.action_view import ActionView
    from tracetool.reconstruction.memory.log import Log


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
