"""What recordings of single layers hold: products with their shapes, collectives, and what the host's calls took."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from tracetool.errors import DuplicateRank, ReconstructError
from tracetool.ingestion import cached_run, discover
from tracetool.model.notice import unasked
from tracetool.overlap.hidden import hidden_work
from tracetool.overlap.products import ProductShape, Tile, tile_of
from tracetool.store.place import is_run
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracetool.ingestion import Progress

_PRODUCTS = """
WITH timed AS (
    -- The later half of each rank's: earlier ones warm up.
    SELECT
        k.rank, k.name, k.duration_ns, o.args IS NOT NULL AS is_kept,
        json_extract_string(o.args, '$."Input Dims"') AS dims,
        row_number() OVER (PARTITION BY k.rank, k.name, dims ORDER BY k.start_ns) AS number,
        count(*) OVER (PARTITION BY k.rank, k.name, dims) AS all_of_it
    FROM events k JOIN events o ON o.rank = k.rank AND o.external_id = k.external_id
    WHERE k.category = 'kernel' AND o.category = 'op' AND o.name IN ('aten::mm', 'aten::addmm')
        AND {ranks}
),
by_rank AS (
    SELECT rank, name, dims, is_kept, median(duration_ns) AS duration_ns
    FROM timed WHERE number > all_of_it // 2 GROUP BY ALL
)
SELECT name, dims, is_kept, avg(duration_ns) FROM by_rank GROUP BY ALL ORDER BY ALL
"""
_COLLECTIVES = """
SELECT c.operation, c.rank, c.end_ns - c.start_ns, c.payload_bytes, len(c.group_ranks), k.blocks
FROM comms c LEFT JOIN events k
    ON k.rank = c.rank AND k.category = 'kernel' AND k.start_ns = c.start_ns AND k.stream = c.stream
WHERE c.start_ns IS NOT NULL AND {ranks}
ORDER BY c.rank, c.position
"""
_BESIDE = """
SELECT 1 FROM comms c JOIN events k
    ON k.rank = c.rank AND k.category = 'kernel' AND k.start_ns < c.end_ns AND k.start_ns + k.duration_ns > c.start_ns
WHERE regexp_matches(lower(k.name), 'nvjet|gemm|cutlass|xmma|cublas|cijk|mat_?mul') LIMIT 1
"""
_CALLS = """
SELECT rank, duration_ns FROM events
WHERE {ranks} AND category = 'op' AND starts_with(name, 'c10d::')
    AND regexp_matches(name, 'allgather|reduce_scatter|allreduce')
ORDER BY rank, start_ns
"""
_GATHERS = ("_allgather_base", "all_gather", "allgather", "all_gather_into_tensor")
_SCATTERS = ("_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor")
_REDUCES = ("allreduce", "all_reduce")


CollectiveKind = Literal["gather", "scatter", "reduce"]
"""All-gather, reduce-scatter or all-reduce."""


def collective_kind(operation: str) -> CollectiveKind | None:
    """What a recorded operation is; None if it is none of these."""
    kinds: dict[CollectiveKind, tuple[str, ...]] = {"gather": _GATHERS, "scatter": _SCATTERS, "reduce": _REDUCES}
    return next((kind for kind, names in kinds.items() if operation in names), None)


@dataclass(frozen=True, slots=True)
class RecordedProduct:
    """A product that ran in a recording.

    Attributes:
        shape: Its shape.
        tile: The tile that its kernel's name tells; None if it tells none.
        duration_ns: Mean of the ranks' medians.
    """

    shape: ProductShape
    tile: Tile | None
    duration_ns: float


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective that ran in a recording.

    Attributes:
        kind: What it is.
        part_bytes: What each rank gave (all-gather) or got (reduce-scatter); of an all-reduce, the same share of it.
        duration_ns: Once all ranks were there: of each call the rank that waited least, and the median of the calls.
        blocks: Thread blocks of its kernel.
        ranks: Of its group.
    """

    kind: CollectiveKind
    part_bytes: int
    duration_ns: float
    blocks: int
    ranks: int


@dataclass(frozen=True, slots=True)
class LayerRecording:
    """One recording.

    Attributes:
        name: Its path.
        device: Name of the device.
        sms: Its SMs; None if the trace does not tell.
        products: Of each shape.
        collectives: Of each kind and size.
        call_ns: What the slowest rank's host spent on a collective's call, with the profiler; None if it made none.
        has_exchanges: Whether it holds sends and receives, or products beside collectives: then it is no layer as it is
            without overlap.
        hidden: Kernels that tell no product by themselves, in words; empty without any.
    """

    name: str
    device: str
    sms: int | None
    products: tuple[RecordedProduct, ...]
    collectives: tuple[RecordedCollective, ...]
    call_ns: float | None
    has_exchanges: bool
    hidden: str = ""


