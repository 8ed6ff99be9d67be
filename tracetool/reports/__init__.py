"""Reports: an Answer in one output form each. Only this room draws and formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracetool.recording import Recording
    from tracetool.whatif import Answer


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report says about the Run and the call beside the answer itself.

    Attributes:
        name: What the user named.
        digest: Digest of the traces.
        tool_version: Version of this tool.
        command: The command line, to run it again.
        recording: What its steps measured, as the Run keeps it; None where it keeps none.
    """

    name: str
    digest: str
    tool_version: str
    command: str
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A report as a plug-in: its file suffixes and how it renders."""

    suffixes: tuple[str, ...]
    render: Callable[[Answer, RunFacts, str], bytes]


REPORTS: Registry[Report] = Registry(
    "report",
    {
        "text": "tracetool.reports.text:REPORT",
        "json": "tracetool.reports.json:REPORT",
        "gantt": "tracetool.reports.gantt:REPORT",
    },
    "tracetool.reports",
)


def report_for(suffix: str) -> Report | None:
    """The report that writes files of this suffix (with the dot), or None."""
    for name in REPORTS.names():
        report = REPORTS.get(name)
        if suffix.lower() in report.suffixes:
            return report
    return None


def run_facts(name: str, manifest: Mapping[str, Any], command: str, recording: Recording | None = None) -> RunFacts:
    """Facts from a Run's manifest, and what its steps measured."""
    from tracetool.version import __version__

    return RunFacts(name, str(manifest.get("digest", "")), __version__, command, recording)
