"""``tracetool help``: topics, commands, and names that are neither."""

from __future__ import annotations

import re

import click
import pytest
from helpers.thorough import spread

from tracetool.cli import cli, run
from tracetool.cli.help import TOPICS, topic_text, topics


def _printed(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    assert run(["help", *names]) == 0
    return capsys.readouterr().out


def test_without_a_name_it_lists_every_topic_and_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = _printed(capsys)
    about, below = listed.split("Commands:")
    assert dict(re.findall(r"^  (\S+) +(.+)$", about, re.MULTILINE)) == topics()
    assert re.findall(r"^  (\S+) ", below, re.MULTILINE) == list(cli.commands)
    assert max(map(len, listed.splitlines())) <= 80


def test_topics_asked_for_are_there() -> None:
    asked = {"metrics", "traces", "accuracy", "comparing", "ci", "sql", "links", "recording"}
    assert asked <= set(topics()) == {path.stem for path in TOPICS.iterdir()}


@pytest.mark.parametrize("name", topics())
def test_a_topic_prints_as_it_stands_where_it_is_piped(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = _printed(capsys, name)
    assert printed == topic_text(name)
    assert ".md)" not in printed
    assert _printed(capsys, name.upper()) == printed


# In a wider one lines are as long as those of a page.
@spread("width", [60, 200], 1)
@pytest.mark.parametrize("name", topics())
def test_a_topic_is_wrapped_to_the_terminal(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    printed = click.unstyle(_printed(capsys, name))
    assert max(map(len, printed.splitlines())) <= min(width, 100)
    assert topics()[name].replace("`", "").split() == printed.split("\n\n")[0].split()[1:]
    assert "**" not in printed
    assert "```" not in printed


def test_links_to_other_topics_are_the_commands_that_print_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[memory](memory.md)" in (TOPICS / "metrics.md").read_text(encoding="utf-8")
    assert "`tracetool help memory`" in _printed(capsys, "metrics")


@pytest.mark.parametrize("names", [["replay"], ["baseline"], ["baseline", "show"], ["help"]])
def test_a_command_prints_its_own_help(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = _printed(capsys, *names)
    assert run([*names, "--help"]) == 0
    assert told == capsys.readouterr().out


def test_an_unknown_name_gets_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for name in ("metrix", "replai", "xyzzy", "baseline shw"):
        assert run(["help", *name.split()]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        said[name] = captured.err
    assert "no topic or command named 'metrix'. Did you mean 'metrics'?" in said["metrix"]
    assert "Did you mean 'replay'" in said["replai"]
    assert said["xyzzy"].endswith("Hint: 'tracetool help' lists topics and commands\n")
    assert "no topic or command named 'baseline shw'" in said["baseline shw"]


@pytest.mark.parametrize(("words", "first"), [("knee", "sweeps"), ("HBM", "metrics"), ("extra forwards", "schedules")])
def test_a_word_finds_the_topics_that_speak_of_it_the_most_first(
    words: str, first: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = _printed(capsys, *words.split())
    names = re.findall(r"^  (\w+)  ", printed, re.MULTILINE)
    speaking = {name for name in topics() if all(word in topic_text(name).lower() for word in words.lower().split())}
    assert set(names) == speaking
    assert names[0] == first
    assert max(map(len, printed.splitlines())) <= 80
