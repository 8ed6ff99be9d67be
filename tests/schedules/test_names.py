"""Names as torch, papers and other people's files write them; torch's are those of ``get_schedule_class``."""

from __future__ import annotations

import ast

import pytest
from helpers.parsed import nodes

from tracetool.errors import UnknownName
from tracetool.model.schedule import OBSERVED
from tracetool.schedules import SCHEDULES
from tracetool.schedules.names import named_here, normalised, schedule_name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("1F1B", "1f1b"),
        ("Schedule1F1B", "1f1b"),
        ("ScheduleGPipe", "gpipe"),
        ("GPipe", "gpipe"),
        ("Interleaved1F1B", "interleaved"),
        ("ScheduleInterleaved1F1B", "interleaved"),
        ("interleaved_1f1b", "interleaved"),
        ("zbh1", "zb-h1"),
        ("ZB_H1", "zb-h1"),
        ("zero-bubble-h1", "zb-h1"),
        ("zbv", "zb-v"),
        ("ScheduleZBVZeroBubble", "zb-v"),
        ("csv:Any File.csv", "csv:Any File.csv"),
    ],
)
def test_names_of_schedules(written: str, name: str) -> None:
    assert schedule_name(written) == name


def test_every_registered_name_is_found_however_it_is_separated() -> None:
    names = SCHEDULES.names()
    assert len({normalised(name) for name in names}) == len(names)
    for name in names:
        for written in (name, name.upper(), name.replace("-", "_"), name.replace("-", ""), f"Schedule {name}"):
            assert schedule_name(written) == name


def test_an_alias_stands_for_one_schedule() -> None:
    taken = [normalised(word) for name in SCHEDULES.names() for word in (name, *SCHEDULES.get(name).aliases)]
    assert len(set(taken)) == len(taken)
    for name in SCHEDULES.names():
        assert {schedule_name(alias) for alias in SCHEDULES.get(name).aliases} <= {name}


@pytest.mark.parametrize("written", ["", "schedule", "no such thing", "1f1b1"])
def test_unknown_names(written: str) -> None:
    with pytest.raises(UnknownName):
        schedule_name(written)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("ScheduleZBVZeroBubble", "ScheduleZBVZeroBubble is zb-v here"),
        ("Schedule1F1B", "Schedule1F1B is 1f1b here"),
        ("vpp", "vpp is interleaved here"),
        ("ZB_H1", None),
        ("1F1B", None),
        ("csv:schedule.csv", None),
    ],
)
def test_who_uses_another_word_is_told_the_name(asked: str, told: str | None) -> None:
    assert named_here(asked) == told


def test_nothing_outside_the_library_spells_a_schedules_name() -> None:
    """What is asked of a schedule is a property of its kind; its name stands with it and in the registry alone."""
    names = frozenset(SCHEDULES.names())
    spelled = {
        (str(path), node.value)
        for path, every in nodes().items()
        if "schedules/library" not in str(path) and "studies" not in str(path)
        for node in every
        if isinstance(node, ast.Constant) and node.value in names
    }
    registry = {("schedules/__init__.py", name) for name in names}
    others = {("reports/schemas.py", "geopipe")}
    # What other frameworks call them, and of which shapes they exist, which orders alone would tell too late.
    torch = ("gpipe", "1f1b", "interleaved", "looped-bfs", "interleaved-zero-bubble", "zb-v", "dualpipev")
    others |= {("explore/launch.py", name) for name in torch}
    others |= {("explore/candidates.py", name) for name in ("looped-bfs", "interleaved-zero-bubble", "dualpipev")}
    roles = {name for name, value in spelled if value == OBSERVED and (name.startswith("reports/"))}
    assert spelled - {(name, OBSERVED) for name in roles} == registry | others | {("model/schedule.py", OBSERVED)}
