"""Settings of a project: options that files set, what goes ahead of them, and that no number changes unsaid."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from helpers.recorded import SAMPLES

from tracetool.cli import cli, run
from tracetool.cli.set_options import commands_with_settings, settable

SAMPLE = str(SAMPLES / "h100-1f1b")
LINKED = """\
[tool.tracetool]
dc = "0-1,2-3"
link = ["dc0-dc1=25Gbit/s,10ms"]
hbm = "80GiB"
schedule = ["1f1b", "gpipe"]

[tool.tracetool.explain]
schedule = "gpipe"

[tool.tracetool.paper.geopipe]
hbm = "32GB"
"""
TYPED = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--hbm", "80GiB", "--schedule", "1f1b,gpipe"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of settings, above the folder that commands run in."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (tmp_path / "pyproject.toml").write_text(LINKED, encoding="utf-8")
    return tmp_path / "pyproject.toml"


def _said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> tuple[str, str]:
    assert run([*arguments]) == code
    return capsys.readouterr()


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    out, err = _said(capsys, 0, "replay", SAMPLE, "--json", *arguments)
    return json.loads(out), err


def test_what_is_set_answers_as_what_is_typed_and_says_so(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    typed, said = _report(capsys, "--no-config", *TYPED)
    assert said == ""
    held, said = _report(capsys)
    assert said == f"note: as {project} says: {shlex.join(TYPED)} (--no-config ignores it)\n"
    assert held.pop("command") == shlex.join(["tracetool", "replay", SAMPLE, "--json", *TYPED])
    typed.pop("command")
    assert held == typed
    assert held["scenario"]["dcs"] == ["dc0", "dc0", "dc1", "dc1"]


def test_what_is_typed_wins_and_no_config_ignores_all(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    link = "dc0-dc1=100Gbit/s,1ms"
    found, said = _report(capsys, "--link", link, "--schedule", "1f1b")
    assert [one["latency_ns"] for one in found["scenario"]["links"]] == [1_000_000] * 2
    assert "--dc 0-1,2-3 --hbm 80GiB (" in said
    assert "25Gbit" not in said + found["command"]
    found, said = _report(capsys, "--no-config")
    assert (found["scenario"]["links"], said) == ([], "")


def test_the_nearest_file_holds_and_a_named_one_instead(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    nearer = project.parent / "a" / "tracetool.toml"
    nearer.write_text('hbm = "40GiB"\n', encoding="utf-8")
    found, said = _report(capsys)
    assert (found["scenario"]["hbm_bytes"], found["scenario"]["links"]) == (40 << 30, [])
    assert f"as {nearer} says: --hbm 40GiB (" in said
    found, said = _report(capsys, "--config", str(project))
    assert found["scenario"]["hbm_bytes"] == 80 << 30


def test_a_file_without_our_table_is_passed_by(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    (project.parent / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n", encoding="utf-8")
    assert _said(capsys, 0, "config")[0].count(str(project)) == 6


@pytest.mark.usefixtures("project")
def test_commands_that_take_one_schedule_or_a_papers_limit_have_tables_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [line.split() for line in _said(capsys, 0, "config", "explain")[0].splitlines()]
    assert next(row for row in rows if row[0] == "--schedule")[1] == "gpipe"
    rows = [line.split() for line in _said(capsys, 0, "config", "paper", "geopipe")[0].splitlines()]
    assert next(row for row in rows if row[0] == "--hbm")[1] == "32GB"
    assert "80GiB" not in _said(capsys, 0, "config", "baseline", "list")[0]


def test_config_in_json_says_what_its_columns_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    for words in ([], ["explain"]):
        table = [line.split("  ")[0] for line in _said(capsys, 0, "config", *words)[0].splitlines()]
        found = json.loads(_said(capsys, 0, "config", "--json", *words)[0])
        (head,) = {next(iter(row)) for row in found}
        names = [line.rstrip() for line in table[1:] if line and not line.startswith("Next: ")]
        assert [row[head] for row in found] == names
        assert any(str(project) in row["from"] for row in found)
    monkeypatch.chdir("/")
    assert json.loads(_said(capsys, 0, "config", "--json")[0]) == []


def test_config_says_of_every_option_where_it_is_from(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    out, err = _said(capsys, 0, "config", "sweep", "x.run", "--hbm", "64GiB", "--bandwidth", "10..40Gbit/s")
    assert err == ""
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines()}
    assert (rows["--hbm"], rows["--bandwidth"], rows["--jobs"]) == ("typed", "typed", "default")
    assert rows["--dc"] == f"{project}:2"
    assert rows["--link"] == "default", "swept links go ahead of set ones"
    assert f"{project}:3" in _said(capsys, 0, "config", "sweep")[0]
    assert "no command named 'swep'. Did you mean 'sweep'?" in _said(capsys, 2, "config", "swep")[1]
    project.unlink()
    assert _said(capsys, 0, "config")[0].startswith("no settings: ")


def test_stragglers_are_of_the_recording_whatever_is_set(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    out, said = _said(capsys, 0, "replay", SAMPLE, "--equalize", "--json")
    assert said == ""
    assert json.loads(out)["command"] == f"tracetool replay {SAMPLE} --equalize --json"
    assert "does not go with --hbm" in _said(capsys, 2, "replay", SAMPLE, "--equalize", "--hbm", "80GiB")[1]


def test_swept_links_go_ahead_of_set_ones(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    project.write_text(LINKED.replace('"1f1b", "gpipe"', '"1f1b"'), encoding="utf-8")
    words = ["sweep", SAMPLE, "--bandwidth", "50Gbit/s", "--latency", "2ms", "--no-knees", "--jobs", "1", "--json"]
    out, said = _said(capsys, 0, *words)
    (point,) = json.loads(out)["points"]
    assert (point["bandwidth_bytes_per_s"], point["latency_ns"]) == (6_250_000_000, 2_000_000)
    assert "--link" not in said


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ('hbm = "80"', "tracetool.toml:1: hbm: '80' has no unit; a size needs one."),
        ('# ours\nlink = "dc0=25Gbit/s"', "tracetool.toml:2: link: "),
        ('link = ["dc0-dc1=25Gbit/s,10ms", true]', "tracetool.toml:1: link is dc0-dc1=25Gbit/s,10ms as typed behind"),
        ('dc = "0-1,3"', "tracetool.toml:1: dc: "),
        ('schedule = "1f2b"', "tracetool.toml:1: schedule: no schedule named '1f2b'"),
        ("[replay]\neach-step = 1", "tracetool.toml:2: each-step is true or false, not 1."),
        ('static = ["1GiB", "2GiB"]', "tracetool.toml:1: static takes one value, not 2."),
        ("microbatches = 0", "Invalid value for '--microbatches': 0 is not in the range 1<=x<=65536"),
        ('hmb = "80GiB"', "no setting in tracetool.toml:1 named 'hmb'. Did you mean "),
        ('[replay]\nbandwidth = "1Gbit/s"', "no setting of replay in tracetool.toml:2 named 'bandwidth'"),
        (
            "[paper.geopip]\nbatch = 1",
            "no setting of paper in tracetool.toml:1 named 'geopip'. Did you mean 'geopipe'?",
        ),
        ("force = true", "no setting in tracetool.toml:1 named 'force'"),
        ("[replay", "tracetool.toml is no TOML"),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_file_line_and_key(
    setting: str, answer: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tracetool.toml").write_text(setting, encoding="utf-8")
    said = _said(capsys, 2, "replay", SAMPLE)[1]
    assert answer in said
    if "Invalid value" in answer:
        assert "Hint: it is set in tracetool.toml:1; --no-config ignores it" in said
    assert _said(capsys, 0, "replay", SAMPLE, "--no-config", "-q")[0]


def test_the_environment_goes_ahead_of_files_and_behind_what_is_typed(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACETOOL_HBM", "40GiB")
    monkeypatch.setenv("TRACETOOL_DC", "0,1-2,3")
    monkeypatch.setenv("TRACETOOL_LINK", "dc0-dc1=25Gbit/s,10ms dc1-dc2=50Gbit/s,10ms")
    monkeypatch.setenv("TRACETOOL_SCHEDULE", "gpipe")
    monkeypatch.setenv("TRACETOOL_REPLAY_SCHEDULE", "1f1b")
    held, said = _report(capsys)
    assert held["scenario"]["hbm_bytes"] == 40 << 30
    assert {one["bandwidth_bytes_per_s"] for one in held["scenario"]["links"]} == {3_125_000_000, 6_250_000_000}
    assert [one["schedule"] for one in held["results"]] == ["1f1b"]
    assert said.startswith("note: as $TRACETOOL_DC, $TRACETOOL_LINK, $TRACETOOL_HBM, $TRACETOOL_REPLAY_SCHEDULE says: ")
    assert _report(capsys, "--hbm", "60GiB")[0]["scenario"]["hbm_bytes"] == 60 << 30
    held, said = _report(capsys, "--no-config")
    assert (held["scenario"]["links"], said) == ([], "")
    shown = _said(capsys, 0, "config")[0]
    assert "$TRACETOOL_HBM" in next(line for line in shown.splitlines() if line.startswith("hbm "))
    assert "$TRACETOOL_REPLAY_SCHEDULE" in next(line for line in shown.splitlines() if line.startswith("replay.sch"))


@pytest.mark.parametrize(
    ("variable", "value", "answer"),
    [
        ("HMB", "80GiB", "no setting for $TRACETOOL_HMB named 'HMB'. Did you mean 'MBS' or 'HBM'?"),
        ("HBM", "80", "$TRACETOOL_HBM: hbm: '80' has no unit"),
        ("QUIET", "maybe", "$TRACETOOL_QUIET is true or false, not 'maybe'."),
        ("MICROBATCHES", "0", "Invalid value for '--microbatches': 0 is not in the range 1<=x<=65536"),
    ],
)
def test_variables_that_set_nothing_are_refused(
    variable: str, value: str, answer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TRACETOOL_{variable}", value)
    said = _said(capsys, 2, "replay", SAMPLE)[1]
    assert answer in said
    if "Invalid value" in answer:
        assert f"Hint: it is set in $TRACETOOL_{variable}; --no-config ignores it" in said
    assert _said(capsys, 0, "replay", SAMPLE, "--no-config", "-q")[0]


@pytest.mark.usefixtures("project")
def test_a_network_that_is_typed_goes_ahead_of_set_links(capsys: pytest.CaptureFixture[str]) -> None:
    tier = '[[tier]]\nname = "{}"\nsize = {}\nbandwidth = "25Gbit/s"\nlatency = "1ms"\n'
    Path("n.toml").write_text(tier.format("node", 2) + tier.format("wan", 4), encoding="utf-8")
    out, said = _said(capsys, 0, "replay", SAMPLE, "--schedule", "1f1b", "--network", "n.toml", "--json")
    assert "--hbm 80GiB (" in said
    assert "--dc" not in said + json.loads(out)["command"]


def test_files_that_are_set_lie_beside_the_settings(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    (project.parent / "map.csv").write_text("rank,dc\n0,a\n1,a\n2,b\n3,b\n", encoding="utf-8")
    project.write_text('[tool.tracetool]\ndc = "map.csv"\nlink = "a-b=25Gbit/s,10ms"\n', encoding="utf-8")
    assert _report(capsys)[0]["scenario"]["dcs"] == ["a", "a", "b", "b"]


def test_next_commands_ask_the_same_where_nothing_is_set(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    text = LINKED.replace("[tool.tracetool]", "[tool.tracetool.advise]").replace('"1f1b", "gpipe"', '"1f1b"')
    project.write_text(text, encoding="utf-8")
    following = _said(capsys, 0, "advise", SAMPLE)[0].splitlines()[-1]
    for words in ("--dc 0-1,2-3", "--link dc0-dc1=25Gbit/s,10ms", "--hbm 80GiB"):
        assert words in following
    following = _said(capsys, 0, "replay", SAMPLE, "--no-config")[0].splitlines()[-1]
    assert following == f"Next: tracetool replay {SAMPLE} --no-config -o gantt.png"
    following = _said(capsys, 0, "explain", SAMPLE, "--config", str(project))[0].splitlines()[-1]
    assert following == f"Next: tracetool replay {SAMPLE} --schedule gpipe --no-config -o gantt.png"


def test_the_schema_takes_what_a_file_may_set_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(_said(capsys, 0, "config", "--schema")[0])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(
        {"dc": "0-1,2-3", "link": ["dc0-dc1=25Gbit/s,10ms"], "fail-on": ["step_ns>+2%"], "informational": True,
         "sweep": {"jobs": 2}, "paper": {"geopipe": {"hbm": "32GB"}}}
    )  # fmt: skip
    validator.validate({"network": "n.toml", "baseline": "1f1b"})
    validator.validate({"network": {"radix": 64}, "baseline": {"show": {"last": 5}}})
    for wrong in ({"hmb": "1GiB"}, {"each-step": 1}, {"replay": {"jobs": 2}}, {"force": True}):
        assert not validator.is_valid(wrong)


def test_every_command_that_reads_settings_can_be_told_not_to() -> None:
    commands = commands_with_settings(cli)
    assert {name.split()[0] for name in commands} == set(cli.commands) - {"config", "completion", "help"}
    for command in commands.values():
        assert {"--config", "--no-config"} <= {flag for option in command.params for flag in option.opts}
        assert not {"force", "json", "output", "config"} & settable(command).keys()
        assert isinstance(command, click.Command)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_what_a_shell_reads(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What bash is installed is not looked at.
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", lambda *_: None)
    printed = _said(capsys, 0, "completion", shell)[0]
    assert f"_TRACETOOL_COMPLETE={shell}_complete" in printed


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], {"replay", "report"}),
        (["config", "s"], {"sweep", "sql", "schedules"}),
        (["help", "li"], {"links"}),
        (["replay", "x.run", "--schedule", "1f1b,geo"], {"1f1b,geopipe"}),
        (["schedules", "hana"], {"hanayo"}),
        (["replay", "x.run", "--dc", "0,1-2,3", "--link", "dc1"], {"dc1-dc2="}),
        (["sweep", "x.run", "--dc", "0-1,2-3", "--dc", "a=x*,b=y*", "--link", "a"], {"a-b=", "a-dc0=", "a-dc1="}),
        (["replay", "x.ru"], {"x.ru"}),
    ],
)
def test_names_are_completed(
    words: list[str], offered: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TRACETOOL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", shlex.join(["tracetool", *words[:-1]]) + f" {words[-1]}")
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    lines = _said(capsys, 0)[0].splitlines()
    assert {line.partition(",")[2] for line in lines} == offered
    assert ("file,x.ru" in lines) == (words == ["replay", "x.ru"])


def test_data_centres_that_are_set_are_completed(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TRACETOOL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tracetool replay x.run --link d")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert _said(capsys, 0)[0] == "plain,dc0-dc1=\n"
