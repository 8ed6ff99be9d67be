"""Notices as values: what they are about and what to do, beside the sentence for people."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.recorded import ROOT, SAMPLES, looked_at, run_of

import tracetool as tt
from tracetool.model.notice import Notice, NoticeCode, Notices, SourceCode, Subject, SubjectKind, noted
from tracetool.model.topology import parse_link
from tracetool.reconstruction import notes_of_sources


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


def test_what_was_noted_of_sources_is_said_once_with_its_ranks_and_keeps_its_code() -> None:
    epoch, rank = Notice(SourceCode.NO_EPOCH, "no epoch"), Notice(SourceCode.RANK_INFERRED, "its rank is a guess")
    sources: list[dict[str, Any]] = [
        {"path": "a", "rank": 0, **noted([epoch, rank])},
        {"path": "b", "rank": 1, **noted([epoch])},
        {"path": "c", "rank": None, **noted([rank])},
    ]
    assert notes_of_sources(sources) == [
        Notice(SourceCode.NO_EPOCH, "ranks 0-1: no epoch"),
        Notice(SourceCode.RANK_INFERRED, "rank 0: its rank is a guess"),
        Notice(SourceCode.RANK_INFERRED, "c: its rank is a guess"),
    ]


def test_a_run_of_an_earlier_version_noted_no_codes_of_its_sources() -> None:
    """Nor does this version know codes of a later one."""
    sources = [{"path": "a", "rank": 2, "notes": ["no epoch", "its rank is a guess"], "note_codes": ["LATER"]}]
    assert notes_of_sources(sources) == [
        Notice(SourceCode.UNCODED, "rank 2: no epoch"),
        Notice(SourceCode.UNCODED, "rank 2: its rank is a guess"),
    ]


def test_every_code_is_noted_somewhere_and_names_one_thing() -> None:
    words = {w for path in (ROOT / "tracetool").rglob("*.py") for w in re.findall(r"[\w.]+", path.read_text("utf-8"))}
    assert [str(code) for code in (*NoticeCode, *SourceCode) if str(code) not in words] == []
    assert not {code.name for code in NoticeCode} & {code.name for code in SourceCode}, "a manifest keeps names alone"
