"""That the comparison of two trees' answers sees a difference, and only that; it is not run as a whole here."""

from __future__ import annotations

from pathlib import Path

import pytest
from answer_changes import Difference, changes
from same_answers import COMMANDS, Result, Tree, compared, parse, with_needs, without_absent

BEFORE = '{"step_ns": 10, "results": [{"bubble_ratio": 0.5, "step_ns/gpipe": 1}], "hint": null}'


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"step_ns": 10', '"step_ns": 11', ("/step_ns", "10", "11")),
        ('"step_ns": 10', '"step_ns": 10.0', ("/step_ns", "10", "10.0")),
        ("0.5", "0.50000000000000011", ("/results/0/bubble_ratio", "0.5", "0.5000000000000001")),
        ('"step_ns/gpipe": 1', '"step_ns/gpipe": true', ("/results/0/step_ns~1gpipe", "1", "true")),
        ('"hint": null', '"hint": null, "code": 3', ("/code", "absent", "3")),
        (', "hint": null', "", ("/hint", "null", "absent")),
        ("}]", "}, {}]", ("/results", "1 items", "2 items")),
        ('"step_ns": 10, "results"', '"step_ns": 10,  "results"', ("", "the same values, in other bytes", "")),
    ],
)
def test_every_kind_of_change_is_named_with_its_place(old: str, new: str, place: tuple[str, str, str]) -> None:
    assert old in BEFORE
    assert changes(BEFORE, BEFORE.replace(old, new)) == [Difference(*place)]


def test_the_order_of_keys_is_part_of_an_answer() -> None:
    assert [d.pointer for d in changes('{"a": {"b": 1, "c": 2}}', '{"a": {"c": 2, "b": 1}}')] == ["/a"]
    assert [d.pointer for d in changes('{"a": 1, "b": 2}', '{"c": 3, "b": 2, "a": 1}')] == ["", "/c"]


def test_what_is_no_json_is_compared_by_lines() -> None:
    assert changes("F0\nB0\n", "F0\nB1\n") == [Difference("/1", '"B0"', '"B1"')]
    assert changes("F0\n", "F0") != []


def test_only_the_fields_that_are_named_may_differ() -> None:
    after = BEFORE.replace("0.5", "0.6").replace("10", "12")
    assert [d.pointer for d in changes(BEFORE, after, ["/results/*/bubble_ratio"])] == ["/step_ns"]
    assert [d.pointer for d in changes(BEFORE, after, ["/*", "/*/bubble_ratio"])] == ["/results/0/bubble_ratio"]


def test_paths_of_the_tree_are_masked_and_nothing_else() -> None:
    here, there = (Tree(Path(f"/trees/{name}"), Path(f"/work/{name}")) for name in ("a", "other"))
    line = "{0.root}/sample_traces {0.work}/x.run {1}"
    assert here.masked(line.format(here, 1)) == there.masked(line.format(there, 1))
    assert here.masked(line.format(here, 1)) != there.masked(line.format(there, 2))


def test_exit_codes_and_files_of_data_are_answers_and_text_is_a_warning() -> None:
    command = parse("replay h100.run -o base.json")[0]
    result = Result(0, BEFORE, "10 ns", {"base.json": BEFORE, "page.html": "10 ns"})
    assert compared(command, result, result) == ([], [])
    answers, texts = compared(command, result, Result(1, BEFORE, "11 ns", result.files))
    assert (answers, texts) == ([Difference("exit code", "0", "1")], [Difference("/0", '"10 ns"', '"11 ns"')])
    answers, texts = compared(command, result, Result(0, BEFORE, "10 ns", {"base.json": "{}", "page.html": "11 ns"}))
    assert {d.pointer for d in answers} == {"base.json /step_ns", "base.json /results", "base.json /hint"}
    assert [d.pointer for d in texts] == ["page.html /0"]


def test_commands_come_with_those_whose_files_they_need() -> None:
    lines = "ingest data/a -o a.run\ningest data/b -o b.run\nschedules gpipe --csv > g.csv  # kept\n"
    commands = parse(lines + "replay a.run --schedule csv:g.csv\nsql a.run,b.run")
    assert with_needs(commands[3:4], commands) == [commands[0], commands[2], commands[3]]
    assert with_needs(commands[4:], commands) == [commands[0], commands[1], commands[4]]


def test_commands_without_their_traces_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    commands = parse("ingest data/a -o a.run\ningest data/b -o b.run\ninfo a.run\nsql a.run,b.run")
    assert without_absent(commands, tmp_path) == [commands[0], commands[2]]


def test_the_list_asks_every_command() -> None:
    verbs = {"ingest", "info", "replay", "sweep", "advise", "explain", "validate", "compare", "report", "sql"}
    assert {command.words[0] for command in parse(COMMANDS)} == verbs | {"schedules", "baseline", "paper"}
