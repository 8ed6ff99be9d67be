"""A recording gives back the pipelines it was made of; sides of other shapes are compared as far as they go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from helpers import synthetic
from helpers.made_job import MadeJob, simulate
from helpers.notices import texts
from helpers.recorded import made
from helpers.thorough import spread
from matplotlib.colors import to_hex

from tracetool.cli import run as command
from tracetool.comparison import compare
from tracetool.comparison.asked import compare as compare_runs
from tracetool.comparison.sides import side_of
from tracetool.comparison.values import Key
from tracetool.ingestion.recording import Recording, make_recording, pipeline_of
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay
from tracetool.reports import RunFacts
from tracetool.reports.answer.json import render
from tracetool.reports.comparison.forms import timelines_figure
from tracetool.reports.picture import RED
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.model.pipeline import Pipeline


def tensor_job(slow: dict[int, float] | None = None, **other: Any) -> MadeJob:
    """Two ranks on each of two stages share layers; messages take next to nothing, for replay sends them in turn."""
    return MadeJob(pp=2, tp=2, microbatches=2, layers=1, steps=6, move_ns=1000, slow=slow or {}, **other)


def recorded(pipeline: Pipeline, digest: str = "x", steps: int = 1) -> Recording:
    """As if steps had run as replay runs them."""
    timeline = replay(pipeline, pipeline.observed, Scenario()).timeline
    looks: list[Any] = [
        SimpleNamespace(
            step=SimpleNamespace(number=n),
            pipeline=pipeline,
            observed=timeline,
            transfers=timeline.transfers,
            work=SimpleNamespace(ranks={}),
            beside_ns={},
        )
        for n in range(steps)
    ]
    return make_recording(digest, looks)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_recording_gives_back_its_pipeline_also_through_json(schedule: str) -> None:
    made = synthetic.pipeline(
        3, 4, [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], 20, payload_bytes=64, transfer_ns=2, tail_ns=9,
        activation_bytes=5, static_bytes=100, schedule=schedule,
    )  # fmt: skip
    kept = msgspec.json.decode(msgspec.json.encode(recorded(made)), type=Recording)
    assert kept == recorded(made)
    (step,) = kept.steps
    again = pipeline_of(kept, step)
    assert again.observed.orders == made.observed.orders
    assert [stage.costs for stage in again.stages] == [stage.costs for stage in made.stages]
    # The first stage sends no gradient and the last one no activation: nothing of those is kept.
    assert [s.forward_payload_bytes for s in again.stages] == [64, 64, None]
    assert [s.backward_transfer_ns for s in again.stages] == [0, 2, 2]
    assert (again.ranks, again.p2p) == (made.ranks, made.p2p)
    whole = [measure(replay(each, each.observed, Scenario()).timeline) for each in (made, again)]
    assert whole[0] == whole[1]
    assert (step.step_ns, step.bubble_ratio) == (whole[0].step_ns, whole[0].bubble_ratio)


def test_stages_and_ranks_of_other_pipelines_are_not_compared() -> None:
    """Half the layers per stage take half the time, which is no improvement."""
    few, many = (synthetic.pipeline(p, 4, 40 // p, 80 // p, static_bytes=100 // p, activation_bytes=0) for p in (2, 4))
    done = compare(side_of([("a", recorded(few, "a", 7))]), side_of([("b", recorded(many, "b", 7))]))
    assert {line.key.metric for line in done.lines} == {
        "step_ns", "window_ns", "compute_ns", "bubble_ns", "bubble_ratio", "peak_hbm_bytes",
    }  # fmt: skip
    assert not any(line.key.scope for line in done.lines)
    (note,) = texts(done.notes, NoticeCode.OTHER_WORK)
    assert "2 against 4 stages; ranks 0-1 against 0-3" in note
    # (m + p - 1) (F + B) each: 5 x 60 and 7 x 30, all seven steps alike.
    (window,) = [line for line in done.lines if line.key.text == "window_ns"]
    assert (window.base, window.new, window.verdict) == (300, 210, "improved")


def test_steps_of_two_orders_are_told_by_the_usual_one() -> None:
    """Five steps of 1F1B and two of GPipe: the typical step is 1F1B, as the other side's."""
    usual, other = (synthetic.pipeline(2, 4, 10, 20, schedule=name) for name in ("1f1b", "gpipe"))
    mixed = [("a", recorded(usual, "a", 5)), ("b", recorded(other, "b", 2))]
    done = compare(side_of(mixed), side_of([("c", recorded(usual, "c", 5))]))
    assert all(not cause.value for cause in done.causes["step_ns"])


