"""Collectives inside actions: where they take longer, they are named, and no computes or ranks.

What takes longer is known, for ``made_job`` made it so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.made_job import MadeJob
from helpers.recorded import made
from msgspec.structs import replace as changed

from tracetool.comparison.asked import compare
from tracetool.comparison.awaited import awaited_by
from tracetool.ingestion.recording import recording_of
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.comparison.causes import ChangeCause
    from tracetool.ingestion.recording import Recording

BASE = MadeJob(pp=2, tp=2, microbatches=2, layers=2, steps=3, move_ns=1000, jitter_ratio=0.01, seed=1)
SLOWER = replace(BASE, tensor_ns=400_000, seed=2)


def causes(base: MadeJob, new: MadeJob) -> list[ChangeCause]:
    """Those of the step, in order of what they make up; what is far less is jitter."""
    of_step = compare(made(base), made(new)).causes["step_ns"]
    return [cause for cause in of_step if abs(cause.value) > abs(of_step[0].value) / 4]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_slower_reduction_over_tensor_groups_is_named_by_stage(*, is_back: bool) -> None:
    """Each action reduces once per layer, and nothing else of it changed."""
    sides = (SLOWER, BASE) if is_back else (BASE, SLOWER)
    first, second = causes(*sides)
    assert {first.name, second.name} == {"allreduce of ranks 0-1 in stage 0", "allreduce of ranks 2-3 in stage 1"}
    assert {first.kind, second.kind} == {"collective"}
    times = " → ".join(format_duration(job.layers * job.tensor_ns) for job in sides)
    for cause in (first, second):
        assert cause.detail == ", ".join(f"in each {part.stage}{part.action} {times}" for part in cause.parts)
    # All microbatches of the last stage run one after the other, forwards and backwards; of the first one what is left.
    (last,) = [cause for cause in (first, second) if "stage 1" in cause.name]
    rise = (
        2
        * BASE.microbatches
        * sum(side.layers * side.tensor_ns * sign for side, sign in zip(sides, (-1, 1), strict=True))
    )
    assert float(last.value) == pytest.approx(rise, rel=0.05)


def test_a_gather_over_context_groups_is_named_as_that() -> None:
    base = replace(BASE, tp=1, cp=2)
    first, second = causes(base, replace(base, context_ns=600_000, seed=2))
    assert {first.name, second.name} == {"allgather of ranks 0-1 in stage 0", "allgather of ranks 2-3 in stage 1"}


def test_computes_that_take_longer_are_told_with_what_they_wait_for_beside() -> None:
    """Kernels take a tenth longer and reductions 2.5 times as long: 0.6 of 0.9 ms of a forward are kernels'."""
    for cause in causes(BASE, replace(BASE, kernel_ns=1_150_000, tensor_ns=250_000, seed=2)):
        assert cause.kind == "stage"
        assert "(all 2 ranks)" in cause.name
        assert "allreduce of ranks" in cause.detail
        assert "200.0 us → 500.0 us" in cause.detail
    (slow,) = causes(BASE, replace(BASE, slow={3: 1.2}, seed=3))
    assert (slow.kind, slow.name) == ("rank", "rank 3")
    assert "allreduce" not in slow.detail


def without(recording: Recording) -> Recording:
    steps = [
        changed(step, actions={name: changed(action, collectives=None) for name, action in step.actions.items()})
        for step in recording.steps
    ]
    return changed(recording, steps=steps)


def test_of_recordings_that_do_not_tell_it_is_unknown_and_not_none() -> None:
    """Reports of earlier versions: actions are left out, for which no other side may be told to wait longer."""
    recording = recording_of(made(BASE))
    assert all(awaited_by([recording]).values())
    assert awaited_by([without(recording)]) == awaited_by([recording, without(recording)]) == {}
