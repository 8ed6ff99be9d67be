"""Jobs of several pipelines: the step that is compared is the job's, and who is named is who got slower.

What is slow is known, for ``made_job`` made it so; steps are those of its simulator.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from helpers.comparing import as_json, said
from helpers.made_job import MadeJob, simulate
from helpers.made_traces import write_job
from helpers.notices import texts
from helpers.recorded import made
from msgspec import UNSET

from tracetool.cli import run as command
from tracetool.comparison import compare as held_against
from tracetool.comparison.asked import compare
from tracetool.comparison.sides import side_of
from tracetool.ingestion.recording import recording_of
from tracetool.ingestion.runs import ingest
from tracetool.model.job import AS_LONG_RATIO
from tracetool.model.notice import NoticeCode, SubjectKind

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.comparison import Comparison
    from tracetool.comparison.causes import ChangeCause

STEPS = 5


def job(seed: int, slow: dict[int, float] | None = None, *, dp: int = 1, tp: int = 1, pp: int = 2) -> MadeJob:
    """Kernels vary by 1 %; messages take next to nothing, for replay sends them one after the other."""
    return MadeJob(
        pp=pp, dp=dp, tp=tp, microbatches=2, layers=1, steps=STEPS, move_ns=1000, slow=slow or {}, jitter_ratio=0.01,
        seed=seed,
    )  # fmt: skip


def verdicts(done: Comparison) -> dict[str, str]:
    return {line.key.text: line.verdict for line in done.lines}


def step_ns(*jobs: MadeJob) -> float:
    """The median step of some recordings, by the simulator."""
    return median(ns for each in jobs for ns in simulate(each).step_ns)


def first_cause(done: Comparison) -> ChangeCause:
    """The largest cause of the step's change, which is all of it but what jitter makes."""
    (line,) = [line for line in done.lines if line.key.text == "step_ns"]
    first = done.causes["step_ns"][0]
    assert line.change is not None
    assert first.value == pytest.approx(Fraction(line.change), rel=0.04)
    return first