@pytest.mark.parametrize("schedule", ["gpipe", "geopipe"])
def test_changes_of_replays_have_causes_over_their_links(tmp_path: Path, schedule: str) -> None:
    """Backwards of stage 2 take 9 ns more: what that costs is the difference between two replays made here."""
    before, after = (
        synthetic.pipeline(
            4, 6, 10, [20, 20, slower, 20], payload_bytes=10, transfer_ns=2, tail_ns=9, p2p="in-order"
        )
        for slower in (20, 29)
    )  # fmt: skip
    links = (Link("a", "b", 10**9, 7), Link("b", "a", 10**9, 7))
    scenario = Scenario(topology=Topology(("a", "a", "b", "b"), links))
    sides, replays = [], []
    for name, pipeline in (("base", before), ("new", after)):
        found = synthetic.found(pipeline)
        depth = (2, 2, 0, 0) if schedule == "geopipe" else None
        asked = answer(found, schedule, scenario, extra_forwards=depth, each_step=[pipeline])
        facts = RunFacts(name, name, "1", "", None, recorded(pipeline, name, 3))
        path = tmp_path / f"{name}.json"
        path.write_bytes(render(asked, facts, ".json"))
        sides.append(side_of([(name, path)]))
        replays.append(asked.results[0].metrics.step_ns)
    done = compare(*sides)
    (line,) = [line for line in done.lines if line.key == Key("step_ns", schedule)]
    assert (line.base, line.new, line.verdict) == (*replays, "inconclusive")
    *causes, rest = done.causes[f"step_ns/{schedule}"]
    (cause,) = (cause for cause in causes if cause.value)
    assert (cause.name, int(cause.value), int(rest.value)) == ("stage 2 B", replays[1] - replays[0], 0)
    assert replays[1] > replays[0]


# Of the first pipeline no choice is needed.
@spread("slow", [2, 3], [3])
def test_of_pipelines_that_differ_that_with_the_slow_rank_is_compared(slow: int) -> None:
    """Of the peers that wait for the slow one none is blamed.

    The step is longer by what ``made_job``'s simulator says, and all of that is the slow rank's.
    """
    jobs = tensor_job(), tensor_job({slow: 1.2})
    steps = [simulate(job).step_ns[0] for job in jobs]
    base, new = map(made, jobs)
    done = compare_runs(base, new)
    (line,) = [line for line in done.lines if line.key.text == "step_ns"]
    assert (line.base, line.new) == tuple(steps)
    cause = done.causes["step_ns"][0]
    assert cause.name == f"rank {slow}"
    assert float(cause.value) == pytest.approx(steps[1] - steps[0], rel=0.02)
    chosen = [side.sources[0].global_ranks for side in (done.base, done.new)]
    assert chosen == [tuple(recording.global_ranks) for recording in done.base.recordings + done.new.recordings]
    assert slow in chosen[0]
    assert compare_runs(new, base).base.sources[0].global_ranks == chosen[0]
    assert compare_runs(base, new, pipeline=0).base.sources[0].global_ranks == (0, 2)


def test_reports_of_pipelines_that_differ_hold_that_with_the_slow_rank(tmp_path: Path) -> None:
    """Rank 3 is slow; of even pipelines, as those of the base, the first stands for all: rank 2 holds that stage."""
    runs = {"base": made(tensor_job()), "new": made(tensor_job({3: 1.2}))}
    for name, run in runs.items():
        assert command(["replay", str(run.path), "-q", "-o", str(tmp_path / f"{name}.json")]) == 0
    done = compare_runs(tmp_path / "base.json", tmp_path / "new.json")
    assert done.causes["step_ns"][0].name == "rank 3"
    # Ranks stand against those of the same place, by whose numbers they go.
    assert {line.key.rank for line in done.lines if line.key.rank is not None and line.new_count} == {0, 2}
    # A report holds the pipeline that sets its step; beside it a Run is told of by its own.
    for base, is_same in (("base.json", False), ("new.json", True)):
        done = compare_runs(tmp_path / base, runs["new"])
        assert done.new.sources[0].global_ranks == (1, 3)
        assert ({line.verdict for line in done.lines} == {"unchanged"}) == is_same
    assert compare_runs(tmp_path / "new.json", tmp_path / "new.json").failures == ()


# What the first pipeline is by its number, it is by its ranks, too.
@spread("recorded", [(0, 2), (1, 3)], [(1, 3)])
def test_a_pipeline_that_both_sides_have_whole_is_compared(recorded: tuple[int, ...]) -> None:
    """Of one recording a part is as the whole, whoever is slow in the whole, and however pipelines are counted."""
    whole, part = made(tensor_job({3: 1.2})), made(tensor_job({3: 1.2}), ranks=recorded)
    for sides in ((whole, part), (part, whole)):
        done = compare_runs(*sides)
        assert [side.sources[0].global_ranks for side in (done.base, done.new)] == [recorded] * 2
        assert not {"regressed", "improved"} & {line.verdict for line in done.lines}


def test_tails_of_another_pipeline_are_outlined_on_both_sides(tmp_path: Path) -> None:
    """The optimizer takes 1 ms more on all ranks, and rank 3 of the new side's pipeline is slow: two tails change."""
    for name, job in (("base", tensor_job()), ("new", tensor_job({3: 1.2}, optimizer_ns=1_500_000))):
        assert command(["replay", str(made(job).path), "-q", "-o", str(tmp_path / f"{name}.json")]) == 0
    done = compare_runs(tmp_path / "base.json", tmp_path / "new.json")
    changed = {line.key.text for line in done.lines if line.verdict == "regressed"}
    assert {"tail_ns/rank0", "tail_ns/rank2", "action_ns/1F", "action_ns/1B"} <= changed
    cells = 2 * 2 + 2 * 2  # two actions of each of two microbatches, and reduction and optimizer of two ranks
    outlined = []
    for axes in timelines_figure(done).axes:
        (marked,) = [patch for patch in axes.patches if to_hex(patch.get_edgecolor()) == RED.lower()]
        outlined.append(np.shape(marked.get_path().vertices)[0] // 5)
    assert outlined == [cells, cells]
