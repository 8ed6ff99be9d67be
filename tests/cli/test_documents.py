"""README and the topics of help: their command lines parse and run, and what they show is what is printed."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest
from helpers.documented import DOCUMENTS, DRAWN, PICTURE, README, commands, inline_code, shown, text_of
from helpers.recorded import ROOT, SAMPLES
from helpers.thorough import spread

from tracetool.cli import cli, run
from tracetool.cli.help import TOPICS, topic_text, topics
from tracetool.store.query import view_docs
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from pathlib import Path

NAMED = {shlex.join(found): found for document in DOCUMENTS for found in commands(text_of(document))}
ON_SAMPLES = [line for line, found in NAMED.items() if any("sample_traces" in word for word in found)]
SHOWN = {shlex.join(found): output for document in DOCUMENTS for found, output in shown(text_of(document))}


@pytest.fixture
def _beside_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder as a user's, with the samples in it."""
    (tmp_path / "sample_traces").symlink_to(SAMPLES)
    (tmp_path / ".github" / "tracetool").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def test_readme_is_short() -> None:
    assert len(text_of(README).split()) < 1200


def test_what_readme_shows_is_under_test() -> None:
    assert [line.split()[0] for line in SHOWN] == ["advise"]
    assert set(SHOWN) <= set(ON_SAMPLES)
    assert len(ON_SAMPLES) >= 6


@pytest.mark.parametrize("line", NAMED)
def test_command_lines_parse(line: str) -> None:
    """A command named alone exists; one with arguments is read as it would be when it runs."""
    name, *arguments = NAMED[line]
    if any(argument.startswith("s3://") for argument in arguments):
        pytest.importorskip("s3fs")
    if name.startswith("--"):
        assert cli.make_context("tracetool", [name], resilient_parsing=True).command is cli
        return
    command, above = cli.commands[name], click.Context(cli, info_name="tracetool")
    while isinstance(command, click.Group) and arguments:
        above = click.Context(command, parent=above, info_name=name)
        name, *arguments = arguments
        command = command.commands[name]
    if arguments and not isinstance(command, click.Group) and arguments != ["--help"]:
        command.make_context(name, list(arguments), parent=above)


@pytest.mark.parametrize("line", [line for line, found in NAMED.items() if found[0] == "help"])
def test_help_in_documents_is_there(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NAMED[line]) == 0
    assert capsys.readouterr().out.startswith("Topics that speak of it:") == (NAMED[line] == ["help", "knee"])


@pytest.mark.usefixtures("_beside_samples")
# Of the others nothing is shown; that they are read as they stand is tried below, and such commands run in test_next.
@spread("line", ON_SAMPLES, list(SHOWN))
def test_command_lines_over_samples_run_and_print_what_is_shown(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NAMED[line]) == 0
    printed = capsys.readouterr().out
    assert printed
    assert printed == SHOWN.get(line, printed), "run in tests: python -m helpers.documented"


def _options(command: click.Command) -> set[str]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
    return own.union(*map(_options, below))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_options_in_documents_exist(document: Path) -> None:
    others = ("pip ", "msprof ", "nsys ")
    named = {
        word.partition("=")[0]
        for code in inline_code(text_of(document))
        if not code.startswith(others)
        for word in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)
    }
    assert named <= _options(cli) | {"--help"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(document)):
        assert (document.parent / target).is_file(), target


def test_readme_names_every_topic() -> None:
    assert set(re.findall(r"\(tracetool/help/([\w-]+)\.md\)", text_of(README))) == set(topics())


def test_every_topic_says_in_its_first_line_what_it_is_about_and_fits_a_terminal() -> None:
    for name, about in topics().items():
        lines = (TOPICS / f"{name}.md").read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {name}: {about}"
        assert about
        assert len(f"  {name:12}{about}") <= 80
        prose = re.sub(r"^```.*?^```$", "", "\n".join(lines), flags=re.MULTILINE | re.DOTALL).splitlines()
        wrapped = [line for line in prose if not line.startswith(("|", "- `tracetool", "  `tracetool"))]
        assert max(map(len, wrapped)) <= 80, name


def test_tables_and_views_that_the_topics_name_are_there() -> None:
    known = {*TABLES, *view_docs()}
    views = re.findall(r"^- ((?:`\w+`(?:, )?)+):", topic_text("sql"), re.MULTILINE)
    assert {name for listed in views for name in re.findall(r"\w+", listed)} == set(view_docs())
    in_findings = re.findall(r"[Tt]ables?\s+((?:`\w+`(?:,\s+|\s+and\s+)?)+)", topic_text("findings"))
    assert {name for listed in in_findings for name in re.findall(r"`(\w+)`", listed)} <= known


def test_nobody_is_sent_to_the_public_index() -> None:
    """Its package of this name is another project's."""
    product = list((ROOT / "tracetool").rglob("*.py"))
    for path in (*DOCUMENTS, *product, ROOT / "tests" / "README.md", *(ROOT / ".github").rglob("*.yml")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip3? install(\s+-\S+)*\s+['\"]?tracetool", text), path
        assert not re.search(r"uv(x| tool| pip)[^\n]*\stracetool\b", text), path


@pytest.mark.usefixtures("_beside_samples")
def test_the_picture_is_small_and_its_caption_has_the_tools_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size < 150_000
    (caption,) = re.findall(r"!\[([^]]*)\]\(sample_traces/gantt\.png\)", text_of(README))
    assert run([*DRAWN, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    steps = [result["step_ns"] for result in (report["baseline"], *report["results"])]
    assert re.findall(r"([\d.]+) ms", caption) == [f"{step / 1e6:.1f}" for step in steps]
