"""Recordings as they would be, had the clocks of their ranks been set otherwise."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import polars as pl

from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TIMES = {
    "events": ["start_ns"], "comms": ["posted_ns", "start_ns", "end_ns"], "steps": ["start_ns", "end_ns"],
    "memory": ["time_ns"],
}  # fmt: skip
"""Columns that hold times of a rank's clock."""


def with_other_clocks(run: Run, clocks: Mapping[int, tuple[int, float]], folder: Path) -> Run:
    """The Run as if clocks had been ahead by so many ns, and gone faster by so many ppm from the capture's start on.

    Args:
        run: The recording.
        clocks: By rank; others are left as they are.
        folder: Folder to make.
    """
    shutil.copytree(run.path, folder)
    ((begin,),) = run.rows("SELECT min(start_ns) FROM events")
    ahead, drift_ppm = (
        pl.col("rank").replace_strict({rank: clock[at] for rank, clock in clocks.items()}, default=0, return_dtype=kind)
        for at, kind in enumerate((pl.Int64, pl.Float64))
    )
    for table, columns in _TIMES.items():
        for path in (folder / table).glob("*.parquet"):
            wrong = [
                (pl.col(c) + ahead + ((pl.col(c) - begin) * drift_ppm / 1e6).round().cast(pl.Int64)).alias(c)
                for c in columns
            ]
            pl.read_parquet(path).with_columns(wrong).write_parquet(path)
    return Run(folder)
