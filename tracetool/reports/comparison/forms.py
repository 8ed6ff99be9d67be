"""The forms that a comparison is written in, by name and suffix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import UnknownName
from tracetool.reports.comparison.ci import render_benchmarks, render_github, render_junit
from tracetool.reports.comparison.json import render_json
from tracetool.reports.comparison.text import render_markdown, render_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.comparison import Comparison
    from tracetool.reports.comparison.json import ComparisonFacts


@dataclass(frozen=True, slots=True)
class Form:
    """A form.

    Attributes:
        name: Its name.
        suffixes: Files it is written to without being named.
        render: Makes it, given the greatest size of Markdown.
    """

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Comparison, ComparisonFacts, int], bytes]


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("text", (".txt",), lambda done, facts, _: render_text(done, facts)),
        Form("markdown", (".md",), render_markdown),
        Form("json", (".json",), lambda done, facts, _: render_json(done, facts)),
        Form("junit", (".xml",), lambda done, facts, _: render_junit(done, facts)),
        Form("github", (), lambda done, _facts, _: render_github(done)),
        Form("benchmark-action", (), lambda done, _facts, _: render_benchmarks(done)),
    )
}


def form_named(name: str) -> Form:
    """The form of a name.

    Raises:
        UnknownName: If there is none.
    """
    if name not in FORMS:
        raise UnknownName("form", name, FORMS)
    return FORMS[name]


def form_of_suffix(suffix: str) -> Form | None:
    """The form that files of a suffix get, or None."""
    return next((form for form in FORMS.values() if suffix.lower() in form.suffixes), None)
