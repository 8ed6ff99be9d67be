"""How a Run came about, for the HTML report: devices, what was inferred, what is missing, which files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.reports.html.tables import Cell, PageTable, Row, left_out
from tracetool.reports.recording.findings import merged
from tracetool.reports.recording.gaps import find_gaps
from tracetool.units import format_count, format_ranks, format_size

if TYPE_CHECKING:
    from tracetool.store.run import Run

MOST_SOURCES = 64
"""Files that are listed one by one."""


@dataclass(frozen=True, slots=True)
class RecordingView:
    """What a Run says about itself.

    Attributes:
        summary: Ranks, devices and events, in sentences.
        findings: What was inferred, the least sure first.
        gaps: What is missing, for what, and how to record it.
        losses: What could not be read or used.
        sources: The files.
    """

    summary: tuple[str, ...]
    findings: PageTable
    gaps: tuple[str, ...]
    losses: tuple[str, ...]
    sources: PageTable


def recording(run: Run) -> RecordingView:
    """Ask a Run about itself.

    Raises:
        TraceToolError: If its tables cannot be read.
    """
    gaps = [f"Missing for {gap.needed_for}: {gap.lacks} ({gap.hint})." for gap in find_gaps(run)]
    return RecordingView(_summary(run), _findings(run), tuple(gaps), tuple(_losses(run)), _sources(run))


def _summary(run: Run) -> tuple[str, ...]:
    ranks = run.records("SELECT rank, host, device_name, hbm_bytes FROM ranks ORDER BY rank")
    ((events, kernels, comms),) = run.rows(
        "SELECT count(*), count(*) FILTER (category = 'kernel'), (SELECT count(*) FROM comms) FROM events"
    )
    places: dict[tuple[Any, Any], list[int]] = {}
    for rank in ranks:
        places.setdefault((rank["device_name"], rank["hbm_bytes"]), []).append(rank["rank"])
    devices = [
        f"{format_ranks(members)}: {name or 'unknown device'}" + (f", {format_size(hbm)} of HBM" if hbm else "")
        for (name, hbm), members in places.items()
    ]
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"] or "unknown", []).append(rank["rank"])
    named = [f"{format_ranks(members)} on host {host}" for host, members in hosts.items() if host != "unknown"]
    world = run.manifest["world_size"]
    return (
        f"{len(ranks)} of {world} ranks were recorded: {events:,} events, {kernels:,} of them kernels, and "
        f"{format_count(comms, 'communication operation')}.",
        *devices,
        *named[:MOST_SOURCES],
        *left_out(len(named), MOST_SOURCES, "hosts"),
    )


def _findings(run: Run) -> PageTable:
    found, left = merged(run.records("SELECT * FROM findings"))
    rows = [
        Row(
            Cell(f.fact),
            (
                Cell("" if f.about == "all" else f.about),
                Cell(f.value, below=f.detail or ""),
                Cell(f.evidence),
                Cell(f"{f.confidence:.2f}", f.confidence),
            ),
        )
        for f in found
    ]
    columns = ("Fact", "About", "Found", "Known by", "Confidence")
    after = tuple(f"{more} (tracetool info --json has all)." for more in left)
    return PageTable("Findings, the least sure first", columns, tuple(rows), words=True, after=after)


def _losses(run: Run) -> list[str]:
    losses = []
    for source in run.manifest["sources"]:
        who = source["path"] if source["rank"] is None else f"rank {source['rank']}"
        if source["failure"]:
            losses.append(f"{who} cannot be used: {source['failure']}")
        for what in ("dropped", "repaired"):
            losses += [f"{who}: {format_count(n, 'record')} {what}: {why}" for why, n in source[what].items()]
    losses += [f"{item['path']} cannot be used: {item['reason']}" for item in run.manifest["failed"]]
    losses += [f"{item['path']} was left: {item['reason']}" for item in run.manifest["left"]]
    more = len(losses) - MOST_SOURCES
    return losses[:MOST_SOURCES] + ([f"{more:,} more (tracetool info --json has all)."] if more > 0 else [])


def _sources(run: Run) -> PageTable:
    records = run.records(
        "SELECT rank, path, reader, size_bytes, rows, dropped, repaired, digest FROM sources WHERE status = 'read' "
        "ORDER BY source"
    )
    rows = [
        Row(
            Cell("no rank" if r["rank"] is None else f"rank {r['rank']}", -1 if r["rank"] is None else r["rank"]),
            (
                Cell(r["path"], below=f"XXH3 {r['digest']}" if r["digest"] else ""),
                Cell(r["reader"] or ""),
                Cell(format_size(r["size_bytes"]), r["size_bytes"]),
                Cell(f"{r['rows']:,}", r["rows"]),
                Cell(f"{r['dropped']:,}", r["dropped"]),
                Cell(f"{r['repaired']:,}", r["repaired"]),
            ),
        )
        for r in records[:MOST_SOURCES]
    ]
    columns = ("Source", "Path", "Reader", "Size", "Records", "Dropped", "Repaired")
    after = left_out(len(records), MOST_SOURCES, "sources")
    return PageTable("Files that were read", columns, tuple(rows), words=True, after=after)
