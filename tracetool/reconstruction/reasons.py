"""Why a step cannot be reconstructed: what a trace lacks explains more than where its lack was first met."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option
from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.errors import ReconstructError
    from tracetool.store.run import Run

_MUCH = 0.05
"""Share of launches without a kernel from which on kernels are taken for lost."""

_EARLY = 0.1
"""Share of its duration by which a rank's trace ends ahead of the step on all other ranks."""


class Reason(NamedTuple):
    """What a trace lacks.

    Attributes:
        text: What, and on which ranks.
        hint: How to record it.
    """

    text: str
    hint: str


class _RankCounts(NamedTuple):
    """What one rank recorded in a step."""

    kernels: int
    ops: int
    launches: int
    nodes: int
    graphs: int
    bare: int
    kernels_of_graphs: int
    messages: int
    unknown: int
    last_ns: int


_SQL = """
WITH mine AS (
    SELECT * FROM events WHERE rank = $rank AND start_ns >= $first AND start_ns < $last
),
kernels AS (SELECT correlation FROM events WHERE rank = $rank AND category IN ('kernel', 'memcpy', 'memset'))
SELECT
    count(*) FILTER (category = 'kernel') AS kernels,
    count(*) FILTER (category = 'op') AS ops,
    count(*) FILTER (category = 'launch') AS launches,
    count(*) FILTER (category = 'op' AND starts_with(name, 'autograd::engine::evaluate_function')) AS nodes,
    count(*) FILTER (category = 'launch' AND contains(name, 'GraphLaunch')) AS graphs,
    count(*) FILTER (
        category = 'launch' AND regexp_matches(name, '^(cuda|cu|hip)LaunchKernel') AND correlation IS NOT NULL
        AND correlation NOT IN (SELECT correlation FROM kernels WHERE correlation IS NOT NULL)
    ) AS bare,
    count(*) FILTER (category = 'kernel' AND correlation IN (
        SELECT correlation FROM mine WHERE category = 'launch' AND contains(name, 'GraphLaunch')
    )) AS kernels_of_graphs,
    (SELECT count(*) FROM comms WHERE rank = $rank AND operation IN ('send', 'recv')
        AND posted_ns >= $first AND posted_ns < $last) AS messages,
    (SELECT count(*) FROM comms WHERE rank = $rank AND evidence = 'unknown'
        AND posted_ns >= $first AND posted_ns < $last) AS unknown,
    coalesce(max(start_ns + duration_ns) FILTER (category IN ('kernel', 'launch', 'op')), $first) AS last_ns
FROM mine
"""


def with_cause(
    error: ReconstructError, run: Run, spans: Mapping[int, tuple[int, int]], ranks: Sequence[int]
) -> ReconstructError:
    """The same error with what the traces lack, if that explains it; else itself.

    Args:
        error: What went wrong first.
        run: The Run.
        spans: Where the step lies on each rank.
        ranks: The pipeline's ranks.
    """
    reason = find_reason(run, spans, ranks)
    if reason is None:
        return error
    return type(error)(f"{reason.text}. So: {error.message}", hint=reason.hint)


def captured(run: Run, ranks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where the whole capture of each rank lies."""
    sql = "SELECT rank, min(start_ns), max(start_ns + duration_ns) + 1 FROM events GROUP BY rank"
    return {rank: (first, last) for rank, first, last in run.rows(sql) if rank in ranks}


def find_reason(run: Run, spans: Mapping[int, tuple[int, int]], ranks: Sequence[int]) -> Reason | None:
    """What the traces of a pipeline lack in a step, the first of what would explain most; None if nothing is seen."""
    readers = {s["rank"]: s["reader"] for s in run.manifest.get("sources", ())}
    mine = [rank for rank in ranks if rank in spans and readers.get(rank) == "kineto"]
    counts = {
        rank: _RankCounts(**record)
        for rank in mine
        for record in run.records(_SQL, {"rank": rank, "first": spans[rank][0], "last": spans[rank][1]})
    }
    return next((reason for detect in _DETECTORS if (reason := detect(counts, spans)) is not None), None)


def _no_host(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    lacking = [rank for rank, one in counts.items() if one.kernels and not one.ops]
    if not lacking:
        return None
    return Reason(
        f"no ops of the host were recorded on {format_ranks(lacking)}",
        "record host activity too (ProfilerActivity.CPU), on every rank: autograd's nodes tell forward from backward",
    )


def _no_launches(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    lacking = [rank for rank, one in counts.items() if one.kernels and one.ops and not one.launches]
    if not lacking:
        return None
    return Reason(
        f"no launches of kernels (cuda_runtime) were recorded on {format_ranks(lacking)}: nothing ties kernels to what "
        "the host did",
        "export the whole trace: some tools filter the category cuda_runtime",
    )


def _no_records(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    lacking = [rank for rank, one in counts.items() if not one.messages and one.unknown]
    if not lacking or len(lacking) == len(counts):
        return None
    count = sum(counts[rank].unknown for rank in lacking)
    return Reason(
        f"{format_count(count, 'communication kernel')} on {format_ranks(lacking)} have no record of the host "
        "(record_param_comms): whom they send to is unknown",
        "record every rank with the same version of torch (2.6 or newer) and ProfilerActivity.CPU",
    )


def _lost_kernels(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    lost = {rank: one.bare for rank, one in counts.items() if one.bare > _MUCH * one.launches and not one.graphs}
    if not lost:
        return None
    listed = ", ".join(f"{count} of {counts[rank].launches} on rank {rank}" for rank, count in lost.items())
    return Reason(
        f"kernels are missing: launches without one are {listed}",
        "the profiler's buffers may have run over: record fewer steps, or leave out record_shapes and with_stack",
    )


def _graphs(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    graphs = [rank for rank, one in counts.items() if 2 * one.kernels_of_graphs > one.kernels]
    if not graphs:
        return None
    return Reason(
        f"kernels on {format_ranks(graphs)} were launched as CUDA graphs, which name no op and no autograd node",
        "record some steps without CUDA graphs, or with labels around actions (PP:0F0), as torch 2.10 writes them",
    )


def _no_nodes(counts: Mapping[int, _RankCounts], _spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    lacking = [rank for rank, one in counts.items() if one.ops and not one.nodes]
    if not lacking or len(lacking) == len(counts):
        return None
    return Reason(
        f"no autograd node was recorded on {format_ranks(lacking)}, as on the other ranks",
        "its backward runs on a thread of its own: record all threads, and export the whole trace",
    )


def _ends_early(counts: Mapping[int, _RankCounts], spans: Mapping[int, tuple[int, int]]) -> Reason | None:
    if len(counts) < 2:
        return None
    left = {rank: spans[rank][1] - one.last_ns for rank, one in counts.items()}
    usual = sorted(left.values())[len(left) // 2]
    early = {
        rank: time - usual for rank, time in left.items() if time - usual > _EARLY * (spans[rank][1] - spans[rank][0])
    }
    if not early or len(early) == len(counts):
        return None
    listed = ", ".join(f"{format_duration(time)} on rank {rank}" for rank, time in early.items())
    return Reason(
        f"the trace ends inside the step: nothing is recorded of its last {listed}",
        f"end the capture on all ranks after the same step: try another one with {Option.STEP}",
    )


_DETECTORS: tuple[Callable[[Mapping[int, _RankCounts], Mapping[int, tuple[int, int]]], Reason | None], ...] = (
    _no_host, _no_launches, _graphs, _no_records, _lost_kernels, _no_nodes, _ends_early,
)  # fmt: skip
