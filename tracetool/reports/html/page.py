"""The report as one HTML file: the answer first, then what it rests on; no network, and no scripts needed.

jinja2 is imported where it renders, so that importing this module stays cheap.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING

from tracetool.reports import Report, RunFacts
from tracetool.reports.answer.verdict import verdict
from tracetool.reports.html.advice import advised, advised_result
from tracetool.reports.html.idle import cause_styles, idle_view
from tracetool.reports.html.pictures import pictures
from tracetool.reports.html.recording import recording
from tracetool.reports.html.tables import comparison, details, fidelity, scenario, stages
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from typing import Any

    from tracetool.advice import Advice
    from tracetool.reports.html.idle import IdlesOf
    from tracetool.whatif.results import Answer

MOST_BYTES = 1_000_000
"""A page is smaller: it is mailed, and opened on phones."""

_PAGE = "report.html.jinja"


def render(answer: Answer, facts: RunFacts, _suffix: str) -> bytes:
    """The report as a page."""
    return page(answer, facts)


REPORT = Report((".html", ".htm"), render)


def page(
    answer: Answer, facts: RunFacts, idles_of: IdlesOf = attrgetter("idles"), advice: Advice | None = None
) -> bytes:
    """The report as a page.

    Args:
        answer: What to report.
        facts: About the Run and the call.
        idles_of: The idle intervals of a result, each with its cause.
        advice: What to run and what more would buy, where links are given; what it names is then named best.

    Returns:
        The file; equal input gives equal bytes.
    """
    found = verdict(answer, advised_result(answer, advice))
    parts: dict[str, Any] = {
        "answer": answer,
        "facts": facts,
        "schema_version": SCHEMA_VERSION,
        "verdict": found,
        "advised": None if advice is None else advised(answer, advice),
        "comparison": comparison(answer, found.best),
        "details": details(answer),
        "idle": idle_view(answer, found.best, idles_of),
        "fidelity": fidelity(answer),
        "stages": stages(answer),
        "scenario": scenario(answer),
        "recording": None if facts.run is None else recording(facts.run),
    }
    bare = _rendered(parts, pictures=())
    drawn = pictures(answer, found.best, int(0.98 * MOST_BYTES) - len(bare))
    return _rendered(parts, pictures=drawn)


def _rendered(parts: dict[str, Any], **more: Any) -> bytes:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("tracetool.reports.html") / "static"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    script = read("report.js")
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    # Names of ranks, hosts and files are anybody's: everything is escaped unless the template says otherwise.
    environment = Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(_PAGE).render(
        parts, style=read("report.css") + cause_styles(), script=script, script_digest=f"sha256-{allowed}", **more
    )
    # Names of files may be any bytes.
    return text.encode(errors="backslashreplace")
