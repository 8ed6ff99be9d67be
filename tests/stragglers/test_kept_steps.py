"""The costs of a job's steps are worked out once, of all pipelines together: a Run keeps them for further questions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any, cast

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import made as made_once

from tracetool import ingest, stragglers
from tracetool.reconstruction.capture.survey import Survey
from tracetool.reconstruction.recorded_step import RecordedStep
from tracetool.store.query import Lens
from tracetool.store.run import Run
from tracetool.stragglers import find_stragglers

if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import cached_property


def job(pipelines: int) -> MadeJob:
    return MadeJob(pp=2, dp=pipelines, microbatches=2, layers=1, steps=3, jitter_ratio=0.02, slow={3: 1.2})


@pytest.fixture
def made(tmp_path: Path) -> Run:
    """A Run of two pipelines and three steps that was not asked for stragglers."""
    return Run(Path(copytree(made_once(job(2)).path, tmp_path / "x.run")))


def refuse(*_given: object, **_named: object) -> Any:
    raise AssertionError("worked out again")


def test_the_second_answer_is_the_first_without_a_look_at_the_traces(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_stragglers(made)
    monkeypatch.setattr(stragglers, "job_steps", refuse)
    assert find_stragglers(Run(made.path)) == first


def test_a_single_step_is_worked_out_by_itself(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages are over the steps that are looked at: those of all are no answer to it."""
    every = find_stragglers(made)
    number = every.steps[0].number
    alone = find_stragglers(made, number)
    assert [step.number for step in alone.steps] == [number]
    monkeypatch.setattr(stragglers, "job_steps", refuse)
    with pytest.raises(AssertionError, match="worked out again"):
        find_stragglers(made, number)


def test_a_run_that_cannot_be_written_to_answers_all_the_same(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Run, "keep", fail)
    first = find_stragglers(made)
    assert not list(made.path.glob("job_steps*"))
    assert find_stragglers(made) == first


def test_nothing_is_kept_of_tables_that_queries_changed(made: Run) -> None:
    whole = find_stragglers(made)
    fewer = made.overlay({"ranks": "SELECT * FROM {recorded}"})
    assert find_stragglers(fewer) == whole
    (made.path / "job_steps.kept").unlink()
    find_stragglers(fewer)
    assert not list(made.path.glob("job_steps*"))


def test_twice_the_pipelines_are_read_by_as_many_queries_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two for all pipelines and steps: the first look at each, then all of them; the survey's index is made once.

    A Timeline is made of the first look at each pipeline, and of no step that is looked at with others.
    """
    asked: Counter[str] = Counter()
    before, index = Lens._asked, cast("cached_property[object]", vars(Survey)["moved_ns"])
    observed = cast("cached_property[object]", vars(RecordedStep)["observed"])
    indexed, timed = index.func, observed.func

    def counted(self: Lens, sql: str, ask: Callable[..., Any]) -> object:
        asked["kernels"] += "AS is_communication" in sql
        return before(self, sql, ask)

    def counted_index(self: Survey) -> object:
        asked["index"] += 1
        return indexed(self)

    def counted_timeline(self: RecordedStep) -> object:
        asked["timelines"] += 1
        return timed(self)

    monkeypatch.setattr(Lens, "_asked", counted)
    monkeypatch.setattr(observed, "func", counted_timeline)
    monkeypatch.setattr(index, "func", counted_index)
    for pipelines in (2, 4):
        write_job(tmp_path / f"{pipelines}", job(pipelines))
        run = ingest(tmp_path / f"{pipelines}", tmp_path / f"{pipelines}.run")
        asked.clear()
        assert len(find_stragglers(run).ranks) == pipelines
        assert asked == {"kernels": 2, "index": 1, "timelines": pipelines}