PARALLEL: list[Any] = [pytest.param({"dp": 2}, id="data"), pytest.param({"tp": 2}, id="tensor")]
# Ranks that wait in their layers are those of which a wrong one could be named: a slow one there is looked at always.
MOSTLY_DATA: list[Any] = [PARALLEL[0], pytest.param({"tp": 2}, id="tensor", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("sizes", MOSTLY_DATA)
def test_a_stage_that_is_slower_on_all_ranks_is_named_as_the_stage(sizes: dict[str, Any]) -> None:
    even, slow = made(job(1, **sizes)), made(job(2, {2: 1.2, 3: 1.2}, **sizes))
    done = compare(even, slow)
    assert (first_cause(done).kind, first_cause(done).name) == ("stage", "stage 1 (all 2 ranks)")
    assert first_cause(done).ranks == (2, 3)
    assert verdicts(done)["step_ns"] == "regressed"
    assert first_cause(compare(slow, even)).name == "stage 1 (all 2 ranks)"


def test_of_a_slower_stage_a_rank_is_named_that_stands_out() -> None:
    even, slow = made(job(1, dp=2)), made(job(3, {2: 1.2, 3: 1.4}, dp=2))
    assert first_cause(compare(even, slow)).name == "stage 1 (all 2 ranks, rank 3 most)"
    # Held against a stage that was slow before, it alone changed.
    before = made(job(2, {2: 1.2, 3: 1.2}, dp=2))
    assert first_cause(compare(before, slow)).name == "rank 3"


def test_of_a_stage_the_ranks_that_got_slower_are_named() -> None:
    """Two of the three that hold stage 1."""
    done = compare(made(job(1, dp=3)), made(job(2, {3: 1.2, 4: 1.2}, dp=3)))
    assert (first_cause(done).kind, first_cause(done).name, first_cause(done).ranks) == ("rank", "ranks 3-4", (3, 4))


@pytest.mark.parametrize("sizes", PARALLEL)
def test_another_slow_rank_is_noted_and_no_regression(sizes: dict[str, Any]) -> None:
    """Ranks 2 and 3 hold the same stage: what they make of the step is the same, whichever is the slow one."""
    jobs = job(1, {2: 1.2}, **sizes), job(2, {3: 1.2}, **sizes)
    runs = {2: made(jobs[0]), 3: made(jobs[1])}
    for before, after in ((2, 3), (3, 2)):
        done = compare(runs[before], runs[after])
        assert not {"regressed", "improved"} & set(verdicts(done).values())
        assert done.level == "passes"
        (step,) = [line for line in done.lines if line.key.text == "step_ns"]
        # Without a reduction over pipelines the step ends with the last of them, by jitter within the share below.
        simulated = [step_ns(jobs[slow - 2]) for slow in (before, after)]
        assert [step.base, step.new] == pytest.approx(simulated, rel=0 if "dp" in sizes else AS_LONG_RATIO)
        (note,) = [note for note in done.notes if note.code is NoticeCode.RANK_SLOW_MOVED]
        assert note.subject == SubjectKind.RANK(after)
        assert [side.sources[0].global_ranks for side in (done.base, done.new)] == [
            (before - 2, before), (after - 2, after),
        ]  # fmt: skip


def test_a_slow_rank_at_another_place_counts_by_the_step_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3 of the last stage costs more of a step than rank 0 of the first, by what the simulator says."""
    jobs = job(1, {0: 1.2}, dp=2), job(2, {3: 1.2}, dp=2)
    first, last = map(made, jobs)
    assert step_ns(jobs[1]) > 1.02 * step_ns(jobs[0])
    done = compare(first, last)
    assert [line.key.text for line in done.regressed] == ["step_ns"]
    assert [(cause.name, cause.value > 0) for cause in done.causes["step_ns"][:2]] == [
        ("rank 3", True),
        ("rank 0", False),
    ]
    assert {verdicts(done)[f"action_ns/{name}"] for name in ("0F", "0B", "1F", "1B")} == {"inconclusive"}
    assert compare(last, first).failures == ()
    # Where the least change is larger, the step is the same: then no part of it fails.
    assert compare(first, last, least_change="6%").failures == ()
    out, error = said(capsys, 1, first.path, last.path, "--fail-on", "action_ns/1F>+5%")
    assert "action_ns/1F>+5%: inconclusive" in out
    assert "Hint: limit the step" in error
    printed = as_json(capsys, 1, first.path, last.path)
    assert [printed[side]["sources"][0]["pipeline"] for side in ("base", "new")] == [
        {"global_ranks": [0, 2], "sets_step": True, "slow_rank": 0},
        {"global_ranks": [1, 3], "sets_step": True, "slow_rank": 3},
    ]
    assert [cause.get("ranks") for cause in printed["causes"]["step_ns"][:2]] == [[3], [0]]


@pytest.mark.parametrize("sizes", MOSTLY_DATA)
def test_jitter_alone_is_no_change(sizes: dict[str, Any]) -> None:
    done = compare(made(job(1, **sizes)), made(job(4, **sizes)))
    assert not {"regressed", "improved"} & set(verdicts(done).values())
    assert done.base.sources[0].global_ranks == done.new.sources[0].global_ranks == (0, 2)
    assert not [note for note in done.notes if note.code is NoticeCode.RANK_SLOW_MOVED]


@pytest.mark.parametrize("slow", [(2, 3), (0, 3, 2)], ids=["of one stage", "of two stages"])
def test_repeats_with_other_slow_ranks_are_one_side(slow: tuple[int, ...]) -> None:
    """Each repeat is told of by its own slow rank; causes are those of a step that was, not of a mean of several."""
    jobs = [job(2 if rank == 3 else 1, {rank: 1.2}, dp=2) for rank in slow]
    done = compare([made(job(1, dp=2)), made(job(4, dp=2))], list(map(made, jobs)))
    (step,) = [line for line in done.lines if line.key.text == "step_ns"]
    assert (step.verdict, step.new) == ("regressed", step_ns(*jobs))
    cause = first_cause(done)
    assert cause.name in {f"rank {rank}" for rank in slow}
    (note,) = texts(done.notes, NoticeCode.CAUSES_UNKNOWN)
    assert f"{cause.name} is" in note


@pytest.mark.parametrize("slow", [2, 3])
def test_a_rank_whose_peer_was_not_recorded_is_named_with_that(slow: int) -> None:
    """Of two ranks that share layers one was recorded: its kernels tell whether it is slow, or waits in a reduction."""
    done = compare(*(made(job(n, of, tp=2), ranks=(0, 2)) for n, of in ((1, {}), (2, {slow: 1.2}))))
    named = {2: "rank 2", 3: "allreduce of ranks 2-3 in stage 1, or waits there for ranks that were not recorded"}
    assert done.causes["step_ns"][0].name == named[slow]
    # The step is what it is; an action may be as long as before, and hold waits.
    assert (verdicts(done)["step_ns"], verdicts(done)["action_ns/1B"]) == (
        ("regressed", "regressed") if slow == 2 else ("regressed", "inconclusive")
    )
    # The other pipeline cannot be looked at.
    notes = texts(done.notes, NoticeCode.PIPELINES_LEFT_OUT)
    assert len(notes) == 2
    assert all("1 of 2" not in note and "was not recorded whole" in note and "pipeline=" not in note for note in notes)


def test_of_one_recording_a_part_is_as_the_whole() -> None:
    """Rank 3 sets the step and is in the whole alone: ranks 0 and 2 wait for it after their backwards."""
    slow = job(2, {3: 1.2}, dp=2)
    whole, part = made(slow), made(slow, ranks=(0, 2))
    for base, new in ((whole, part), (part, whole)):
        done = compare(base, new)
        assert not {"regressed", "improved"} & set(verdicts(done).values())
        assert [side.recordings[0].global_ranks for side in (done.base, done.new)] == [[0, 2]] * 2
        assert [note.subject for note in done.notes if note.code is NoticeCode.RANK_SLOW_ELSEWHERE] == [
            SubjectKind.RANK(3)
        ]
    done = compare(made(job(1, dp=2), ranks=(0, 2)), part)
    assert "or waits there for ranks that were not recorded" in first_cause(done).name


def test_ranks_that_vary_from_place_to_place_are_no_regression() -> None:
    """As of jobs on other machines: stages are 3 % slower or faster where the step is set, the step by 1 %."""
    runs = [made(job(n, of, dp=2)) for n, of in ((1, {0: 1.08, 2: 0.975}), (2, {1: 1.05}))]
    for base, new in (runs, runs[::-1]):
        done = compare(base, new)
        assert [side.sources[0].global_ranks[0] for side in (done.base, done.new)] == [
            runs.index(base),
            runs.index(new),
        ]
        assert verdicts(done)["step_ns"] == "unchanged"
        assert verdicts(done)["action_ns/1B"] == "inconclusive"
        assert done.failures == ()


def test_a_pipeline_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    """Rank 3 has lost the kernels of its backwards: nothing tells how long its pipeline takes."""
    write_job(tmp_path / "new", job(2, dp=2))
    path = tmp_path / "new" / "rank3.json"
    trace = json.loads(path.read_text(encoding="utf-8"))
    trace["traceEvents"] = [
        event for event in trace["traceEvents"]
        if event["cat"] != "kernel" or not ("backward" in event["name"] or event["name"] == "nvjet_grads")
    ]  # fmt: skip
    path.write_text(json.dumps(trace), encoding="utf-8")
    done = compare(made(job(1, dp=2)), ingest(tmp_path / "new", tmp_path / "new.run"))
    (note,) = [note for note in done.notes if note.code is NoticeCode.PIPELINE_LEFT_OUT]
    assert note.subject == SubjectKind.PIPELINE(1)
    assert "rank 3: no kernel tells forward from backward" in note.text
    assert verdicts(done)["step_ns"] == "unchanged"


def test_a_recorded_peer_that_makes_a_pipeline_wait_is_named() -> None:
    done = compare(made(job(1, tp=2)), made(job(2, {3: 1.2}, tp=2)), pipeline=0)
    assert done.causes["step_ns"][0].name == "rank 3"
    assert "pipeline='N' looks at it" in texts(done.notes, NoticeCode.PIPELINES_LEFT_OUT)[1]


def test_reports_of_jobs_are_told_of_as_their_runs(tmp_path: Path) -> None:
    reports = []
    for name, of in (("base", {2: 1.2}), ("new", {3: 1.2})):
        reports.append(tmp_path / f"{name}.json")
        run = made(job(1 if name == "base" else 2, of, dp=2))
        assert command(["replay", str(run.path), "-q", "-o", str(reports[-1])]) == 0
        assert json.loads(reports[-1].read_text(encoding="utf-8"))["recording"]["job"]["sets_step"]
    done = compare(*reports)
    assert {verdicts(done)[name] for name in ("step_ns", "window_ns", "action_ns/1F")} == {"unchanged"}
    assert [note.subject for note in done.notes if note.code is NoticeCode.RANK_SLOW_MOVED] == [SubjectKind.RANK(3)]


def test_the_same_recordings_are_one_side_in_any_order() -> None:
    first, second = made(job(1, {2: 1.2}, dp=2)), made(job(2, {3: 1.2}, dp=2))
    done = compare([first, second], [second, first])
    assert (done.gate, done.failures) == ("tool", ())
    assert {line.verdict for line in done.lines} == {"unchanged"}
    before, after = (compare(made(job(4, dp=2)), side) for side in ([first, second], [second, first]))
    assert before.lines == after.lines
    assert before.causes == after.causes


def test_of_a_job_whose_pipelines_are_alike_any_stands_for_that_with_the_slow_rank() -> None:
    """As a report holds it: the pipeline that sets the step of each, of the base by a hair."""
    runs = made(job(1, dp=2)), made(job(1, {2: 1.2}, dp=2)), made(job(2, {3: 1.2}, dp=2))
    regressed = {"step_ns", "action_ns/1F", "action_ns/1B"}
    for slow, run in zip((2, 3), runs[1:], strict=True):
        sides = recording_of(runs[0], pipeline=3 - slow), recording_of(run, pipeline=None)
        held = held_against(*(side_of([("", recording)]) for recording in sides))
        assert regressed <= {line.key.text for line in held.regressed}
        assert held.causes["step_ns"][0].ranks == (slow,)


def test_a_job_of_other_size_is_no_version_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    larger, smaller = made(job(1, dp=3)), made(job(1, dp=2))
    assert "3 against 2 ranks per stage" in compare(larger, smaller).failures[0]
    out, _ = said(capsys, 1, larger.path, smaller.path)
    assert out.startswith("the sides did other work: 3 against 2 ranks per stage")
    assert compare(larger, smaller, allow_inconclusive=True).failures == ()


def test_halves_of_a_job_that_have_no_rank_in_common_are_held_against_the_usual_rank() -> None:
    """Ranks 2 and 3 hold stage 1, one recorded in each half; of four, 6 and 7 beside 4 and 5."""
    slow, even = (
        made(job(n, of, dp=4), ranks=ranks) for n, of, ranks in ((1, {7: 1.2}, (2, 3, 6, 7)), (2, {}, (0, 1, 4, 5)))
    )
    assert compare(even, slow).causes["step_ns"][0].name == "rank 7"
    assert compare(slow, even).causes["step_ns"][0].name == "rank 4 (base: 7)"


def test_gradients_that_take_longer_to_reduce_are_no_matter_of_one_rank() -> None:
    slower = replace(job(2, dp=2), reduce_ns=6_000_000)
    done = compare(made(job(1, dp=2)), made(slower))
    assert first_cause(done).name == "after the last backward on rank 0, as on all ranks"
    assert float(first_cause(done).value) == pytest.approx(slower.reduce_ns - job(1).reduce_ns, rel=0.01)


def test_whether_a_named_pipeline_sets_the_step_is_not_known() -> None:
    run = made(job(2, {3: 1.2}, dp=2))
    jobs = [recording_of(run, pipeline=number).job for number in (0, None)]
    assert [known.sets_step for known in jobs if known is not UNSET] == [None, True]


def test_which_pipelines_there_are_is_asked_once_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a single one: it is kept with the Run."""
    runs = made(job(1)), made(job(4))
    monkeypatch.setattr("tracetool.reconstruction.job.sort_pipelines", None)
    assert compare(*runs).failures == ()
