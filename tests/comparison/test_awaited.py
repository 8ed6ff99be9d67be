"""Collectives inside actions: where they take longer, they are named, and no computes or ranks.

What takes longer is known, for ``made_job`` made it so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.comparing import said
from helpers.made_job import MadeJob, simulate
from helpers.recorded import made
from msgspec import UNSET
from msgspec.structs import replace as changed

from tracetool.comparison.asked import compare
from tracetool.comparison.attribution import attribute
from tracetool.comparison.awaited import Awaited, awaited_by, from_to
from tracetool.comparison.causes import causes_of
from tracetool.comparison.comparable import Sides, typical
from tracetool.ingestion.recording import recording_of
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.comparison.causes import ChangeCause
    from tracetool.ingestion.recording import Recording

BASE = MadeJob(pp=2, tp=2, microbatches=2, layers=2, steps=3, move_ns=1000, jitter_ratio=0.01, seed=1)
EVEN = replace(BASE, steps=1, jitter_ratio=0.0)


def causes(base: MadeJob, new: MadeJob) -> list[ChangeCause]:
    """Those of the step, in order of what they make up; what is far less is jitter."""
    of_step = compare(made(base), made(new)).causes["step_ns"]
    return [cause for cause in of_step if abs(cause.value) > abs(of_step[0].value) / 4]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_slower_reduction_over_tensor_groups_is_named_by_stage(*, is_back: bool) -> None:
    """Each action reduces once per layer, and nothing else of it changed."""
    slower = replace(EVEN, tensor_ns=400_000)
    sides = (slower, EVEN) if is_back else (EVEN, slower)
    first, second = causes(*sides)
    assert {first.name, second.name} == {"allreduce of ranks 0-1 in stage 0", "allreduce of ranks 2-3 in stage 1"}
    assert {first.kind, second.kind} == {"collective"}
    times = " → ".join(format_duration(job.layers * job.tensor_ns) for job in sides)
    for cause in (first, second):
        assert cause.detail == ", ".join(f"in each {part.stage}{part.action} {times}" for part in cause.parts)
    # All microbatches of the last stage run one after the other, forwards and backwards; of the first one what is left.
    (last,) = [cause for cause in (first, second) if "stage 1" in cause.name]
    rise = EVEN.layers * (sides[1].tensor_ns - sides[0].tensor_ns)
    assert last.value == 2 * EVEN.microbatches * rise


def test_a_gather_over_context_groups_is_named_as_that() -> None:
    base = replace(BASE, tp=1, cp=2)
    first, second = causes(base, replace(base, context_ns=600_000, seed=2))
    assert {first.name, second.name} == {"allgather of ranks 0-1 in stage 0", "allgather of ranks 2-3 in stage 1"}


def totals(base: MadeJob, new: MadeJob) -> dict[str, float]:
    """What collectives of each name make up of the step's change, and what is no collective's."""
    sums: dict[str, float] = defaultdict(float)
    for cause in compare(made(base), made(new)).causes["step_ns"]:
        if cause.kind != "not replayed":
            sums[cause.name.split()[0] if cause.kind == "collective" else "computes"] += float(cause.value)
    return sums


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (replace(EVEN, cp=2), {"allreduce": {"tensor_ns": 400_000}, "allgather": {"context_ns": 450_000}}),
        (replace(EVEN, cp=2), {"allreduce": {"tensor_ns": 20_000}, "allgather": {"context_ns": 700_000}}),
        (EVEN, {"allreduce": {"tensor_ns": 300_000}, "computes": {"kernel_ns": 1_050_000}}),
        (replace(EVEN, tensor_ns=600_000), {"allreduce": {"tensor_ns": 100_000}, "computes": {"kernel_ns": 1_150_000}}),
    ],
    ids=["two collectives", "one up and one down", "with kernels", "against kernels"],
)
def test_of_several_changes_each_gets_its_own(base: MadeJob, changes: dict[str, dict[str, Any]]) -> None:
    """The simulator's steps with one of them at a time; equal stages, so that each is exact."""
    (before,) = set(simulate(base).step_ns)
    all_at_once = replace(base, **{name: ns for each in changes.values() for name, ns in each.items()})
    sums = totals(base, all_at_once)
    for what, alone in changes.items():
        assert sums[what] == simulate(replace(base, **alone)).step_ns[0] - before


