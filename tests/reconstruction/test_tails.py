"""What ranks wait for other pipelines after their last backward: found, told apart, and no miss of the replay."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest
from helpers.notices import codes
from helpers.recorded import data, run_of

from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.replays import replay
from tracetool.store.run import Run
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LATER_NS = 150_000_000


def _stopped(run: Run, at_ns: Mapping[int, int], folder: Path) -> Run:
    """The Run as if each rank had stood still for ``LATER_NS`` at a time; what ran then took so much longer."""
    shutil.copytree(run.path, folder)
    for table, times in {
        "events": ["start_ns"],
        "comms": ["posted_ns", "start_ns", "end_ns"],
        "memory": ["time_ns"],
    }.items():
        for path in (folder / table).glob("*.parquet"):
            at = pl.col("rank").replace_strict(at_ns, default=None, return_dtype=pl.Int64)
            moved = [pl.when(pl.col(c) >= at).then(pl.col(c) + LATER_NS).otherwise(pl.col(c)).alias(c) for c in times]
            if table == "events":
                spans = (pl.col("start_ns") < at) & (pl.col("start_ns") + pl.col("duration_ns") > at)
                moved.append(pl.col("duration_ns") + pl.when(spans).then(LATER_NS).otherwise(0))
            pl.read_parquet(path).with_columns(moved).write_parquet(path)
    for path in (folder / "steps").glob("*.parquet"):
        pl.read_parquet(path).with_columns(pl.col("end_ns") + LATER_NS).write_parquet(path)
    return Run(folder)


def test_waits_for_another_pipeline_are_no_miss_of_the_replay(tmp_path: Path) -> None:
    """Ranks 1 and 3 come 150 ms later to a reduction after the last backward: 0 and 2 wait so much longer."""
    run = run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    base = reconstruct(run)
    assert base.observed.global_ranks == (0, 2)
    at_ns: dict[int, int] = {}
    ends = {r: max(s.end_ns for s in base.segments[r]) for r in (0, 2)}
    for collective in sorted(survey_run(run, Account()).collectives, key=lambda c: c.ops[0].position):
        mine, other = collective.ops if len(collective.ops) == 2 else (None, None)
        if mine is None or other is None or mine.rank not in ends or other.rank != mine.rank + 1:
            continue
        # Of those that the other one came to last, or as good as.
        last = other.end_ns - other.start_ns <= 1.01 * collective.own_ns
        if mine.rank not in at_ns and mine.start_ns >= ends[mine.rank] and last:
            at_ns |= {mine.rank: mine.end_ns - collective.own_ns + 1, other.rank: other.start_ns}
    found = reconstruct(_stopped(run, at_ns, tmp_path / "x.run"))
    before, after = measure(base.observed), measure(found.observed)
    assert after.window_ns == before.window_ns
    assert after.step_ns == pytest.approx(before.step_ns + LATER_NS, abs=1000)
    for was, now in zip(base.pipeline.ranks, found.pipeline.ranks, strict=True):
        own, waited = (
            [sum(getattr(p, name) for p in r.tail) for r in (was, now)] for name in ("duration_ns", "waited_ns")
        )
        assert own[1] == pytest.approx(own[0], abs=50_000)
        assert waited[1] - waited[0] == pytest.approx(LATER_NS, abs=50_000)
    replayed = measure(replay(found.pipeline, found.pipeline.observed, Scenario()).timeline)
    assert replayed.step_ns == pytest.approx(before.step_ns, rel=0.02)
    assert NoticeCode.WAITS_FOR_PIPELINES in codes(found.notes)
    assert not answer(found, ["1f1b"]).warnings
