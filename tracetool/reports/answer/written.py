"""What ``tracetool report --json`` prints: which file was written, and its answer in short.

The struct is the schema: ``schemas/written.schema.json`` is made from it. Keys may be added within a major version;
none is renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.comparison.report import BestInfo  # noqa: TC001 - msgspec reads it
from tracetool.reports.answer.best import best_info
from tracetool.reports.answer.verdict import verdict
from tracetool.tables.fields import doc
from tracetool.tables.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reports import RunFacts
    from tracetool.whatif.results import Answer, Result

SCHEMA_ID = "urn:tracetool:schema:1:written"


class WrittenInfo(msgspec.Struct, kw_only=True):
    """Result of tracetool report."""

    schema: Annotated[str, doc("Identifier of this schema.")] = msgspec.field(name="$schema", default=SCHEMA_ID)
    schema_version: Annotated[str, doc("Version of the schema.")] = SCHEMA_VERSION
    tool_version: Annotated[str, doc("Version of tracetool.")]
    command: Annotated[str, doc("Command line that wrote it.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    path: Annotated[str, doc("The file.")]
    size_bytes: Annotated[int, doc("Its size.")]
    headline: Annotated[str, doc("The answer in one sentence.")]
    best: Annotated[BestInfo, doc("What the answer is about.")]
    baseline: Annotated[str, doc("Name of the schedule that it is compared with.")]


def written_info(
    answer: Answer, facts: RunFacts, path: Path, size_bytes: int, best: Result | None = None
) -> WrittenInfo:
    """The struct of the schema; ``best`` as ``verdict`` takes it."""
    found = verdict(answer, best)
    best, base = found.best, answer.baseline
    return WrittenInfo(
        tool_version=facts.tool_version,
        command=facts.command,
        digest=facts.digest,
        path=str(path),
        size_bytes=size_bytes,
        headline=found.headline,
        best=best_info(answer, best),
        baseline=base.schedule,
    )


def render_json(info: WrittenInfo) -> str:
    """Indented JSON, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(info), indent=2).decode() + "\n"
