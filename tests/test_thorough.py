"""What the default run takes of a matrix: by hand."""

from __future__ import annotations

import pytest
from helpers.thorough import ASKED, some, spread


def _taken(mark: pytest.MarkDecorator) -> list[object]:
    names, cases = mark.args
    assert names in ("n", ("n", "m"))
    return [case for case in cases if not isinstance(case, type(pytest.param()))]


def test_ends_and_a_middle_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASKED, raising=False)
    assert some(range(11), 3) == [0, 5, 10]
    assert some("abcd", 1) == ["a"]
    assert some("abcd", 9) == ["a", "b", "c", "d"]
    assert _taken(spread("n", range(11), 3)) == [0, 5, 10]
    assert _taken(spread("n", "abcd", "bd")) == ["b", "d"]


def test_the_others_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked and not dropped, with their own name and marks; a tuple is one value or several."""
    monkeypatch.delenv(ASKED, raising=False)
    named = pytest.param(3, 4, id="three", marks=pytest.mark.large)
    (_, cases) = spread(("n", "m"), [(1, 2), named], [(1, 2)]).args
    assert cases[0] == (1, 2)
    assert (cases[1].values, cases[1].id) == ((3, 4), "three")
    assert [mark.name for mark in cases[1].marks] == ["large", "thorough"]
    (_, cases) = spread("n", [(1, 2), (3, 4)], 1).args
    assert cases[1].values == ((3, 4),)


def test_a_thorough_run_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "1")
    assert some(range(11), 3) == list(range(11))
    assert _taken(spread("n", range(11), 3)) == list(range(11))


@pytest.mark.parametrize("default", [["e"], [], 0])
def test_a_spread_takes_some_of_its_cases(default: int | list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASKED, raising=False)
    with pytest.raises(ValueError, match=r"not among the cases: .*e|no case is left"):
        spread("n", "abcd", default)
