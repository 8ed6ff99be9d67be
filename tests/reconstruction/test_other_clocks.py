"""The clocks of a recording's ranks set otherwise: no cost may change by more than they are known to.

What is compared across ranks is known within what ends of one operation differ by on one host (``NOISE_NS``, below
which clocks are left as they are) or the residual of the ranks' clocks; what lies on one rank changes with its rate.
"""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import polars as pl
import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.other_clock import with_other_clocks
from helpers.recorded import h100, rebuilt, run_of
from helpers.thorough import spread

from tracetool.errors import ReconstructError
from tracetool.model.timeline import measure
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import NOISE_NS
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.store.run import Run
from tracetool.stragglers.measured import job_steps

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.survey import Survey

MS = 1_000_000
DRIFT_PPM = 100.0


def _own(found: Reconstruction) -> dict[tuple[object, ...], int]:
    """What lies on single ranks."""
    times: dict[tuple[object, ...], int] = {}
    for stage in found.pipeline.stages:
        for kind, costs in stage.costs.items():
            for number, cost in enumerate(costs):
                times[stage.stage, kind, number] = cost.duration_ns
                times[stage.stage, kind, number, "alone"] = cost.uncontended_ns or 0
                times[stage.stage, kind, number, "beside"] = cost.contended_ns or 0
        for kind, uses in stage.collectives.items():
            for use in uses:
                times[stage.stage, kind, use.operation, use.group_ranks, use.count] = use.own_ns
    for rank in found.pipeline.ranks:
        times |= {(rank.rank, "tail", n, part.meet): part.duration_ns for n, part in enumerate(rank.tail)}
        times |= {(rank.rank, "beside", use.meeting): use.own_ns for use in rank.overlapped}
    times["outside",] = found.pipeline.outside_ns or 0
    return times


def _across(found: Reconstruction, survey: Survey) -> dict[tuple[object, ...], int]:
    """What is compared between ranks."""
    times: dict[tuple[object, ...], int] = {}
    for stage in found.pipeline.stages:
        times[stage.stage, "forward"] = stage.forward_transfer_ns
        times[stage.stage, "backward"] = stage.backward_transfer_ns
    for t in found.observed.transfers:
        times[t.kind, t.microbatch, t.src_stage] = t.end_ns - t.start_ns
        times[t.kind, t.microbatch, t.src_stage, "start"] = t.start_ns
    times |= {(step.number, "step"): step.duration_ns for step in found.steps}
    times |= {(w.rank, w.position, "wait"): w.wait_ns for w in survey.waits}
    metrics = measure(found.observed)
    times |= {("window",): metrics.window_ns, ("step",): metrics.step_ns}
    return times


# Pipelines of several groups, and other orders, have other messages between the same kinds of clock.
@spread(
    ("name", "pipeline", "drift_ppm", "seed"),
    [
        ("tp2pp2_1f1b_m8", 0, DRIFT_PPM, 1),
        ("tp2pp2_1f1b_m8", 1, DRIFT_PPM, 2),
        ("1f1b_m8", 0, DRIFT_PPM, 3),
        # Its lags scatter by as much as such a drift moves clocks within its half second.
        ("zbh1_m8", 0, 0.0, 4),
    ],
    [("1f1b_m8", 0, DRIFT_PPM, 3)],
)
def test_costs_do_not_depend_on_the_clocks(
    name: str, pipeline: int, drift_ppm: float, seed: int, tmp_path: Path
) -> None:
    """Each rank's clock up to five seconds ahead or behind, and up to 100 ppm too fast or too slow."""
    run, drawn = h100(name), random.Random(seed)  # noqa: S311 - clocks of a test, repeatable
    clocks = {r: (drawn.randint(-5000, 5000) * MS, drawn.uniform(-drift_ppm, drift_ppm)) for r in range(4)}
    moved = with_other_clocks(run, clocks, tmp_path / "x.run")
    base, found = rebuilt(name, pipeline=pipeline), reconstruct(moved, pipeline=pipeline)
    surveys = survey_run(run, Account()), survey_run(moved, Account())
    assert base.pipeline.step == found.pipeline.step
    assert base.pipeline.observed.orders == found.pipeline.observed.orders
    own, now = _own(base), _own(found)
    assert own.keys() == now.keys()
    # A time alone is the difference of two: of what was measured and of what it was slowed down by.
    assert {k: (t, now[k]) for k, t in own.items() if abs(now[k] - t) > 2 + 2 * t * DRIFT_PPM / 1e6} == {}
    known = max(NOISE_NS, *(clock.residual_ns or 0 for clock in surveys[1].clocks.by_rank.values()))
    across, now = _across(base, surveys[0]), _across(found, surveys[1])
    assert across.keys() == now.keys()
    assert {k: (t, now[k]) for k, t in across.items() if abs(now[k] - t) > known + t * DRIFT_PPM / 1e6} == {}


