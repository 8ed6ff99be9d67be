"""Traces that list operations by action instead of kernels: a real job of 4 stages and 2 pipelines (ByteDance)."""

from __future__ import annotations

import pytest
from helpers.recorded import data, looked_at, run_of
from helpers.thorough import spread

from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules.names import recognise

JOB = ("torch", "ByteDance-Seed+StragglerAnalysis", "trace-ST.parquet")


# Other steps of the same job.
@spread("step", [23, 519, 1048], 1)
def test_the_job_of_the_straggler_study_is_a_pipeline_that_replays_to_itself(step: int) -> None:
    """pp 4, dp 2, no interleaving (its meta-ST.yaml); 4 microbatches are counted in the table itself."""
    run = run_of(data(*JOB))
    ((microbatches,),) = run.rows("SELECT count(DISTINCT label) FROM events WHERE label LIKE '0F%'")
    found = looked_at(run, step=step)
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.stages, shape.microbatches) == (4, 4, microbatches)
    assert found.observed.global_ranks == (0, 2, 4, 6)
    assert {s.evidence for s in found.pipeline.stages} == {"label"}
    named = recognise(found.pipeline.observed)
    assert named is not None
    assert named.name == "1f1b"
    again = measure(replay(found.pipeline, found.pipeline.observed, Scenario()).timeline)
    assert again.window_ns == pytest.approx(measure(found.observed).window_ns, rel=0.01)


def test_durations_are_those_of_the_table() -> None:
    run = run_of(data(*JOB))
    found = looked_at(run, step=23)
    listed = dict(
        run.rows(
            "SELECT e.label, e.duration_ns FROM events AS e JOIN steps AS s ON s.rank = e.rank AND s.step = 23 "
            "WHERE e.rank = 2 AND e.label IS NOT NULL AND e.start_ns >= s.start_ns AND e.start_ns < s.end_ns"
        )
    )
    mine = {f"{o.stage}{o.kind.value}{o.microbatch}": o.duration_ns for o in found.observed.computes() if o.rank == 1}
    assert mine == listed
