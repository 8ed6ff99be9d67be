"""Where each rank of the job sits along every parallel dimension.

What process groups across pipelines are for, from when their collectives run.

Seen from a first stage, whose last backward comes after all its messages: a tensor-parallel group works inside every
forward and backward, so its collectives lie between those messages; a data-parallel group reduces gradients once the
last backward has begun, so its collectives come before the first message of a step or after the last one. (Fully
sharded data parallelism gathers parameters inside every action: it looks like the former.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.process_groups import DIMENSIONS, Dimension, dimension_of, spans_context
from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.exchanges import Ring
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.process_groups import Dimension, ProcessGroup
    from tracetool.store.run import Run

_MOST_LISTED = 30


class Purpose(NamedTuple):
    """What a group across pipelines is for.

    Attributes:
        ranks: Its members, of one stage.
        dimension: tp or dp.
        confidence: Share of the first stages' ranks whose collectives say so.
        detail: What that was.
    """

    ranks: tuple[int, ...]
    dimension: Dimension
    confidence: float
    detail: str


# ``place``: between which two messages of its rank and step an operation lies; the members of a batch are one message.
_SQL = """
WITH placed AS (
    SELECT c.rank, c.operation, c.peer, c.batch, c.position, c.posted_ns, c.group_ranks, coalesce(s.step, -1) AS step
    FROM comms AS c ASOF LEFT JOIN steps AS s ON s.rank = c.rank AND s.start_ns <= c.posted_ns
    WHERE list_contains($heads, c.rank)
),
sends AS (
    SELECT rank, step, max(messages) AS messages FROM (
        SELECT rank, step, peer, count(*) AS messages FROM placed WHERE operation = 'send' GROUP BY ALL
    ) GROUP BY ALL
),
units AS (
    SELECT rank, step, min(posted_ns) AS posted_ns
    FROM placed WHERE operation IN ('send', 'recv') GROUP BY rank, step, coalesce(batch, -1 - position)
),
places AS (
    SELECT rank, step, posted_ns, row_number() OVER (PARTITION BY rank, step ORDER BY posted_ns) AS place,
           count(*) OVER (PARTITION BY rank, step) AS last
    FROM units
)
SELECT c.rank, c.group_ranks, (
           count(DISTINCT (c.step, p.place)) FILTER (p.place < p.last)
       ) AS used, (SELECT sum(messages - 1) FROM sends WHERE sends.rank = c.rank) AS microbatches
