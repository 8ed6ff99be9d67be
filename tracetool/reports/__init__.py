"""Reports: an Answer in one output form each. Only this room draws and formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.registry import Registry
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracetool.ingestion.recording import Recording
    from tracetool.store.run import Run
    from tracetool.whatif.results import Answer


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report says about the Run and the call beside the answer itself.

    Attributes:
        name: What the user named.
        digest: Digest of the traces.
        tool_version: Version of this tool.
        command: The command line, to run it again.
        run: The Run, for reports that say how it came about; None where there is none at hand.
        recording: What its steps measured, as the Run keeps it; None where it keeps none.
    """

    name: str
    digest: str
    tool_version: str
    command: str
    run: Run | None = None
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What an answer says about the call: version of this tool, and the command line, to run it again."""

    tool_version: str
    command: str


@dataclass(frozen=True, slots=True)
class Report:
    """A report as a plug-in: its file suffixes and how it renders."""

    suffixes: tuple[str, ...]
    render: Callable[[Answer, RunFacts, str], bytes]


REPORTS: Registry[Report] = Registry(
    "report",
    {
        "text": "tracetool.reports.answer.text:REPORT",
        "json": "tracetool.reports.answer.json:REPORT",
        "gantt": "tracetool.reports.gantt.picture:REPORT",
        "html": "tracetool.reports.html.page:REPORT",
        "perfetto": "tracetool.reports.export.perfetto:REPORT",
    },
    "tracetool.reports",
)


_OTHER_RATIO = 0.01


def marked_text(step_ns: int, marked_ns: int) -> str:
    """A step as its mark has it, where that is another by more than 1 %: ``810.0 ms as marked``; else nothing."""
    return f"{format_duration(marked_ns)} as marked" if marked_ns > (1 + _OTHER_RATIO) * step_ns else ""


def report_for(file: str) -> Report | None:
    """The report that writes files of this name, or None: the one whose suffix is the longest that the name ends in."""
    suffixes = {suffix: name for name in REPORTS.names() for suffix in REPORTS.get(name).suffixes}
    fitting = [suffix for suffix in suffixes if file.lower().endswith(suffix)]
    return REPORTS.get(suffixes[max(fitting, key=len)]) if fitting else None


def as_json(value: object) -> bytes:
    """What scripts read: indented, with a final newline."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def run_facts(
    name: str, manifest: Mapping[str, Any], command: str, run: Run | None = None, recording: Recording | None = None
) -> RunFacts:
    """Facts from a Run's manifest; with the Run itself for reports that ask for more, and what its steps measured."""
    from tracetool.version import __version__

    return RunFacts(name, str(manifest.get("digest", "")), __version__, command, run, recording)
