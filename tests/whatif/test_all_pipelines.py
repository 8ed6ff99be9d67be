"""All pipelines of made jobs, from traces to answers: what sets the step is known from how they were made."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers import synthetic
from helpers.made_job import MadeJob, Simulated, simulate
from helpers.made_traces import write_job
from helpers.notices import texts
from helpers.recorded import data, derived, h100, looked_at

import tracetool as tt
from tracetool.cli import run as command
from tracetool.costs.rescaled import with_faster_compute
from tracetool.errors import ScenarioError
from tracetool.model.job import AlikePipelines, SortedPipelines
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.pipeline import JobPipelines
from tracetool.reconstruction.job import (
    KEPT_PIPELINES,
    WholeJob,
    record_job,
    sort_pipelines,
)
from tracetool.replays.evaluation import evaluate

if TYPE_CHECKING:
    from pathlib import Path

SLOW = 1.25


class _Made:
    def __init__(self, folder: Path, job: MadeJob) -> None:
        self.job = job
        self.traces = folder / "traces"
        self.simulated: Simulated = write_job(self.traces, job)
        self.path = folder / "x.run"
        self.run = tt.ingest(self.traces, self.path)
        self.found = tt.reconstruct(self.run)

    def joined(self) -> WholeJob:
        return record_job(self.run, self.found, sort_pipelines(self.run))


@pytest.fixture(scope="module")
def straggling(tmp_path_factory: pytest.TempPathFactory) -> _Made:
    """Two replicas of two stages, tensor parallel; rank 6, of the second stage of pipeline 2, is slow."""
    job = MadeJob(
        pp=2, dp=2, tp=2, layers=1, slow={6: SLOW}, jitter_ratio=0.003, seed=1, clocks_ns={1: 4_000_000, 6: -2_000_000}
    )
    return _Made(tmp_path_factory.mktemp("straggling"), job)


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> _Made:
    """Three replicas of two stages with jitter alone."""
    return _Made(tmp_path_factory.mktemp("equal"), MadeJob(pp=2, dp=3, layers=1, jitter_ratio=0.003, seed=2))


def test_the_slow_pipeline_and_its_rank_set_the_step(straggling: _Made) -> None:
    """Pipelines 2 and 3 meet within actions, so both are slow; 0 and 1 wait for them in the reduction.

    The simulator's step is from the first kernel of any rank; what its hosts leave between calls is no part of costs.
    """
    known = sort_pipelines(straggling.run)
    assert [alike.numbers for alike in known.alike] == [(0, 1), (2,), (3,)]
    assert known.slower[6] == pytest.approx(SLOW - 1, abs=0.01)
    answer = tt.answer(straggling.found, "1f1b,gpipe", pipelines=straggling.joined())
    slowest = answer.baseline.slowest
    assert slowest is not None
    assert (slowest.pipeline, slowest.rank) == (2, 6)
    assert answer.baseline.step_ns == pytest.approx(straggling.simulated.step_ns[0], rel=0.01)
    assert answer.baseline.timeline.global_ranks == (2, 6)
    assert answer.results[0].slowest_rank == 6
    ready = [max(straggling.simulated.ready_ns[0][rank] for rank in (n, n + 4)) for n in range(4)]
    for alike, expected in zip(slowest.alike, (max(ready[:2]), *ready[2:]), strict=True):
        assert alike.window_ns == pytest.approx(expected, rel=0.01)
    # By itself, the first pipeline tells of a step without its waiting.
    alone = tt.answer(straggling.found, "1f1b").baseline.step_ns
    assert answer.baseline.step_ns > 1.1 * alone


def test_another_schedule_is_as_a_simulation_of_it(straggling: _Made) -> None:
    """GPipe simulated for the same job: predicted from the recording of 1F1B."""
    job = straggling.job
    orders = [[(s, kind, n) for kind in "FB" for n in range(job.microbatches)] for s in range(job.pp)]
    other = MadeJob(pp=2, dp=2, tp=2, layers=1, slow=job.slow, jitter_ratio=0.003, seed=1, order=orders.__getitem__)
    answer = tt.answer(straggling.found, "gpipe", pipelines=straggling.joined())
    assert answer.results[0].step_ns == pytest.approx(simulate(other).step_ns[0], rel=0.015)


def test_equal_pipelines_give_the_answer_of_the_first(equal: _Made) -> None:
    known = sort_pipelines(equal.run)
    (alike,) = known.alike
    assert alike.numbers == (0, 1, 2)
    assert 0 < alike.apart_ratio < 0.01
    alone, told = (tt.answer(equal.found, "gpipe", pipelines=pipelines) for pipelines in (None, known))
    assert [r.metrics for r in alone.results] == [r.metrics for r in told.results]
    assert texts(told.notes, NoticeCode.PIPELINES_ALIKE)[0].startswith("3 equal pipelines side by side")
    job = record_job(equal.run, equal.found, known)
    joined = tt.answer(equal.found, "gpipe", pipelines=job)
    assert [r.metrics for r in joined.results] == [r.metrics for r in alone.results]
    assert {p.ranks[0].tail[0].collectives[0].meeting for p in job.pipelines} == {
        equal.found.pipeline.ranks[0].tail[0].collectives[0].meeting
    }


def test_a_run_keeps_which_of_its_pipelines_are_alike(straggling: _Made) -> None:
    assert straggling.run.kept(KEPT_PIPELINES) == sort_pipelines(straggling.run)


def test_what_is_of_one_pipeline_is_refused(straggling: _Made) -> None:
    with pytest.raises(ScenarioError, match="one pipeline alone"):
        tt.answer(straggling.found, "1f1b", pipelines=straggling.joined(), jitter_seed=1)


def test_replay_takes_all_together_where_they_differ_and_says_where_it_does_not(
    straggling: _Made, equal: _Made, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: object) -> str:
        assert command(["replay", *map(str, words), "-q"]) == 0
        return capsys.readouterr().out

    text = printed(straggling.path, "--schedule", "gpipe", "--all-pipelines")
    assert "pipeline 2 sets the step; the kernels of rank 6 take" in text
    told = json.loads(printed(straggling.path, "--schedule", "gpipe", "--json", "--all-pipelines"))
    assert told["pipelines"]["joined"] is True
    assert [kind["numbers"] for kind in told["pipelines"]["alike"]] == [[0, 1], [2], [3]]
    slowest = told["baseline"]["slowest"]
    assert (slowest["pipeline"], slowest["rank"], slowest["global_ranks"]) == (2, 6, [2, 6])
    one = json.loads(printed(straggling.path, "--schedule", "gpipe", "--json", "--pipeline", 0))
    assert one["pipelines"] is one["results"][0]["slowest"] is None
    assert one["baseline"]["step_ns"] < told["baseline"]["step_ns"]
    unasked = json.loads(printed(straggling.path, "--schedule", "gpipe", "--json"))
    assert unasked | {"command": ""} == told | {"command": ""}
    by_itself = json.loads(printed(straggling.path, "--schedule", "gpipe", "--json", "--jitter", 1))
    assert by_itself["pipelines"]["joined"] is False
    # One by itself is that of the slowest rank, unless another is chosen.
    slowest = json.loads(printed(straggling.path, "--schedule", "gpipe", "--json", "--pipeline", 2))
    assert by_itself["baseline"]["step_ns"] == slowest["baseline"]["step_ns"] > one["baseline"]["step_ns"]
    (differ,) = [note for note in by_itself["notes"] if "pipelines differ" in note]
    assert "kernels of rank 6 take 2" in differ
    assert "--all-pipelines" in differ
    same = json.loads(printed(equal.path, "--json"))
    assert same["pipelines"]["joined"] is False
    asked = json.loads(printed(equal.path, "--json", "--all-pipelines"))
    assert asked["pipelines"]["joined"] is True
    assert asked["baseline"]["step_ns"] == same["baseline"]["step_ns"]


# The same of a recording, whose pipelines differ by what happened: of a made job it is tried by default (below).
@pytest.mark.thorough
def test_every_face_replays_the_same_pipeline_where_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """One truth, over a link: replay, sweep, advise and explain take all pipelines where they differ."""
    recording, place = (
        str(derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8")).path),
        ["--schedule", "1f1b", "--dc", "0,1"],
    )
    link = ["--link", "dc0-dc1=25Gbit/s,10ms"]

    def asked(verb: str, *words: str) -> dict[str, Any]:
        assert command([verb, recording, *place, *words, "--json", "-q"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    replayed = asked("replay", *link)
    assert replayed["pipelines"]["joined"] is True
    steps = {
        "replay": replayed["results"][0]["step_ns"],
        "sweep": asked("sweep", "--bandwidth", "25Gbit/s", "--latency", "10ms", "--no-knees")["points"][0]["step_ns"],
        "advise": asked("advise", *link)["best"]["step_ns"],
        "explain": asked("explain", *link)["step_ns"],
    }
    assert len(set(steps.values())) == 1, steps


WAN = ["--dc", "0,1", "--link", "dc0-dc1=25Gbit/s,2ms"]
FIGURES = ["--dc", "0,1", "--bandwidth", "25Gbit/s", "--latency", "2ms"]


def _asked(capsys: pytest.CaptureFixture[str], verb: str, *words: object) -> dict[str, Any]:
    assert command([verb, *map(str, words), "--json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_face_replays_all_pipelines_alike(
    straggling: _Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One truth of all pipelines, over a link that they share: every command, and Python, give the step of replay."""
    asked = ["--schedule", "1f1b", "--all-pipelines"]
    result = _asked(capsys, "replay", straggling.path, *asked, *WAN)["results"][0]
    replayed = result["step_ns"]
    # Pipelines 2 and 3 take turns on the link, so one ends before the other, and both wait for rank 6 within actions.
    assert result["slowest"]["pipeline"] in {2, 3}
    assert result["slowest"]["rank"] == 6
    row = {
        "name": "wan", "schedule": "1f1b", "microbatches": straggling.job.microbatches, "pipeline_ranks": 2,
        "tensor_parallel": 2, "data_parallel": 2, "step_ms": 100.0,
        "links": [{"between_pipeline_ranks": [0, 1], "bandwidth_gbit_per_s": 25, "latency_ms": 2}],
    }  # fmt: skip
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"results": [row, row | {"name": "other", "pipelines_on_link": 2}]}))
    page = tmp_path / "page.json"
    _asked(capsys, "report", straggling.path, *asked, *WAN, "-o", page)
    whole = tt.join_pipelines(straggling.run, straggling.found)
    scenario = tt.scenario(whole, dc="0,1", link="dc0-dc1=25Gbit/s,2ms")
    grid = tt.grid(whole, "1f1b", dc="0,1", bandwidth="25Gbit/s", latency="2ms")
    validated = _asked(capsys, "validate", straggling.path, measured, "--all-pipelines")
    best = tt.advise(whole, scenario, "1f1b").best
    assert best is not None
    explained = _asked(capsys, "explain", straggling.path, *asked, *WAN)
    assert explained["global_ranks"] == result["slowest"]["global_ranks"], "idle time is of the one that sets the step"
    steps = {
        "sweep": _asked(capsys, "sweep", straggling.path, *asked, *FIGURES, "--no-knees")["points"][0]["step_ns"],
        "advise": _asked(capsys, "advise", straggling.path, *asked, *WAN)["best"]["step_ns"],
        "explain": explained["step_ns"],
        "report": json.loads(page.read_text())["results"][0]["step_ns"],
        "validate": round(validated["rows"][0]["predicted_ms"] * 1e6) - (whole.pipeline.outside_ns or 0),
        "tt.answer": tt.answer(whole, "1f1b", scenario).results[0].step_ns,
        "tt.advise": best.step_ns,
        "tt.explain": tt.explain(whole, "1f1b", scenario).metrics.step_ns,
        "tt.sweep": tt.sweep(whole, grid, knees=False).points[0].step_ns,
    }
    assert set(steps.values()) == {replayed}, (replayed, steps)
    assert validated["rows"][1]["reason"].startswith("the row has 2 pipelines on its links, the Run 4")
    first = ["--schedule", "1f1b", "--pipeline", 0]
    alone = _asked(capsys, "replay", straggling.path, *first, *WAN)["results"][0]["step_ns"]
    assert replayed > 1.05 * alone


