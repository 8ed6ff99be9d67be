"""What commands say to do next, and what they say when something does not fit: it must work as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import TYPE_CHECKING

import click
import pytest
from helpers.made_job import MadeJob
from helpers.recorded import ROOT, SAMPLES, data, made
from helpers.thorough import spread

from tracetool.cli import cli, run
from tracetool.reports.lines import wrapped

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

SAMPLE = str(SAMPLES / "h100-1f1b")
LEVEL2 = ("ascend", "Ascend+msinsight", "test", "st", "level2")


def _next(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(list(arguments)) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Next: tracetool ")
    return shlex.split(line)[2:]


def test_the_map_of_data_centres_is_kept_in_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    following = _next(capsys, "info", SAMPLE, "--dc", "0-1,2-3")
    assert following[following.index("--dc") + 1] == "0-1,2-3"
    assert run([*following, "-v"]) == 0
    assert "cross-DC" in capsys.readouterr().out


def test_copying_is_kept_in_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor parallel 2, pipeline 2, without rank 0: its pipeline can be replayed with a copy of rank 1."""
    part = made(MadeJob(pp=2, tp=2, microbatches=4, layers=1), ranks=(1, 2, 3))
    following = _next(capsys, "info", str(part.path))
    assert "--copy-missing-ranks" in following
    assert run(following) == 0
    assert "copied from" in capsys.readouterr().out


