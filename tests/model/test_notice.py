"""Notices as values: what they are about and what to do, beside the sentence for people."""

from __future__ import annotations

import pytest
from helpers.recorded import SAMPLES, looked_at, run_of

import tracetool as tt
from tracetool.model.notice import Notice, NoticeCode, Notices, Subject, SubjectKind
from tracetool.model.topology import parse_link


@pytest.mark.parametrize("kind", list(SubjectKind))
@pytest.mark.parametrize("name", [0, 17, "dc0-dc1", "path with blanks.run"])
def test_a_subject_is_read_back_from_a_table(kind: SubjectKind, name: object) -> None:
    assert Subject.parse(str(kind(name))) == kind(name) == (kind, str(name))


@pytest.mark.parametrize("text", ["all", "ranks 0-3", "rank", "rank ", "tp", ""])
def test_what_is_about_several_things_or_all_is_no_subject(text: str) -> None:
    assert Subject.parse(text) is None


def test_a_hint_is_said_behind_the_sentence_and_a_notice_is_kept_once() -> None:
    notices = Notices()
    for _ in range(2):
        notices.add(NoticeCode.FIDELITY, "it is off", hint="record again", subject=SubjectKind.STEP(3))
    notices.add(NoticeCode.FIDELITY, "it is off", hint="record again", subject=SubjectKind.STEP(4))
    assert [str(notice) for notice in notices] == ["it is off: record again"] * 2
    assert notices[0] == Notice(NoticeCode.FIDELITY, "it is off", "record again", SubjectKind.STEP(3))


def test_a_link_that_stays_in_a_sweep_is_the_subject_of_its_note() -> None:
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    fixed_links = tt.Scenario(topology=tt.Topology(links=parse_link("dc0-dc1=25Gbit/s,10ms")))
    grid = tt.grid(found, "1f1b", dc="0,1-2,3", bandwidth="25Gbit/s", latency="1ms", scenario=fixed_links)
    notes = tt.sweep(found, grid, knees=False).notes
    fixed = [note.subject for note in notes if note.code is NoticeCode.LINKS_FIXED]
    assert fixed == [SubjectKind.LINK("dc0-dc1"), SubjectKind.LINK("dc1-dc0")]