def test_a_tuned_schedule_has_one_depth_and_memory_limit_on_every_face(straggling: _Made) -> None:
    """The depth is sought with all pipelines, and each kind of them must fit: by replay as by sweep."""
    whole = tt.join_pipelines(straggling.run, straggling.found)
    held = tt.scenario(whole, activation="1GiB", static="1GiB")
    scenario = tt.scenario(whole, dc="0,1", link="dc0-dc1=25Gbit/s,20ms", hbm="80GiB", activation="1GiB", static="1GiB")
    (answered,) = tt.answer(whole, "geopipe", scenario).results
    grid = tt.grid(whole, "geopipe", dc="0,1", bandwidth="25Gbit/s", latency="20ms", hbm="80GiB", scenario=held)
    (point,) = tt.sweep(whole, grid, knees=False).points
    assert any(answered.extra_forwards or ())
    assert (point.extra_forwards, point.step_ns, point.feasible) == (answered.extra_forwards, answered.step_ns, True)


def test_what_an_explanation_removes_it_removes_of_all_pipelines(straggling: _Made) -> None:
    """Free links, equal stages, no optimizer: no replay without a cause falls back to the pipeline by itself.

    The slow rank's pipeline computes a quarter longer than the first one: with less removed than that, what all take
    stays above what the first takes with it all.
    """
    whole = tt.join_pipelines(straggling.run, straggling.found)
    joined, alone = (
        tt.explain(one, "1f1b", tt.scenario(one, dc="0,1", link="dc0-dc1=25Gbit/s,2ms"))
        for one in (whole, straggling.found)
    )
    both = [
        {each.cause: each.removal.step_ns for each in one.causes if each.removal.step_ns} for one in (joined, alone)
    ]
    for cause in both[0].keys() & both[1].keys():
        assert both[0][cause] > 1.05 * both[1][cause], cause
    assert (joined.without_any.step_ns or 0) > 1.05 * (alone.without_any.step_ns or 0)


