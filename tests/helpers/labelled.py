"""Labelled jobs made up for tests: every operation with the label it must get, as tables and timelines.

Each step is a GPipe order with one operation at a time in the whole job, so that what belongs together
is known from how it was made.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SLOT_S = 0.001
"""Operations start this far apart, and last at most as long; no two of a kind equally long, as measured ones."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, and the label that its operation must get."""

    columns: dict[str, Any]
    label: str | None


def job(
    pp: int,
    chunks: int,
    microbatches: int,
    dp: int = 1,
    *,
    steps: int = 1,
    idle: bool = False,
    interleaved: bool = False,
) -> list[Row]:
    """All rows of a job; stage s is chunk s // pp of pipeline rank s % pp.

    Args:
        pp: Pipeline ranks.
        chunks: Model chunks per rank.
        microbatches: Microbatches.
        dp: Data-parallel ranks.
        steps: Steps; the clock of each starts anew.
        interleaved: Whether pp microbatches go through a chunk before the first of them enters the next one.
        idle: Whether the ends of the model note sends and receives of theirs too, with nothing behind.
    """
    rows: list[Row] = []
    stages = pp * chunks
    counted: Counter[tuple[int, int, str]] = Counter()

    def add(step: int, replica: int, stage: int, name: str, slot: int, label: str | None, microbatch: int) -> None:
        rank = stage % pp * dp + replica
        order = counted[step, rank, name]
        counted[step, rank, name] += 1
        is_compute = name.endswith("compute")
        rows.append(
            Row(
                {
                    "dp_rank": replica, "stage": stage % pp, "rank": rank, "step": step, "optype": name,
                    "start_ts": slot * SLOT_S, "duration": SLOT_S * (1 - len(rows) % 83 / 100), "seq_id": order,
                    "mc": stage // pp if is_compute else -1, "mb_id": microbatch if is_compute else -1,
                    "gmc": stage if is_compute else -1,
                },
                label,
            )
        )  # fmt: skip

    for step in range(steps):
        for replica in range(dp):
            slot = 0
            for kind, name in (("F", "forward"), ("B", "backward")):
                order = range(stages) if kind == "F" else range(stages - 1, -1, -1)
                for stage, microbatch in _turns(order, pp if interleaved else stages, microbatches):
                    is_first, is_last = stage == order[0], stage == order[-1]
                    if not is_first or idle:
                        label = None if is_first else f"{stage}RECV_{kind}{microbatch}"
                        add(step, replica, stage, f"{name}-recv", slot, label, microbatch)
                    slot += 1
                    add(step, replica, stage, f"{name}-compute", slot, f"{stage}{kind}{microbatch}", microbatch)
                    slot += 1
                    if not is_last or idle:
                        label = None if is_last else f"{stage}SEND_{kind}{microbatch}"
                        add(step, replica, stage, f"{name}-send", slot, label, microbatch)
    return rows


def _turns(order: Sequence[int], at_once: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Stages and microbatches in turn: as many microbatches go through as many stages before the next ones do."""
    for first in range(0, microbatches, at_once):
        for start in range(0, len(order), at_once):
            for microbatch in range(first, min(first + at_once, microbatches)):
                for stage in order[start : start + at_once]:
                    yield stage, microbatch


def write_table(path: Path, rows: list[dict[str, Any]], *, single: bool = True) -> Path:
    """The rows as Parquet, with times of 32 or 64 bits; keys that no row has become no columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    kinds = {"start_ts": pa.float32() if single else pa.float64(), "optype": pa.string(), "note": pa.string()}
    kinds["duration"] = kinds["start_ts"]
    columns = {name: pa.array([row.get(name) for row in rows], kinds.get(name, pa.int64())) for name in names}
    pq.write_table(pa.table(columns), path, row_group_size=64)
    return path


def ndtimeline_events(rows: list[Row], *, epoch_us: int = 1_700_000_000_000_000) -> list[dict[str, Any]]:
    """The rows as veScale's NDTimeline writes them: no microbatch, no chunk, no number."""
    lanes = {"forward-compute": 0, "backward-compute": 0, "forward-recv": 1, "backward-send": 1}
    return [
        {
            "name": c["optype"], "cat": c["optype"], "pid": c["dp_rank"],
            "tid": c["rank"] * 10 + lanes.get(c["optype"], 2),
            "args": {"rank": c["rank"], "step": c["step"], "tp": 0, "pp": c["stage"]},
            "ts": epoch_us + round(c["start_ts"] * 10**6), "dur": round(c["duration"] * 10**6), "ph": "X",
        }
        for c in (row.columns for row in rows)
    ]  # fmt: skip


def write_events(path: Path, events: list[dict[str, Any]], *, as_object: bool = False) -> Path:
    """The events as Chrome-trace JSON: a bare array, or an object around it."""
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events} if as_object else events))
    return path