FROM placed AS c
ASOF LEFT JOIN places AS p ON p.rank = c.rank AND p.step = c.step AND p.posted_ns <= c.posted_ns
WHERE c.operation NOT IN ('send', 'recv', 'exchange', 'barrier') AND len(c.group_ranks) > 1
GROUP BY c.rank, c.group_ranks
ORDER BY ALL
"""


def purposes(run: Run, pipelines: Sequence[PipelineGroup], groups: Sequence[ProcessGroup]) -> list[Purpose]:
    """What each group is for whose members hold the same stage of different pipelines.

    Groups of the same shape have one purpose on all stages.

    Args:
        run: The Run.
        pipelines: Those that were found.
        groups: All process groups, with full lists of ranks.
    """
    if len(pipelines) < 2:
        return []
    stage = {rank: place for pipeline in pipelines for place, rank in enumerate(pipeline.ranks)}
    across = {g.ranks for g in groups if len(g.ranks) > 1 and len({stage.get(r, -1 - r) for r in g.ranks}) == 1}
    whole = {ranks[:_MOST_LISTED]: ranks for ranks in across}
    by_shape: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for _, listed, used, microbatches in run.rows(_SQL, {"heads": [p.ranks[0] for p in pipelines]}):
        ranks = whole.get(tuple(listed[:_MOST_LISTED]))
        if ranks is not None and microbatches:
            by_shape[_shape(ranks)].append((used, int(microbatches)))
    of_groups = []
    for shape, rows in by_shape.items():
        verdicts = [_verdict(*row) for row in rows]
        dimension: Dimension = "tp" if verdicts.count("tp") > verdicts.count("dp") else "dp"
        agreeing = verdicts.count(dimension) / len(verdicts)
        if agreeing <= 0.5:
            continue
        used, microbatches = (sum(column) for column in zip(*rows, strict=True))
        detail = f"collectives at {used:,} places between the messages of {microbatches:,} microbatches"
        of_groups += [Purpose(ranks, dimension, agreeing, detail) for ranks in sorted(across) if _shape(ranks) == shape]
    return of_groups


def _shape(ranks: tuple[int, ...]) -> tuple[int, int]:
    return ranks[1] - ranks[0], len(ranks)


def _verdict(used: int, microbatches: int) -> Dimension | None:
    """Inside every microbatch but the first one (which may precede all messages), or in far fewer places."""
    if used >= microbatches:
        return "tp"
    return "dp" if 2 * used <= microbatches else None


class Coordinates(NamedTuple):
    """One rank's row of the table ``coordinates``.

    Attributes:
        rank: Global rank.
        pipeline: Number of its pipeline.
        pp: Position in stage order.
        dp: Data-parallel position.
        tp: Tensor-parallel position.
        cp: Context-parallel position.
        ep: Expert-parallel position.
        recorded: Whether its trace is in the Run.
        copied_from: Recorded rank whose trace stands for it.
        evidence: The weakest behind any of them.
        confidence: The least of any of them.
    """

    rank: int
    pipeline: int | None
    pp: int | None
    dp: int | None
    tp: int | None
    cp: int | None
    ep: int | None
    recorded: bool
    copied_from: int | None
    evidence: Evidence
    confidence: float


def read_coordinates(run: Run) -> list[Coordinates]:
    """The rows of a Run's table, in order of ranks.

    Without a query: what asks nothing else of a Run need not open a database, which takes longer than all it asks.
    """
    rows = [Coordinates(**row) for row in run.table("coordinates").to_pylist()]
    return sorted(rows, key=lambda row: row.rank)


class _Dimension(NamedTuple):
    """What is known of one dimension."""

    places: dict[int, int]
    lists: tuple[tuple[int, ...], ...]
    evidence: Evidence
    confidence: float = 1.0
    detail: str | None = None


_ACROSS: tuple[Dimension, Dimension] = ("tp", "dp")

_STRENGTH: tuple[Evidence, ...] = ("label", "metadata", "kernels", "messages", "order", "inferred", "copied", "assumed")


def find_coordinates(
    run: Run,
    pipelines: Sequence[PipelineGroup],
    groups: Sequence[ProcessGroup],
    account: Account,
    *,
    copies: Mapping[int, int] | None = None,
    stages: Mapping[int, int] | None = None,
    rings: Sequence[Ring] = (),
) -> list[Coordinates]:
    """Coordinates of every rank of the job, recorded or not.

    A process group whose description names a dimension gives its members their positions in it. A dimension that no
    description names follows from the communication graph: pipelines are joined by messages, and what the groups
    across them are for shows in when they are used. Ranks that no
    group lists continue the regular grid that the others form, if they form one.

    Args:
        run: The Run.
        pipelines: Those that were found, in order.
        groups: All process groups.
        account: Gets a finding for each dimension.
        copies: Ranks that are copies, and of which recorded one.
        stages: Lowest stage that labels name on each rank, where messages are not recorded.
        rings: Ranks that hold parts of one sequence; those without a description are context parallel.
    """
    copies = copies or {}
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")} - set(copies)
    world = max([run.manifest.get("world_size") or 0, *(r + 1 for r in recorded), *(r + 1 for r in copies)])
    axes: dict[Dimension, _Dimension] = {}
    for dimension in DIMENSIONS:
        axis = _pipeline_axis(pipelines, groups, stages or {}) if dimension == "pp" else _described(dimension, groups)
        if axis is not None:
            axes[dimension] = axis
    if "cp" not in axes and any(not ring.description for ring in rings):
        axes["cp"] = _of_rings([ring for ring in rings if not ring.description])
    axes |= _from_traffic(purposes(run, pipelines, groups), pipelines, axes)
    _record_coordinates(axes, account)
    grown, grid = _grown(axes, world)
    if grid:
        account.find(
            "coordinates", format_ranks(grid), "continue the grid of the other ranks", "inferred", 1.0,
            "no group of a recorded rank lists them",
        )  # fmt: skip
    if not axes and world > 1:
        account.note(
            NoticeCode.COORDINATES_UNKNOWN,
            "no process group and no message tells the parallel dimensions: coordinates are unknown",
        )
    numbers = {rank: n for n, pipeline in enumerate(pipelines) for rank in pipeline.ranks}
    rows = []
    for rank in range(world):
        known = [axes[d] for d in axes if rank in axes[d].places]
        evidence: Evidence = max((a.evidence for a in known), key=_STRENGTH.index, default="assumed")
        confidence = min((a.confidence for a in known), default=0.0)
        if rank in grid:
            evidence, confidence = "inferred", min((a.confidence for a in axes.values()), default=0.0)
        place: dict[Dimension, int | None] = {d: grown.get(d, {}).get(rank) for d in DIMENSIONS}
        rows.append(
            Coordinates(
                rank=rank, pipeline=numbers.get(rank), pp=place["pp"], dp=place["dp"], tp=place["tp"],
                cp=place["cp"], ep=place["ep"],
                recorded=rank in recorded, copied_from=copies.get(rank),
                evidence="copied" if rank in copies else evidence, confidence=confidence,
            )
        )  # fmt: skip
    return rows


def _pipeline_axis(
    pipelines: Sequence[PipelineGroup], groups: Sequence[ProcessGroup], stages: Mapping[int, int]
) -> _Dimension | None:
    in_messages = [p.ranks for p in pipelines]
    members = {rank for ranks in in_messages for rank in ranks}
    declared = {g.ranks for g in groups if dimension_of(g.description) == "pp" and not members & set(g.ranks)}
    lists = (*in_messages, *sorted(declared))
    if not lists and len(set(stages.values())) == len(stages) > 1:
        order = tuple(sorted(stages, key=lambda rank: stages[rank]))
        return _Dimension({rank: place for place, rank in enumerate(order)}, (order,), "label")
    if not lists:
        return None
    places = {rank: place for ranks in lists for place, rank in enumerate(ranks)}
    evidence: Evidence = max((p.evidence for p in pipelines), key=_STRENGTH.index, default="metadata")
    doubts = [p.detail for p in pipelines if p.detail]
    return _Dimension(
        places, lists, evidence, min((p.confidence for p in pipelines), default=1.0), doubts[0] if doubts else None
    )


def _described(dimension: Dimension, groups: Sequence[ProcessGroup]) -> _Dimension | None:
    lists = {g.ranks for g in groups if dimension_of(g.description) == dimension}
    detail = None
    if dimension == "dp":
        # Without context parallelism a group over both is the data-parallel one; some captures list no other.
        context = [g.ranks for g in groups if dimension_of(g.description) == "cp"]
        alone = not any(len(ranks) > 1 for ranks in context)
        covered = {rank for ranks in lists for rank in ranks}
        spare = {g.ranks for g in groups if spans_context(g.description)} if alone else set()
        spare = {ranks for ranks in spare if not covered & set(ranks)}
        lists |= spare
        if spare:
            spare_ranks = format_ranks({rank for ranks in spare for rank in ranks})
            detail = f"of {spare_ranks} from the group over the data and context parallel ranks"
    if not lists:
        return None
    by_rank: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for ranks in sorted(lists):
        for rank in ranks:
            by_rank[rank].append(ranks)
    largest = {rank: max(of_rank, key=len) for rank, of_rank in by_rank.items()}
    several = [rank for rank, of_rank in by_rank.items() if len({len(r) for r in of_rank if len(r) > 1}) > 1]
    if several:
        detail = f"several groups of {format_ranks(several)} are described so: the largest is taken"
    taken = tuple(sorted(set(largest.values())))
    places = {rank: ranks.index(rank) for rank, ranks in largest.items()}
    return _Dimension(places, taken, "metadata", 1 - len(several) / len(by_rank), detail)


def _of_rings(rings: Sequence[Ring]) -> _Dimension:
    lists = tuple(sorted({tuple(sorted(ring.ranks)) for ring in rings}))
    places = {rank: place for ranks in lists for place, rank in enumerate(ranks)}
    return _Dimension(places, lists, "messages", 1.0, "messages inside actions go round among them")


def _from_traffic(
    purposes: Sequence[Purpose], pipelines: Sequence[PipelineGroup], axes: Mapping[Dimension, _Dimension]
) -> dict[Dimension, _Dimension]:
    """Tensor and data parallelism where no description names them."""
    inferred: dict[Dimension, _Dimension] = {}
    for dimension in _ACROSS:
        mine = [p for p in purposes if p.dimension == dimension]
        if dimension in axes or not mine:
            continue
        lists = tuple(sorted({p.ranks for p in mine}))
        places = {rank: place for ranks in lists for place, rank in enumerate(ranks)}
        details = Counter(p.detail for p in mine).most_common(1)
        inferred[dimension] = _Dimension(
            places, lists, "order", sum(p.confidence for p in mine) / len(mine), details[0][0]
        )  # fmt: skip
    # As many pipelines as one of the two explains leave nothing for the other.
    ranks = [rank for p in pipelines for rank in p.ranks]
    for dimension, other in (_ACROSS, _ACROSS[::-1]):
        whole = inferred.get(other) or axes.get(other)
        if dimension in axes or dimension in inferred or whole is None or not pipelines:
            continue
        if {len(members) for members in whole.lists} == {len(pipelines)}:
            inferred[dimension] = _Dimension(
                dict.fromkeys(ranks, 0), tuple((rank,) for rank in ranks), "inferred", whole.confidence,
                f"the {other} groups join all pipelines",
            )  # fmt: skip
    return inferred


def _record_coordinates(axes: Mapping[Dimension, _Dimension], account: Account) -> None:
    for dimension, axis in axes.items():
        sizes = sorted({len(ranks) for ranks in axis.lists})
        shown = ", ".join(str(list(ranks)) for ranks in axis.lists[:4] if len(ranks) > 1)
        more = "" if len(axis.lists) <= 4 else f" and {format_count(len(axis.lists) - 4, 'group')} more"
        value = f"size {' or '.join(map(str, sizes))}" + (f": {shown}{more}" if shown else "")
        account.find("coordinates", dimension, value, axis.evidence, axis.confidence, axis.detail)


def _grown(axes: Mapping[Dimension, _Dimension], world: int) -> tuple[dict[Dimension, dict[int, int]], set[int]]:
    """Positions of all ranks, and those ranks that have them from the grid alone.

    In a grid a rank's position is ``rank // stride % size`` along every dimension, and the sizes multiply to the
    number of ranks. What contradicts it anywhere is no grid.
    """
    known = {dimension: dict(axis.places) for dimension, axis in axes.items()}
    absent = {rank for rank in range(world) if any(rank not in places for places in known.values())}
    rules: dict[Dimension, tuple[int, int]] = {}
    for dimension, axis in axes.items():
        shapes = {(ranks[1] - ranks[0] if len(ranks) > 1 else 1, len(ranks)) for ranks in axis.lists}
        if len(shapes) != 1:
            return known, set()
        stride, size = shapes.pop()
        if stride < 1 or any(rank // stride % size != place for rank, place in axis.places.items()):
            return known, set()
        rules[dimension] = (stride, size)
    # Expert-parallel groups share ranks with data-parallel ones: they are no axis of their own.
    if not absent or prod(size for d, (_, size) in rules.items() if d != "ep") != world:
        return known, set()
    for dimension, (stride, size) in rules.items():
        for rank in absent:
            known[dimension].setdefault(rank, rank // stride % size)
    return known, {rank for rank in absent if not any(rank in axis.places for axis in axes.values())}
