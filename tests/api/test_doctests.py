"""What the documentation of the Python API says is what happens: the package's tutorial and an example per verb."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from typing import Any

import pytest
from helpers.recorded import SAMPLES

import tracetool as tt
from tracetool.cli.help import topic_text

_HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
VERBS = [name for name in tt.__all__ if inspect.isfunction(getattr(tt, name))]
NOUNS = [name for name in tt.__all__ if inspect.isclass(getattr(tt, name))]


def _failures(examples: doctest.DocTest) -> str:
    told: list[str] = []
    doctest.DocTestRunner(optionflags=_HOW).run(examples, out=told.append, clear_globs=False)
    return "".join(told)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder as a user's, with the sample in it."""
    place = tmp_path_factory.mktemp("doctests")
    (place / "sample_traces").symlink_to(SAMPLES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield place


@pytest.fixture(scope="module")
def tutorial(coarse_knees: None) -> tuple[dict[str, Any], str]:
    """The names that the tutorial leaves behind, which examples go on with; and what failed in it."""
    text = doctest.DocTestParser().get_doctest(tt.__doc__ or "", {}, "tracetool", None, 0)
    failures = _failures(text)
    return text.globs, failures


def test_the_tutorial_runs(tutorial: tuple[dict[str, Any], str]) -> None:
    assert tutorial[1] == ""


@pytest.mark.parametrize("name", [*VERBS, *NOUNS])
def test_examples_run(name: str, tutorial: tuple[dict[str, Any], str]) -> None:
    """Each verb has one; they use run, found, scenario and answer of the tutorial."""
    documented = getattr(tt, name)
    found = doctest.DocTestFinder().find(documented, name, globs=tutorial[0])
    examples = [each for each in found if each.examples]
    assert examples or name in NOUNS
    assert "".join(map(_failures, examples)) == ""


BLOCKS = re.findall(r"```pycon\n(.*?)```", topic_text("python"), re.DOTALL)
"""What ``tracetool help python`` prints to be typed."""


def test_what_the_topic_names_is_there() -> None:
    typed = [example.source for text in BLOCKS for example in doctest.DocTestParser().get_examples(text)]
    assert len(typed) >= 5
    named = {
        node.attr
        for source in typed
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tt"
    }
    assert len(named) >= 5
    assert named <= {*tt.__all__}


# The tutorial runs by default, and has the same verbs.
@pytest.mark.thorough
def test_the_topic_runs(tutorial: tuple[dict[str, Any], str]) -> None:
    """With the Run of the tutorial there already."""
    text = doctest.DocTestParser().get_doctest("\n".join(BLOCKS), {}, "topic", None, 0)
    assert _failures(text) == ""
