"""Sections of the HTML report: where the time of every rank goes, and how a Run came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.causes.cause import Cause
from tracetool.reports.answer.text import result_name
from tracetool.reports.html import MOST_RANKS, Cell, PageTable, Row, left_out
from tracetool.reports.recording.findings import find_gaps, merged
from tracetool.units import format_count, format_duration, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.causes.cause import Idle
    from tracetool.store.run import Run
    from tracetool.whatif.results import Answer, Result

    IdlesOf = Callable[[Result], Sequence[Idle]]


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: its class of the style sheet, its name, and its share of the window in per cent."""

    kind: str
    name: str
    percent: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Where the window of one rank goes."""

    rank: str
    parts: tuple[BarPart, ...]
    text: str


@dataclass(frozen=True, slots=True)
class IdleView:
    """Idle time, for the page.

    Attributes:
        of: The schedule that bars and ranks are about.
        bars: One per rank.
        legend: What the parts mean, in order.
        causes: The baseline's and the best schedule's idle time by cause.
        ranks: Idle time of every rank.
    """

    of: str
    bars: tuple[Bar, ...]
    legend: tuple[BarPart, ...]
    causes: PageTable
    ranks: PageTable


def idle_view(answer: Answer, best: Result, idles_of: IdlesOf) -> IdleView:
    """Idle time of the best schedule by cause.

    Args:
        answer: What is reported.
        best: The result that is looked at.
        idles_of: The idle intervals of a result, each with its cause.
    """
    by_rank = _sums(idles_of(best), len(best.metrics.rank_compute_ns))
    causes = [cause for cause in Cause if any(cause in sums for sums in by_rank)]
    names = [("compute", "compute"), *((_kind(c), f"idle: {c.words.label}") for c in causes)]
    return IdleView(
        of=result_name(best),
        bars=tuple(_bars(best, by_rank)),
        legend=tuple(BarPart(kind, name, "") for kind, name in names),
        causes=_causes_table(answer, best, idles_of),
        ranks=_ranks_table(best, by_rank, causes),
    )


def cause_styles() -> str:
    """Rules of the style sheet that give each cause its look."""
    rule = ".{} {{ --tint: {}; --line-of: {}; --angle: {}deg; }}\n".format
    return "".join(rule(_kind(c), c.look.tint, c.look.line, c.look.angle_deg) for c in Cause)


def _kind(cause: Cause) -> str:
    return cause.value.replace("_", "-")


def _sums(idles: Sequence[Idle], ranks: int) -> list[dict[Cause, int]]:
    sums: list[dict[Cause, int]] = [{} for _ in range(ranks)]
    for idle in idles:
        sums[idle.rank][idle.cause] = sums[idle.rank].get(idle.cause, 0) + idle.duration_ns
    return sums


def _rank_name(best: Result, position: int) -> str:
    dcs = best.replayed.topology.dcs
    place = f" ({dcs[position]})" if dcs else ""
    return f"rank {best.timeline.global_ranks[position]}{place}"


def _bars(best: Result, by_rank: list[dict[Cause, int]]) -> list[Bar]:
    window = best.metrics.window_ns
    bars = []
    for position, busy in enumerate(best.metrics.rank_compute_ns[:MOST_RANKS]):
        idle = [(_kind(c), c.words.label, by_rank[position][c]) for c in Cause if c in by_rank[position]]
        parts = [
            BarPart(kind, name, f"{100 * value / window if window else 0:.2f}")
            for kind, name, value in [("compute", "compute", busy), *idle]
        ]
        busy_text = f"{busy / window if window else 0:.0%} busy"
        bars.append(Bar(_rank_name(best, position), tuple(parts), busy_text))
    return bars


def _causes_table(answer: Answer, best: Result, idles_of: IdlesOf) -> PageTable:
    """Mean over ranks, so that a column sums to the bubble."""
    base = answer.baseline
    shown = [base] if best is base else [base, best]
    sums = []
    for result in shown:
        of_result: dict[Cause, int] = {}
        for rank in _sums(idles_of(result), len(result.metrics.rank_compute_ns)):
            for cause, value in rank.items():
                of_result[cause] = of_result.get(cause, 0) + value
        sums.append({c: value / len(result.metrics.rank_compute_ns) for c, value in of_result.items()})
    rows = [
        Row(
            Cell(cause.words.label),
            (*(_duration(sums_by_cause.get(cause, 0)) for sums_by_cause in sums), Cell(cause.words.meaning)),
        )
        for cause in Cause
        if any(cause in sums_by_cause for sums_by_cause in sums)
    ]
    totals = tuple(_duration(sum(sums_by_cause.values())) for sums_by_cause in sums)
    rows.append(Row(Cell("bubble, all causes"), (*totals, Cell("")), "total"))
    columns = ("Cause", *(result_name(result) for result in shown), "Meaning")
    return PageTable("Idle time by cause, mean over ranks", columns, tuple(rows), remarked=True)


def _ranks_table(best: Result, by_rank: list[dict[Cause, int]], causes: list[Cause]) -> PageTable:
    window = best.metrics.window_ns
    rows = []
    for position, busy in enumerate(best.metrics.rank_compute_ns[:MOST_RANKS]):
        cells = (busy, window - busy, *(by_rank[position].get(cause, 0) for cause in causes))
        rows.append(Row(Cell(_rank_name(best, position), position), tuple(_duration(value) for value in cells)))
    return PageTable(
        f"Each rank within the pipeline window of {format_duration(window)}",
        ("Rank", "Compute", "Idle", *(cause.words.label for cause in causes)),
        tuple(rows),
        after=left_out(len(best.metrics.rank_compute_ns), MOST_RANKS, "ranks"),
    )


def _duration(value_ns: float) -> Cell:
    return Cell(format_duration(value_ns) if value_ns else "0", round(value_ns))


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
    shown, left = merged(run.records("SELECT * FROM findings"))
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
        for f in shown
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
