"""The costs of a job's steps are worked out once: a Run keeps them for the questions that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job

from tracetool import ingest, stragglers
from tracetool.store.run import Run
from tracetool.stragglers import find_stragglers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def made(tmp_path: Path) -> Run:
    """A Run of two pipelines and three steps that was not asked for stragglers."""
    write_job(tmp_path / "traces", MadeJob(pp=2, dp=2, steps=3, jitter_ratio=0.02, slow={3: 1.2}))
    return ingest(tmp_path / "traces", tmp_path / "x.run")


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