# Of two pipelines both lack the stage: where one would do for the other, the case below has it.
@spread(("pp", "tp", "recorded"), [(4, 1, (0, 1, 3)), (2, 2, (0, 1))], 1)
def test_copying_is_not_offered_where_no_rank_of_the_stage_was_recorded(
    capsys: pytest.CaptureFixture[str], pp: int, tp: int, recorded: tuple[int, ...]
) -> None:
    """One pipeline without its third stage; two pipelines, both without their second one."""
    part = str(made(MadeJob(pp=pp, tp=tp, microbatches=2, layers=1), ranks=recorded).path)
    assert run(["info", part, "-v"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--copy-missing-ranks" not in told
    assert "name the traces of the missing ranks, too: no other rank of the same stage as rank 2 was recorded" in told
    assert run(_next(capsys, "info", part)) == 0
    assert run(["replay", part]) == 2
    assert "--copy-missing-ranks" not in capsys.readouterr().err


# The pipeline that lacks a rank is the second here, and the first in the case above: the hint alone differs.
@pytest.mark.thorough
def test_ranks_of_another_pipeline_than_the_first_can_be_copied_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without rank 3, the first pipeline (0, 2) is whole, and the second one (1, 3) can have a copy of rank 2."""
    for rank in (0, 1, 2):
        (tmp_path / f"rank{rank}.json.gz").symlink_to(
            data("h100-pp4", "traces", "tp2pp2_1f1b_m8", f"rank{rank}.json.gz")
        )
    assert run(["info", str(tmp_path), "-v"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "rank 3 was not recorded (add their traces, or copy them in a replay: --copy-missing-ranks)" in told
    assert run(["replay", str(tmp_path), "--pipeline", "1", "--copy-missing-ranks", "-v"]) == 0
    assert "rank 3 from 2" in " ".join(capsys.readouterr().out.split())


def test_a_step_that_does_not_exist_gets_one_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", SAMPLE, "--step", "99"]) == 2
    hint = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("Hint: --step "))
    assert run(["replay", SAMPLE, "--step", hint.removeprefix("Hint: --step ").split(",")[0]]) == 0


def test_what_cannot_be_split_is_named_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(SAMPLES / "ascend-1f1b"), "--schedule", "zb-h1"]) == 2
    told = re.search(r"(\d)I0 costs \(the gradient of the input of stage (\d), microbatch 0\)", capsys.readouterr().err)
    assert told is not None
    assert told[1] == told[2]


# That such ranks are told of is tried by default of the reader (tests/readers/test_ascend): here, in hints of commands.
@pytest.mark.thorough
def test_ranks_with_files_but_no_kernels_are_not_copied_and_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(data(*LEVEL2)), "--pipeline", "1", "--copy-missing-ranks"]) == 2
    told = capsys.readouterr().err
    assert "no kernels on ranks 1, 3" in told
    assert "a rank with any file of its own is not copied" in told
    assert run(["info", str(data(*LEVEL2))]) == 0
    told = capsys.readouterr().out
    assert "missing for what these ranks do" in told
    assert "missing for stages" not in told, "they are known, and replay works"


def test_a_vendors_analysis_alone_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    figures = data("ascend", "Ascend+msinsight", "server", "src", "test", "test_data", "cluster_analysis_output")
    assert run(["replay", str(figures)]) == 2
    assert "name the folders of the traces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("trunc", r"Hint: 1 record lost in reading, as the file ends inside an event \(.*r0\.json\): record or copy"),
        ("ok", "Hint: one rank is all that was recorded or named: name the traces of all ranks of the pipeline"),
    ],
)
def test_a_recording_without_messages_says_what_it_lacks(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither lacks a newer torch: one ends inside a record, the other is one rank of a job without pipeline."""
    assert run(["advise", str(data("broken", name)), "--dc", "0,1", "--link", "dc0-dc1=25Gbit/s,10ms"]) == 2
    told = capsys.readouterr().err
    assert re.search(why, told)
    assert "torch" not in told


def test_an_empty_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    alone = str(data("broken", "ok"))
    assert run(["sql", alone, "select * from costs"]) == 0
    assert "note: costs: empty, for no pipeline could be reconstructed" in capsys.readouterr().err
    assert run(["sql", alone, "select * from events where rank = 99"]) == 0
    assert not capsys.readouterr().err


def test_many_traces_of_one_rank_are_one_conflict_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ingest", str(data("broken")), "--dry-run"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("conflict:") for line in lines) == 2
    assert any(line.endswith("6 more all say rank 0.") for line in lines)
    assert any(line.startswith("hint: these are several recordings: name one folder, as") for line in lines)


@pytest.mark.parametrize(
    ("verb", "option", "verbs"),
    [
        ("replay", "--bandwidth", "tracetool sweep, tracetool overlap"),
        ("replay", "--or", "tracetool report, tracetool advise, tracetool explore"),
        ("advise", "--fail-on", "tracetool compare"),
        ("replay", "--nothing-has-it", ""),
    ],
)
def test_an_option_of_another_verb_names_that_verb(
    verb: str, option: str, verbs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, SAMPLE, option, "1"]) == 2
    told = capsys.readouterr().err
    assert (f"Hint: {option} is an option of {verbs}\n" in told) == bool(verbs)
    assert ("is an option of" in told) == bool(verbs)


def test_several_recordings_in_one_folder_are_named_to_choose_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, sample in (("monday run", "h100-1f1b"), ("tuesday", "h100-1f1b-annotated")):
        shutil.copytree(SAMPLES / sample, tmp_path / name)
    assert run(["replay", str(tmp_path)]) == 2
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Hint: ")]
    folders = shlex.split(hint.rpartition(" as ")[2].replace(",", ""))
    assert [folder.rpartition("/")[2] for folder in folders] == ["monday run", "tuesday"]
    assert run(["replay", folders[0]]) == 0


# Wider ones differ in where lines are broken.
@spread("columns", [50, 80, 132], 1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["info", SAMPLE, "-v"],
        ["replay", SAMPLE, "-v"],
        ["sql", SAMPLE],
        ["info", str(ROOT / "tests" / "data" / "snapshot"), "-v"],
    ],
    ids=["info", "replay", "sql", "snapshot"],
)
def test_output_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], columns: int
) -> None:
    """The table of results has fixed columns, and a command to run stays in one piece."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    prose = [line for line in lines if not line.startswith("Next:") and "  " not in line.strip()]
    assert max(map(len, prose)) <= columns
    assert max(map(len, prose)) > columns - 16


def test_long_paths_are_broken_behind_a_slash_and_lose_nothing() -> None:
    path = "/" + "/".join(f"folder-number-{n}" for n in range(12))
    lines = wrapped([f"  left: {path}: nothing needs it"], 60)
    assert max(map(len, lines)) <= 60
    assert "".join(line.strip() for line in lines).replace("left:", "left: ").startswith(f"left: {path}:")
    assert any(line.endswith("/") for line in lines)


def test_help_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ([], *([name] for name in cli.commands)):
        assert run([*command, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_errors_are_broken_on_a_terminal_only_and_grids_never(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = tmp_path / "order.csv"
    order.write_text("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    asked = ["replay", SAMPLE, "--schedule", f"csv:{order}"]
    assert run(asked) == 2
    plain = capsys.readouterr().err
    assert max(map(len, plain.splitlines())) > 60
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(asked) == 2
    broken = click.unstyle(capsys.readouterr().err)
    assert max(map(len, broken.splitlines())) <= 60
    assert "".join(broken.split()) == "".join(plain.split())
    grid = [line for line in plain.splitlines() if line.startswith(" ")]
    assert len(grid) == 3
    assert [line for line in broken.splitlines() if line in grid] == grid


def test_rows_wider_than_the_terminal_stand_one_below_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["sql", SAMPLE, "select 'a' as name, repeat('xy ', 40) as long, null as nothing from range(2)"]
    assert run(asked) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4  # not a terminal: a line each, whatever the width
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row")] == ["row 1", "row 2"]
    assert "  nothing  null" in lines
    assert "".join(lines).count("xy") == 80
    assert run(["sql", SAMPLE, "select rank from ranks"]) == 0
    assert capsys.readouterr().out.startswith("| rank |")


def _added(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What the hint of a refused command says to add to it."""
    assert run(list(arguments)) == 2
    hint = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("Hint: add "))
    return shlex.split(hint.removeprefix("Hint: add ").split(";")[0])