def test_a_pipeline_that_does_not_set_the_step_may_lack_memory() -> None:
    """Of two, the first computes twice as long, and the other holds 50 bytes more at rest.

    1F1B of two stages holds two activations of 10 bytes on its first rank: 120 and 170 bytes, against 155.
    """
    long, full = (
        synthetic.pipeline(
            2, 4, factor * 1_000_000, factor * 2_000_000, p2p="posted-ahead", activation_bytes=10,
            static_bytes=[rest, rest],
        )
        for factor, rest in ((2, 100), (1, 150))
    )  # fmt: skip
    full = replace(full, ranks=tuple(replace(profile, rank=profile.rank + 2) for profile in full.ranks))
    kinds = SortedPipelines((AlikePipelines((0,), 0.0), AlikePipelines((1,), 0.0)))
    whole = synthetic.found(replace(long, job=JobPipelines(kinds, (long, full), (0, 1), (0, 1), 0)))
    result = tt.answer(whole, "1f1b", synthetic.scenario(hbm_bytes=155)).baseline
    assert result.slowest_pipeline == 0
    assert result.feasible is False
    assert result.shortage is not None
    assert (result.shortage.global_rank, result.shortage.missing_bytes) == (2, 15)
    (point,) = tt.sweep(whole, tt.Grid(("1f1b",), synthetic.scenario(), hbm_bytes=(155,)), knees=False).points
    assert (point.step_ns, point.feasible) == (result.step_ns, False)
    assert point.remarks[0].subject == SubjectKind.RANK(2)


