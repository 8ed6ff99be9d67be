"""A recorded pipeline with tensor parallelism whose products have shapes: tp2pp2_1f1b_m8, recorded without any.

Shapes are those of Llama-like layers (tokens 2048, h 4096, ffn 11008, tensor parallel 2), told by how long products
take: 44 us of an attention's output and 118 us of an MLP's are 780 TFLOP/s. Everything else is as recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.recorded import data, derived

if TYPE_CHECKING:
    from tracetool.store.run import Run

TOKENS, HIDDEN = 2048, 4096
OUTPUTS = {2048: (40_000, 60_000), 5504: (110_000, 126_000)}
"""Products behind which a collective stands: their depth, and how long their kernels take in ns."""

_DEPTHS = " ".join(
    f"WHEN duration_ns BETWEEN {least} AND {most} THEN {depth}" for depth, (least, most) in OUTPUTS.items()
)
_SHAPES = f"""
WITH told AS (
    SELECT rank, external_id, min(CASE {_DEPTHS} END) AS depth FROM {{recorded}}
    WHERE category = 'kernel' AND name LIKE 'nvjet%TNT' GROUP BY ALL
)
SELECT e.* REPLACE (
    CASE WHEN e.name = 'aten::mm' AND depth IS NOT NULL
        THEN '{{{{"Input Dims": [[{TOKENS}, ' || depth || '], [' || depth || ', {HIDDEN}]]}}}}' END AS args
) FROM {{recorded}} e LEFT JOIN told USING (rank, external_id)
"""


def without_shapes() -> Run:
    """As recorded: an all-reduce behind each of both products of a layer's forward, and in its backward."""
    return derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8"))


def with_all_reduces() -> Run:
    """The same with shapes."""
    return without_shapes().overlay({"events": _SHAPES.replace("{{", "{").replace("}}", "}")})


def with_sequence_parallelism() -> Run:
    """The same with reduce-scatters in place of all-reduces: half the hops, so half the time."""
    scattered = (
        "SELECT * REPLACE ("
        "CASE operation WHEN 'allreduce' THEN '_reduce_scatter_base' ELSE operation END AS operation, "
        "CASE operation WHEN 'allreduce' THEN start_ns + (end_ns - start_ns) // 2 ELSE end_ns END AS end_ns) "
        "FROM {recorded}"
    )
    return with_all_reduces().overlay({"comms": scattered})