@pytest.mark.parametrize(
    "words",
    [
        ["--dc", "0-1,2-3"],
        ["--dc", "0-1,2-3", "--link", "dc0->dc1=25Gbit/s,10ms"],
        ["--dc", "0,1-2,3"],
        ["--dc", "0,1-2,3", "--link", "dc1->dc0=25Gbit/s,10ms"],
    ],
)
# All three ask one function for the hint.
@spread("command", ["replay", "explain", "advise"], ["replay"])
def test_links_that_are_missing_are_all_in_the_hint(
    capsys: pytest.CaptureFixture[str], command: str, words: list[str]
) -> None:
    asked = [command, SAMPLE, "--schedule", "1f1b", *words]
    assert run([*asked, *_added(capsys, *asked)]) == 0


# Pipelines of other lengths are tried as values (tests/api/test_hints).
@spread("name", ["h100-1f1b", "ascend-1f1b"], ["ascend-1f1b"])
def test_advice_without_links_names_some_that_fit(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Pipelines of four and of two ranks."""
    asked = ["advise", str(SAMPLES / name), "--schedule", "1f1b"]
    assert run([*asked, *_added(capsys, *asked)]) == 0


def test_advice_inside_one_data_centre_names_what_compares_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", SAMPLE]) == 2
    (command,) = re.findall(r"inside one data centre, 'tracetool (.+)' compares", capsys.readouterr().err)
    assert run([SAMPLE if word == "TRACES" else word for word in shlex.split(command)]) == 0


def test_commands_are_named_in_hints_of_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["sql", SAMPLE, "SELECT * FROM nothing"]) == 2
    (command,) = re.findall(r"'tracetool (sql RUN)' lists tables", capsys.readouterr().err)
    assert run([SAMPLE if word == "RUN" else word for word in shlex.split(command)]) == 0
    assert run(["schedules", "geopip"]) == 2
    (command,) = re.findall(r"'tracetool (\w+)' lists all", capsys.readouterr().err)
    assert run([command]) == 0


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["replay", str(SAMPLES / "h100-1f1")], f"is {SAMPLES / 'h100-1f1b'} meant?"),
        (["replay", "nowhere/at-all"], "name trace files, folders of them, or a Run (.run)"),
        (["estimate", "nosuch.toml"], "schemas/models has an example"),
        (["estimate", SAMPLE], f"of traces, tracetool replay {SAMPLE} tells"),
        (["replay", SAMPLE, "--dc", "0-1,2-3", "--link", "dc1-dc2=25Gbit/s,10ms"], "as in --link dc0-dc1="),
        (["replay", SAMPLE, "--dc", "0-3", "--link", "dc0-dc1=25Gbit/s,10ms"], "part them, as in --dc 0-1,2-3"),
        (["replay", SAMPLE, "--dc", "dc0=0-1,dc1=2-3", "--link", "dc0-dc1=25Gbit/s,10ms"], "dc1 ...: --dc 0-1,2-3"),
        (
            ["replay", SAMPLE, "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms=9EUR/month"],
            "tracetool advise, tracetool report and tracetool.decide take prices",
        ),
    ],
)
def test_what_is_refused_comes_with_what_to_do(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert hint in next(line for line in told.splitlines() if line.startswith("Hint: "))
    assert "Errno" not in told


def test_a_share_without_its_unit_is_told_of_in_the_words_of_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (ROOT / "schemas" / "models" / "korthikanti.toml").read_text(encoding="utf-8")
    named = tmp_path / "model.toml"
    named.write_text(text.replace("[device]\n", "[device]\nefficiency = 0.78\n"), encoding="utf-8")
    assert run(["estimate", str(named)]) == 2
    told = capsys.readouterr().err
    assert "device.efficiency: float stands where text in quotes is expected" in told
    assert "null" not in told