def test_a_pipeline_that_was_changed_by_itself_is_refused(straggling: _Made) -> None:
    """What changes a pipeline of a job changes all of them (``each``): else an answer would be of two recordings."""
    whole = tt.join_pipelines(straggling.run, straggling.found).pipeline
    with pytest.raises(ValueError, match=r"Pipeline\.each"):
        evaluate(
            replace(whole, stages=tuple(replace(stage, launches={}) for stage in whole.stages[::-1])), whole.observed
        )
    faster = with_faster_compute(whole, 2.0)
    assert [one.stages for one in faster.together] == [with_faster_compute(one, 2.0).stages for one in whole.together]
    assert evaluate(faster, whole.observed).metrics.step_ns < evaluate(whole, whole.observed).metrics.step_ns


@pytest.mark.parametrize(
    ("verb", "words", "flag"),
    [
        ("replay", ["--jitter", "1"], "--jitter"),
        ("replay", ["--each-step"], "--each-step"),
        ("advise", ["--pipeline", "1"], "--pipeline"),
        (
            "sweep",
            ["--tensor-bandwidth", "100GB/s", "--bandwidth", "1Gbit/s", "--latency", "1ms"],
            "--tensor-bandwidth",
        ),
        ("explain", ["--overlap", "slice:2"], "--overlap"),
        ("report", ["--pipelines-on-link", "2"], "--pipelines-on-link"),
    ],
)
def test_what_is_asked_of_one_pipeline_is_refused_of_all(
    verb: str, words: list[str], flag: str, straggling: _Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([verb, str(straggling.path), *words, "--all-pipelines", "-q"]) == 2
    assert f"it does not go with {flag}" in " ".join(capsys.readouterr().err.split())


def test_one_pipeline_that_is_typed_goes_ahead_of_all_that_are_set(
    straggling: _Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "x.toml"
    settings.write_text("all-pipelines = true\n")
    words = [straggling.path, "--schedule", "1f1b", "--config", settings]
    assert _asked(capsys, "replay", *words)["pipelines"]["joined"] is True
    assert _asked(capsys, "replay", *words, "--pipeline", 1)["pipelines"] is None


def test_sql_names_the_pipeline_and_the_rank(straggling: _Made, tmp_path: Path) -> None:
    assert (
        command(
            [
                "replay",
                str(straggling.path),
                "--schedule",
                "gpipe",
                "-q",
                "--all-pipelines",
                "--run",
                str(tmp_path / "y.run"),
            ]
        )
        == 0
    )
    rows = tt.open_run(tmp_path / "y.run").query(
        "SELECT timeline, slowest_pipeline, slowest_rank FROM schedule_comparison ORDER BY timeline"
    )
    *replayed, observed = rows.rows()
    assert [(name, rank) for name, _, rank in replayed] == [("1f1b", 6), ("gpipe", 6)]
    # The two that meet within actions are through at nearly the same time.
    assert {pipeline for _, pipeline, _ in replayed} <= {2, 3}
    assert observed == ("observed", None, None)


# Of made pipelines the slowest sets the step by default (above).
@pytest.mark.thorough
def test_two_recorded_pipelines_are_as_slow_as_the_slower_one() -> None:
    """Tensor parallel H100s whose pipelines share no reduction: the step is the longer one of both, to the ns."""
    found = tuple(looked_at(h100("tp2pp2_1f1b_m8"), pipeline=number) for number in (0, 1))
    steps = [tt.answer(one, "1f1b").baseline.step_ns for one in found]
    kinds = SortedPipelines((AlikePipelines((0,), 0.0), AlikePipelines((1,), 0.0)))
    job = WholeJob(kinds, found, tuple(one.pipeline for one in found), (0, 1), (0, 1))
    answer = tt.answer(found[0], "1f1b", pipelines=job)
    assert answer.baseline.step_ns == max(steps)
    assert answer.baseline.slowest_pipeline == steps.index(max(steps))


def test_over_links_all_pipelines_are_those_that_were_recorded_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four ranks lack their computes: what the second pipeline sends over the link is not known."""
    traces = str(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    words = ["replay", traces, "--schedule", "1f1b", "--all-pipelines"]
    assert command(words) == 0
    assert "1 pipeline not recorded whole (1)" in " ".join(capsys.readouterr().out.split())
    assert command([*words, "--dc", "0,1", "--link", "dc0-dc1=25Gbit/s,10ms"]) == 2
    assert "pipelines 1 were not recorded whole" in capsys.readouterr().err
