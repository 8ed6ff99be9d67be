"""What would be read of files, what not, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.ingestion import Discovery
    from tracetool.readers import Left


class DiscoveredInfo(TypedDict):
    """A source that would be read."""

    path: Annotated[str, doc("File or folder; with the member of an archive.")]
    reader: Annotated[str, doc("Reader that takes it.")]
    rank: Annotated[int | None, doc("Global rank; null of what is of none.")]
    rank_from: Annotated[str, doc("Where the rank is taken from.")]
    world_size: Annotated[int | None, doc("Ranks in the job, as the trace says; null if it does not.")]
    member: Annotated[str | None, doc("Member of the archive; null outside archives.")]
    files: Annotated[int, doc("How many files it is.")]
    size_bytes: Annotated[int, doc("Their size.")]


class LeftInfo(TypedDict):
    """A file that is not read."""

    path: Annotated[str, doc("Which.")]
    reason: Annotated[str, doc("Why.")]


class DiscoveryInfo(TypedDict):
    """What tracetool ingest would read."""

    sources: Annotated[list[DiscoveredInfo], doc("What would be read.")]
    failed: Annotated[list[LeftInfo], doc("What cannot be read.")]
    left: Annotated[list[LeftInfo], doc("What would be left.")]
    conflicts: Annotated[list[str], doc("Why the sources cannot be read into one Run.")]
    hints: Annotated[list[str], doc("What to do about these.")]


def discovery_info(discovery: Discovery) -> DiscoveryInfo:
    """What would be read, and what not."""
    return {
        "sources": [
            {
                "path": item.label,
                "reader": item.reader,
                "rank": item.rank,
                "rank_from": item.rank_from or "the trace",
                "world_size": item.identity.world_size,
                "member": item.source.member,
                "files": len(item.source.files),
                "size_bytes": item.source.size_bytes,
            }
            for item in discovery.sources
        ],
        "failed": _left(discovery.failed),
        "left": _left(discovery.left),
        "conflicts": [conflict.message for conflict in discovery.conflicts],
        "hints": list(dict.fromkeys(conflict.hint for conflict in discovery.conflicts if conflict.hint)),
    }


def _left(files: Sequence[Left]) -> list[LeftInfo]:
    return [{"path": str(file.path), "reason": file.reason} for file in files]
