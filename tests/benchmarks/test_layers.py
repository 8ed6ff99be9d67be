"""CPU time that layers which overlap otherwise add to a replay: eight stages of 32 layers, 32 microbatches.

Run with: pytest -n0 --benchmark-enable tests/benchmarks/test_layers.py. What is read is a recorded rank's step again
and again: as many kernels, collectives and operators as that job would have left.
"""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers.layered import with_sequence_parallelism

from tracetool.overlap.actions import layer_overlaps
from tracetool.store.place import MANIFEST, part_sizes
from tracetool.store.run import Run
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from pathlib import Path

_OF_THE_STEP = "e.rank = 0 AND e.start_ns BETWEEN (SELECT start_ns FROM span) AND (SELECT end_ns FROM span)"
_TABLES = {
    "events": f"""
        SELECT e.* REPLACE (
            r AS rank, e.event + c * 10000000 AS event, e.start_ns + c * 1000000000 AS start_ns,
            e.external_id + c * 10000000 AS external_id
        ) FROM events e, copies WHERE {_OF_THE_STEP}""",
    "kernel_actions": """
        SELECT a.* REPLACE (
            r AS rank, r AS stage, a.event + c * 10000000 AS event, (a.microbatch + 8 * (c % 4))::INTEGER AS microbatch,
            (a.layer + 8 * (c // 4))::INTEGER AS layer
        ) FROM kernel_actions a, copies WHERE a.rank = 0 AND a.microbatch IS NOT NULL""",
    "comms": f"""
        SELECT e.* REPLACE (
            r AS rank, e.position + c * 100000 AS position, e.start_ns + c * 1000000000 AS start_ns,
            e.end_ns + c * 1000000000 AS end_ns, [r, r + 1] AS group_ranks
        ) FROM comms e, copies WHERE {_OF_THE_STEP}""",
}
_SPAN = """
SELECT min(e.start_ns) - 100000000 AS start_ns, max(e.start_ns) + 1000000 AS end_ns
FROM kernel_actions a JOIN events e USING (rank, event) WHERE a.rank = 0
"""


def grown(path: Path, ranks: int, copies: int) -> Run:
    """Rank 0's step on so many ranks, so many times each: four are as many microbatches, sixteen also layers."""
    recorded = with_sequence_parallelism()
    shutil.copytree(recorded.path, path, ignore=shutil.ignore_patterns(*_TABLES))
    many = f"copies AS (SELECT r::INTEGER AS r, c FROM range({ranks}) AS r(r), range({copies}) AS c(c))"
    for name, query in _TABLES.items():
        (path / name).mkdir()
        found = recorded.arrow(f"WITH span AS ({_SPAN}), {many} {query}").cast(TABLES[name].arrow_schema())
        for rank in range(ranks):  # as ingest does
            of_rank = found.filter(pc.field("rank") == rank)
            of_rank = of_rank.sort_by("event" if "event" in of_rank.column_names else "position")
            pq.write_table(of_rank, path / name / f"source-{rank:05}.parquet", row_group_size=1 << 16)
    manifest = recorded.manifest | {"files": list(part_sizes(path))}
    (path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return Run(path)


@pytest.mark.parametrize(
    ("ranks", "copies"), [(2, 1), pytest.param(8, 16, marks=pytest.mark.large, id="p=8 m=32, 32 layers")]
)
def test_layers_that_overlap_otherwise(tmp_path: Path, ranks: int, copies: int) -> None:
    """What ``replay --overlap`` does beyond the replay: below a CPU second."""
    run = grown(tmp_path / "x.run", ranks, copies)
    kernels = run.rows("SELECT count(*) FROM kernel_actions")[0][0]
    began = time.process_time()
    (_, overlap), _ = layer_overlaps(run, ("none", "slice:4"))
    took = time.process_time() - began
    assert len(overlap.actions) == ranks
    assert overlap.untouched == ranks * 16 * (4 if copies == 16 else 1)  # of the backward, in each layer
    assert took < 1, f"{ranks} ranks, {kernels:,} kernels in actions"
