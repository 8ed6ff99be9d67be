"""Steps of other work are complete steps of their kind: other numbers of microbatches, evaluations, inference."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import texts
from helpers.recorded import data, run_of
from helpers.small_pipeline import FORWARD_NS, MIB, Job, forwards, gpipe, one_f_one_b, write
from helpers.thorough import spread

from tracetool.causes import idle_by_cause, idle_intervals
from tracetool.causes.cause import Cause
from tracetool.cli import main
from tracetool.errors import ReconstructError, UnsupportedShape
from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.reconstruction import reconstruct, record_steps
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _run(tmp_path: Path, job: Job, change: Any = None) -> Run:
    return ingest([write(tmp_path / "traces", job, change)], tmp_path / "x.run")


def _statuses(found: Reconstruction) -> list[str]:
    return [step.status for step in found.steps]


# A commonest kind and none: longer captures, and the order whose messages come in two blocks, count the same way.
@spread(("steps", "microbatches"), [((4, 4, 8), 4), ((4, 6, 8), 8), ((8, 4, 4, 8, 8), 8), ((1, 2), 2)], 1)
@spread("order", [one_f_one_b, gpipe], 1)
def test_other_numbers_of_microbatches(tmp_path: Path, steps: tuple[int, ...], microbatches: int, order: Any) -> None:
    """The looked at ones are those of the commonest kind, of equally many kinds the fullest."""
    run = _run(tmp_path, Job(3, steps=steps, orders=(order,)))
    found = reconstruct(run)
    assert _statuses(found) == ["complete"] * len(steps)
    assert steps[found.pipeline.step - 1] == microbatches == found.pipeline.observed.shape.microbatches
    assert reconstruct(run, step=1).pipeline.observed.shape.microbatches == steps[0]
    assert {look.pipeline.observed.shape.microbatches for look in record_steps(run)} == {microbatches}


def test_evaluations_among_training_steps(tmp_path: Path) -> None:
    job = Job(3, steps=(4, 4, 4, 8), orders=(one_f_one_b, forwards, one_f_one_b, forwards))
    run = _run(tmp_path, job)
    found = reconstruct(run, every_step=True)
    assert _statuses(found) == ["complete"] * 4
    assert found.pipeline.step == 1
    assert {row[0] for row in found.tables["costs"]} == {1, 3}
    assert "steps of other work left out: 2 (no backward), 4 (no backward)" in texts(
        found.notes, NoticeCode.STEPS_LEFT_OUT
    )
    evaluation = reconstruct(run, step=4)
    assert evaluation.pipeline.observed.shape.microbatches == 8
    assert not evaluation.pipeline.observed.has_backwards


# Forwards alone are the easier half of those among training steps.
@spread("orders", [(one_f_one_b, forwards, one_f_one_b), (forwards, forwards)], 1)
def test_labels_that_begin_again_in_a_step_without_marks_are_not_joined(tmp_path: Path, orders: Any) -> None:
    """The optimizer parts training steps; an evaluation ahead of one has none."""
    job = Job(3, steps=(4,) * len(orders), orders=orders, marked=False, labelled=True)
    with pytest.raises(ReconstructError, match="more than one action labelled 'PP:0F0': it is several steps"):
        reconstruct(_run(tmp_path, job))


def test_a_gpipe_step_cut_behind_its_forwards_is_no_evaluation(tmp_path: Path) -> None:
    """Its ops carry autograd numbers, and all forwards of the other steps are ahead of the first backward."""
    job = Job(3, steps=(4, 4, 4), orders=(gpipe, gpipe, forwards))
    assert _statuses(reconstruct(_run(tmp_path, job))) == ["complete", "complete", "last"]


# With both and with neither: which of them tells what the other lacks.
@spread(("graphs", "labelled"), list(product([True, False], repeat=2)), 2)
def test_forwards_alone(tmp_path: Path, *, graphs: bool, labelled: bool) -> None:
    """Every rank computes six forwards of 400 us; the last rank ends the window, the first one begins it."""
    found = reconstruct(_run(tmp_path, Job(4, steps=(6, 6), orders=(forwards,), graphs=graphs, labelled=labelled)))
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.microbatches, len(found.observed.transfers)) == (4, 6, 18)
    for stage in found.pipeline.stages:
        assert {c.duration_ns for c in stage.costs[F]} == {FORWARD_NS}
        assert B not in stage.costs
        assert stage.forward_payload_bytes == (2 * MIB if stage.stage < 3 else None)
    seen = measure(found.observed)
    assert seen.compute_ns == 4 * 6 * FORWARD_NS
    assert seen.bubble_ratio == pytest.approx(1 - 6 * FORWARD_NS / seen.window_ns)
    ends = [max(op.end_ns for op in found.observed.computes() if op.rank == rank) for rank in range(4)]
    assert seen.window_ns == max(ends) == ends[3]
    sums = idle_by_cause(idle_intervals(found.observed, Topology()), 4)
    assert sums[Cause.FILL][3] == 3 * FORWARD_NS <= sums[Cause.DRAIN][0]
    assert sums[Cause.FILL][0] == sums[Cause.DRAIN][3] == 0


def test_forwards_over_a_link(tmp_path: Path) -> None:
    """A full pipeline takes stages and microbatches, less one; on one channel every message may delay the next two."""
    found = reconstruct(_run(tmp_path, Job(4, steps=(6,), orders=(forwards,))))
    told = answer(found, "observed")
    (result,) = told.results
    moved = {s.forward_transfer_ns for s in found.pipeline.stages[:-1]}
    assert moved == {60_000}
    least = (4 + 6 - 1) * FORWARD_NS + 3 * 60_000
    assert least <= result.metrics.window_ns <= least + 2 * 6 * 60_000
    assert told.baseline.schedule == "observed"
    assert result.seen_error_ratio is None  # no measured step was without backwards
    with pytest.raises(UnsupportedShape, match="1f1b runs backwards, and the recorded step has none"):
        answer(found, "1f1b")


def test_a_training_step_is_not_replayed_by_forwards_alone(tmp_path: Path) -> None:
    found = reconstruct(_run(tmp_path, Job(2)))
    path = tmp_path / "forwards.csv"
    path.write_text("0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n")
    assert not build_schedule(f"csv:{path}", found.pipeline.observed.shape).has_backwards
    with pytest.raises(UnsupportedShape, match="runs forwards alone, and the recorded step trains"):
        answer(found, f"csv:{path}")


def _succeeds(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def test_commands_say_sensible_things_of_forwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(derive(_run(tmp_path, Job(3, steps=(4, 4), orders=(forwards,)))).path)
    _succeeds("info", run)
    shown = capsys.readouterr().out
    assert "forwards alone (inference, or an evaluation)" in shown
    assert f"tracetool replay {run} --schedule observed" in shown
    _succeeds("replay", run, "--schedule", "observed", "--json")
    assert json.loads(capsys.readouterr().out)["results"][0]["microbatches"] == 4
    _succeeds("compare", run, run, "--json")


# As reported; forwards alone of made jobs by default (above).
@pytest.mark.thorough
def test_the_reported_forwards() -> None:
    found = reconstruct(run_of(data("cases", "forward-only")))
    assert found.pipeline.observed.shape.microbatches == 4
    assert [stage.median_ns(F) for stage in found.pipeline.stages] == [399_000] * 4
    assert len(found.observed.transfers) == 12


# As reported; steps of several sizes of made jobs by default (above).
@pytest.mark.thorough
def test_the_reported_ramp_up() -> None:
    run = run_of(data("cases", "microbatches-ramp-up"))
    found = reconstruct(run)
    assert [(s.status, s.messages) for s in found.steps] == [("complete", 48), ("complete", 48), ("complete", 96)]
    assert reconstruct(run, step=3).pipeline.observed.shape.microbatches == 8
