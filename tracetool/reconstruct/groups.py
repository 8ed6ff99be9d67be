"""Which ranks form a pipeline, and in which order: from who sends to whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import NoPipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class PipelineGroup:
    """Global ranks of one pipeline in stage order; inferred if no process group lists them in order."""

    ranks: tuple[int, ...]
    inferred: bool = False

    def position(self, rank: int) -> int:
        """Pipeline rank of a global rank."""
        return self.ranks.index(rank)


def find_pipelines(run: Run) -> list[PipelineGroup]:
    """All pipelines of the Run, the one with the lowest rank first.

    Ranks joined by sends and receives form a pipeline. Its order is that of the process group with
    exactly these ranks (the one that carries the traffic first), else the chain of peers.

    Raises:
        NoPipeline: If there are no sends and receives with a known peer, or they do not join the ranks of a
            declared pipeline.
    """
    pairs = run.rows(
        "SELECT DISTINCT rank, peer, group_ranks FROM comms "
        "WHERE operation IN ('send', 'recv') AND peer IS NOT NULL ORDER BY ALL"
    )
    if not pairs:
        raise NoPipeline(
            f"{run.name} holds no sends and receives between ranks: no pipeline parallelism to replay.",
            hint="send and receive records need torch 2.6 or newer, or Ascend Level1 and up",
        )
    peers: dict[int, set[int]] = defaultdict(set)
    carrying: list[tuple[int, ...]] = []
    for rank, peer, group_ranks in pairs:
        peers[rank].add(peer)
        peers[peer].add(rank)
        carrying.append(tuple(group_ranks))
    declared = [tuple(r) for (r,) in run.rows("SELECT DISTINCT ranks FROM groups ORDER BY ALL")]
    pipelines_sql = "SELECT DISTINCT ranks FROM groups WHERE starts_with(description, 'pp') ORDER BY ALL"
    declared_pipelines = [tuple(r) for (r,) in run.rows(pipelines_sql)]
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    pipelines = []
    left = set(peers)
    while left:
        members = _reach(min(left), peers)
        left -= members
        whole = next((g for g in declared_pipelines if set(g) > members), None)
        if whole is not None and set(whole) <= recorded:
            raise NoPipeline(
                f"ranks {list(whole)} form one pipeline, but in this trace {sorted(members)} exchange no messages "
                f"with {sorted(set(whole) - members)}.",
                hint="transfers outside NCCL, RCCL and HCCL (such as TCP between data centres) are not recorded",
            )
        # Unrecorded ranks hide part of the chain; the pipeline's group still lists them.
        order = whole or next((g for g in [*carrying, *declared] if set(g) == members), None)
        if order is not None:
            pipelines.append(PipelineGroup(order))
        else:
            pipelines.append(PipelineGroup(_chain(run, members, peers), inferred=True))
    return pipelines


def _reach(start: int, peers: Mapping[int, set[int]]) -> set[int]:
    seen, queue = {start}, [start]
    while queue:
        fresh = peers[queue.pop()] - seen
        seen |= fresh
        queue += fresh
    return seen


def _chain(run: Run, members: set[int], peers: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Order a chain of peers; the first stage is the end that sends before it receives."""
    ends = sorted(rank for rank in members if len(peers[rank]) == 1)
    if len(ends) != 2:
        raise NoPipeline(
            f"ranks {sorted(members)} exchange messages, but not along a chain, and no process group "
            "lists them in order.",
            hint="record with torch 2.4 or newer, whose traces name the process groups",
        )
    first_sends = {
        rank
        for rank in ends
        if run.rows(
            "SELECT arg_min(operation, position) FROM comms "
            "WHERE rank = ? AND operation IN ('send', 'recv')", [rank],
        ) == [("send",)]
    }  # fmt: skip
    start = ends[0] if ends[0] in first_sends or not first_sends else ends[1]
    order = [start]
    while len(order) < len(members):
        (following,) = peers[order[-1]] - set(order)
        order.append(following)
    return tuple(order)