@cache
def _two_pipelines(name: str) -> Run:
    """Tensor parallel ones: ranks 0 and 2, and 1 and 3."""
    if name != "made":
        return h100(name)
    folder = Path(mkdtemp(prefix="tracetool-test-"))
    write_job(folder, MadeJob(pp=2, tp=2, microbatches=3, steps=2))
    return run_of(folder)


# A made job has no gaps of its hosts.
@spread("name", ["made", "tp2pp2_1f1b_m8"], 1)
def test_pipelines_that_exchange_nothing_have_a_reference_clock_each(name: str, tmp_path: Path) -> None:
    """Without tensor parallelism's sums nothing joins ranks 1 and 3 to ranks 0 and 2: their waits stay as they are."""
    alone = {"comms": "SELECT * FROM {recorded} WHERE operation IN ('send', 'recv')"}
    run = _two_pipelines(name)
    moved = with_other_clocks(run, {1: (3000 * MS, 0.0), 3: (-2000 * MS, 0.0)}, tmp_path / "x.run")
    before, after = (survey_run(each.overlay(alone), Account()) for each in (run, moved))
    assert {rank: clock.reference_rank for rank, clock in after.clocks.by_rank.items()} == {0: 0, 1: 1, 2: 0, 3: 1}
    pairs = zip(before.waits, after.waits, strict=True)
    assert max(abs(one.wait_ns - other.wait_ns) for one, other in pairs) <= 3 * NOISE_NS


# The recording has gaps of its hosts, and kernels that take other times on every rank.
@spread("name", ["made", "tp2pp2_1f1b_m8"], 1)
def test_the_step_of_a_job_does_not_depend_on_the_clocks(name: str, tmp_path: Path) -> None:
    run = _two_pipelines(name)
    moved = with_other_clocks(run, {1: (700 * MS, 0.0), 2: (-3000 * MS, 0.0)}, tmp_path / "x.run")
    (base,), (found,) = (job_steps(each, 1, Account()) for each in (run, moved))
    assert abs(base.observed_ns - found.observed_ns) <= NOISE_NS
    assert [[f.tail for f in frames] for frames in base.frames] == [[f.tail for f in frames] for frames in found.frames]


def test_ranks_of_two_runs_of_one_program_are_refused(tmp_path: Path) -> None:
    """Rank 2 of another run of the same configuration: no offset of its clock makes its messages fit."""
    other = h100("1f1b_m8_mem")
    shutil.copytree(h100("1f1b_m8").path, tmp_path / "x.run")

    for table in ("events", "comms", "steps"):
        theirs = pl.read_parquet(other.path / table / "*.parquet").filter(pl.col("rank") == 2)
        for path in (tmp_path / "x.run" / table).glob("*.parquet"):
            rows = pl.read_parquet(path)
            if 2 in rows["rank"]:
                pl.concat([rows.filter(pl.col("rank") != 2), theirs], how="vertical_relaxed").write_parquet(path)
    with pytest.raises(ReconstructError, match=r"step 2 of rank 2 begins 3.* after that of rank 0 ended"):
        reconstruct(Run(tmp_path / "x.run"))