def test_no_cause_is_folded_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Four causes and what is not replayed: as many lines as three of them and that there is one more."""
    job = replace(EVEN, cp=2)
    sides = [made(each).path for each in (job, replace(job, tensor_ns=400_000, context_ns=450_000))]
    # One step of each side tells nothing for certain, and fails nothing.
    text = " ".join(said(capsys, 0, *sides, "--allow-inconclusive")[0].split())
    assert "smaller cause" not in text
    assert [f"{operation} of ranks" in text for operation in ("allreduce", "allgather")] == [True, True]
    assert all(f"in stage {stage}: in each" in text for stage in (0, 1))


def test_a_slow_rank_is_named_beside_slower_collectives() -> None:
    """Rank 3 computes 6 % longer; of its actions, reductions take four times as long."""
    by_name = {cause.name: cause for cause in causes(BASE, replace(BASE, tensor_ns=400_000, slow={3: 1.06}, seed=2))}
    assert set(by_name) == {
        "allreduce of ranks 0-1 in stage 0", "allreduce of ranks 2-3 in stage 1", "rank 3",
    }  # fmt: skip
    assert by_name["rank 3"].kind == "rank"
    (slow,) = causes(BASE, replace(BASE, slow={3: 1.2}, seed=3))
    assert (slow.kind, slow.name) == ("rank", "rank 3")


def test_who_waits_in_an_action_for_another_rank_is_not_said_to_compute_longer() -> None:
    """Rank 1 gets its messages late from rank 3, so that rank 0 waits for it in the reduction of their backward."""
    base = replace(EVEN, pp=3, layers=1, microbatches=4)
    done = compare(made(base), made(replace(base, slow={3: 1.2, 4: 1.5})))
    (waiting,) = [cause for cause in done.causes["step_ns"] if cause.name.startswith("stage 0 B")]
    assert waiting.name == "stage 0 B (not its kernels: gaps between them, or waits for other ranks)"


def longer(recording: Recording, kind: str, kernels_ratio: float) -> Recording:
    """The same, all actions of a kind a tenth longer and the mean kernel of each rank by some share."""
    assert recording.job is not UNSET
    steps = [
        changed(
            step,
            actions={
                name: changed(action, duration_ns=[ns * 11 // 10 for ns in action.duration_ns])
                if kind in name
                else action
                for name, action in step.actions.items()
            },
        )
        for step in recording.steps
    ]
    stages = [
        changed(stage, kernel_ns=[None if ns is None else ns * (1 + kernels_ratio) for ns in stage.kernel_ns])
        for stage in recording.job.stages
    ]
    return changed(recording, steps=steps, job=changed(recording.job, stages=stages))


@pytest.mark.parametrize(("kernels_ratio", "are_not_kernels"), [(0.0, True), (0.1 / 3, False)])
def test_kernels_of_one_kind_move_the_mean_of_all_by_their_share(
    *, kernels_ratio: float, are_not_kernels: bool
) -> None:
    """Forwards are a third of a rank's kernels: a tenth more of them is 3.3 % more of all."""
    job = made(replace(EVEN, tp=1, dp=2))
    before = recording_of(job)
    after = longer(before, "F", kernels_ratio)
    sides = Sides(typical([before]), typical([after]), {}, {}, {}, {}, [before], [after])
    named = causes_of(sides, attribute(sides.base, sides.new)["step_ns"], None)
    assert {"not its kernels" in cause.name for cause in named} == {are_not_kernels}


def without(recording: Recording) -> Recording:
    steps = [
        changed(step, actions={name: changed(action, collectives=None) for name, action in step.actions.items()})
        for step in recording.steps
    ]
    return changed(recording, steps=steps)


def test_more_and_larger_collectives_are_told_as_that() -> None:
    """What takes longer because there is more of it says nothing of a link."""
    alike = Awaited(100_000.0, 2.0, (0, 1), 2**20)
    assert from_to(alike, Awaited(150_000.0, 2.0, (0, 1), 2**20)) == "100.0 us → 150.0 us"
    assert from_to(alike, Awaited(200_000.0, 2.0, (0, 1), 2**21)) == "100.0 us → 200.0 us (1.00 MiB → 2.00 MiB)"
    assert from_to(alike, Awaited(200_000.0, 4.0, (0, 1), None)) == "100.0 us → 200.0 us (2 → 4 of them)"
    assert from_to(Awaited(), alike) == "0 ns → 100.0 us (0 → 2 of them)"


@pytest.mark.parametrize("is_back", [False, True])
def test_on_either_side_a_peer_that_was_not_recorded_may_be_waited_for(*, is_back: bool) -> None:
    sides = [made(EVEN, ranks=(0, 2)), made(replace(EVEN, tensor_ns=400_000))]
    named = [
        cause.name for cause in compare(*sides[:: -1 if is_back else 1]).causes["step_ns"] if cause.kind == "collective"
    ]
    assert len(named) == 2
    assert all(name.endswith(", or waits there for ranks that were not recorded") for name in named)


def test_of_recordings_that_do_not_tell_it_is_unknown_and_not_none() -> None:
    """Reports of earlier versions: actions are left out, for which no other side may be told to wait longer."""
    recording = recording_of(made(BASE))
    assert all(awaited_by([recording]).values())
    assert awaited_by([without(recording)]) == awaited_by([recording, without(recording)]) == {}