def read_recordings(paths: Sequence[Path], progress: Progress | None = None) -> list[LayerRecording]:
    """Read every recording in some folders.

    Args:
        paths: Runs, trace files, or folders; a folder with several recordings has a folder for each.
        progress: Told about bytes read.

    Raises:
        TraceToolError: If something cannot be read.
    """
    runs: list[Run] = []
    for path in paths:
        if is_run(path):
            runs.append(Run(path))
        else:
            runs += [cached_run([one], progress or unasked(), keep=("args",)) for one in _apart(path)]
    return [read_recording(run) for run in runs]


def _apart(path: Path) -> Iterator[Path]:
    """The recordings in a folder: itself, unless ranks occur twice in it."""
    try:
        discover([path])
    except DuplicateRank:
        folders = sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
        if not folders:
            raise
        for folder in folders:
            yield from _apart(folder)
        return
    yield path


def read_recording(run: Run, ranks: Sequence[int] | None = None) -> LayerRecording:
    """What one Run holds.

    Args:
        run: The Run.
        ranks: Those to look at, whole groups; all if none are named.

    Raises:
        ReconstructError: If it was read without the shapes of products.
    """
    ((device, sms),) = run.rows("SELECT any_value(device_name), any_value(sm_count) FROM ranks")

    def asked(query: str, of: str) -> list[Any]:
        among = "true" if ranks is None else f"{of} IN ({', '.join(map(str, ranks))})"
        return run.rows(query.replace("{ranks}", among))

    rows = asked(_PRODUCTS, "o.rank")
    if rows and not any(kept for _, _, kept, _ in rows):
        raise ReconstructError(
            f"{run.name} does not keep the shapes of products.",
            hint="name the traces instead of the Run",
        )
    collectives = asked(_COLLECTIVES, "c.rank")
    return LayerRecording(
        name=run.name,
        device=device or "",
        sms=sms,
        products=tuple(_products(rows)),
        collectives=tuple(_collectives(collectives)),
        call_ns=max(_by_rank(asked(_CALLS, "rank")), default=None),
        has_exchanges=any(kind in {"send", "recv"} for kind, *_ in collectives) or bool(run.rows(_BESIDE)),
        hidden="" if ranks is not None else str(hidden_work(run, of_actions=False)),
    )


def _warm(values: Sequence[float]) -> Sequence[float]:
    """The later half: earlier calls warm up."""
    return values[len(values) // 2 :]


def _by_rank(rows: Sequence[tuple[int, float]]) -> list[float]:
    """Of each rank, the median."""
    by_rank: dict[int, list[float]] = defaultdict(list)
    for rank, duration in rows:
        by_rank[rank].append(duration)
    return [median(_warm(durations)) for durations in by_rank.values()]


def _products(rows: Sequence[tuple[str, str | None, bool, float]]) -> Iterator[RecordedProduct]:
    for kernel, dims, _, duration in rows:
        shape = product_shape(dims)
        if shape is not None:
            yield RecordedProduct(shape, tile_of(kernel), duration)


def product_shape(dims: str | None) -> ProductShape | None:
    """The shape that the dimensions of an op's inputs tell, as the trace has them; None if they tell none."""
    matrices = [each for each in json.loads(dims or "[]") if isinstance(each, list) and len(each) == 2]
    if len(matrices) < 2 or matrices[-2][1] != matrices[-1][0]:
        return None
    return ProductShape(matrices[-2][0], matrices[-1][1], matrices[-1][0])


def _collectives(rows: Sequence[tuple[str, int, int, int | None, int, int | None]]) -> Iterator[RecordedCollective]:
    calls: dict[tuple[CollectiveKind, int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for operation, rank, duration, payload, size, blocks in rows:
        kind = collective_kind(operation)
        if kind is not None and payload and size > 1:
            calls[kind, payload // size, blocks or 0, size][rank].append(duration)
    for (kind, part, blocks, size), by_rank in calls.items():
        together = [min(of_call) for of_call in zip(*by_rank.values(), strict=False)]
        yield RecordedCollective(kind, part, median(_warm(together)), blocks, size)
