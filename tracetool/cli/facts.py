"""The facts that ``ingest`` and ``info`` show about a Run."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracetool.reconstruction import notes_of_sources, unread_events
from tracetool.reconstruction.closeup.host_gaps import gap_shares, tell_gaps
from tracetool.reports.recording.findings import finding_lines
from tracetool.reports.recording.gaps import find_gaps
from tracetool.units import format_count, format_duration, format_ranges, format_ranks, format_size

if TYPE_CHECKING:
    from tracetool.ingestion import Discovery
    from tracetool.store.run import Run

_SHOWN = 12

# Ours is of the observed step alone: what a rank idles within the pipeline window.
_BUBBLES_SQL = """
SELECT s.rank, s.step, s.vendor_bubble_ns, CASE WHEN s.step = $step THEN b.idle_ns END AS bubble_ns
FROM steps AS s LEFT JOIN step_breakdown AS b ON b.rank = s.rank
WHERE s.vendor_bubble_ns IS NOT NULL ORDER BY s.rank, s.step
"""


_TOTALS_SQL = """
WITH of_rank AS (
    SELECT rank, count(*) AS events, count(*) FILTER (category = 'kernel') AS kernels,
           min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns
    FROM events GROUP BY rank
)
SELECT coalesce(sum(events), 0)::BIGINT, coalesce(sum(kernels), 0)::BIGINT,
       min(first_ns + if(applied, offset_ns, 0)), max(last_ns + if(applied, offset_ns, 0))
FROM of_rank LEFT JOIN clocks USING (rank)
"""


def run_summary(run: Run) -> dict[str, Any]:
    """Everything about a Run that a user should know before using its numbers."""
    (totals,) = run.rows(_TOTALS_SQL)
    (p2p,) = run.rows(
        "SELECT count(*) FILTER (operation IN ('send', 'recv')), count(*), "
        "count(*) FILTER (operation IN ('send', 'recv') AND peer IS NULL) FROM comms"
    )
    steps = [n for (n,) in run.rows("SELECT DISTINCT step FROM steps ORDER BY step")]
    ranks = run.records(
        "SELECT r.rank, r.host, r.device_name, r.hbm_bytes, "
        "count(e.event) FILTER (e.category = 'kernel') AS kernels "
        "FROM ranks AS r LEFT JOIN events AS e USING (rank) GROUP BY ALL ORDER BY r.rank"
    )
    stages = run.records("SELECT * FROM stages ORDER BY stage")
    found = run.manifest.get("reconstruction", {})
    span = (totals[3] or 0) - (totals[2] or 0)
    return {
        "run": run.name,
        "digest": run.manifest["digest"],
        "schema_version": run.manifest["schema_version"],
        "tool_version": run.manifest["tool_version"],
        "world_size": run.manifest["world_size"],
        "missing_ranks": run.manifest["missing_ranks"],
        "ranks": ranks,
        "events": totals[0],
        "kernels": totals[1],
        "span_ns": span,
        "comms": p2p[1],
        "sends_and_receives": p2p[0],
        "without_peer": p2p[2],
        "steps": steps,
        "memory_rows": run.rows("SELECT count(*) FROM memory")[0][0],
        "vendor_bubble": run.records(_BUBBLES_SQL, {"step": found.get("step")}),
        "findings": run.records("SELECT * FROM findings"),
        "coordinates": run.records("SELECT * FROM coordinates ORDER BY rank"),
        "step_facts": run.records("SELECT * FROM step_facts ORDER BY start_ns"),
        "pipeline": {
            "step": found.get("step"),
            "notes": found.get("notes", []),
            "missing": found.get("missing"),
            "hint": found.get("hint"),
            "stages": stages,
        },
        "replayed": run.manifest.get("replayed"),
        "vendor_figures": run.rows("SELECT count(*) FROM vendor_figures")[0][0],
        "host_gaps": host_gaps(run, found.get("step")),
        "gaps": [gap._asdict() for gap in find_gaps(run)],
        "sources": run.manifest["sources"],
        "failed": run.manifest["failed"],
        "left": run.manifest["left"],
    }


def host_gaps(run: Run, step: int | None) -> list[dict[str, Any]]:
    """Share of gaps between kernels in the actions of the chosen step, where costs hold them; none without kernels."""
    rows = run.rows(
        "SELECT stage, kind, duration_ns, kernel_ns FROM costs "
        "WHERE step = ? AND EXISTS (SELECT 1 FROM events WHERE category = 'kernel') AND NOT EXISTS ("
        "SELECT 1 FROM findings WHERE fact = 'launches' AND subject IN ('all', 'rank ' || costs.rank))",
        [step],
    )
    return [{"stage": stage, "kind": kind, "gap_ratio": share} for (stage, kind), share in gap_shares(rows).items()]


def next_command(named: str, facts: dict[str, Any], dc: str | None = None) -> str:
    """The command that is useful after a Run was shown.

    Args:
        named: The Run as it was named, quoted for the shell.
        facts: Its summary.
        dc: The map of data centres that was given.
    """
    pipeline = facts["pipeline"]
    copying = "--copy-missing-ranks" in (pipeline["hint"] or "")
    if pipeline["missing"] and not copying:
        table = "vendor_figures" if not facts["ranks"] else "events" if facts["events"] else "comms"
        column = {"vendor_figures": "metric", "events": "category", "comms": "operation"}[table]
        return f'tracetool sql {named} "select {column}, count(*) from {table} group by all"'
    stages = pipeline["stages"]
    several = len({s["rank"] for s in stages}) < len(stages)
    forwards_alone = all(s[column] is None for s in stages for column in s if column.startswith("backward_"))
    schedules = "observed" if several or copying or forwards_alone else "1f1b,gpipe,geopipe"
    return (
        f"tracetool replay {named} --schedule {schedules}"
        + (" --copy-missing-ranks" if copying else "")
        + (_places(dc, facts["cross_dc"]) if dc is not None else "")
    )


def _places(dc: str, crossing: dict[str, Any]) -> str:
    """The map as an option, with a link to fill in for each pair of data centres that exchange messages."""
    pairs = dict.fromkeys(tuple(sorted((way["src_dc"], way["dst_dc"]))) for way in crossing["directions"])
    links = [shlex.quote(f"{one}-{two}=25Gbit/s,10ms") for one, two in pairs]
    return " ".join(["", "--dc", shlex.quote(dc), *(f"--link {link}" for link in links)])


def discovery_facts(discovery: Discovery) -> dict[str, Any]:
    """What would be read, and what not."""
    from tracetool.ingestion.discover import UNRANKED

    return {
        "sources": [
            {
                "path": item.label,
                "reader": item.reader,
                "rank": None if item.rank == UNRANKED else item.rank,
                "rank_from": item.rank_from or "the trace",
                "world_size": item.identity.world_size,
                "member": item.source.member,
                "files": len(item.source.files),
                "size_bytes": item.source.size_bytes,
            }
            for item in discovery.found
        ],
        "failed": [{"path": str(left.path), "reason": left.reason} for left in discovery.failed],
        "left": [{"path": str(left.path), "reason": left.reason} for left in discovery.left],
        "conflicts": [conflict.message for conflict in discovery.conflicts],
        "hints": list(dict.fromkeys(conflict.hint for conflict in discovery.conflicts if conflict.hint)),
    }


def discovery_lines(facts: dict[str, Any]) -> list[str]:
    """The same for people; every file that is left is named."""
    lines = [f"{format_count(len(facts['sources']), 'source')} would be read"]
    for source in facts["sources"]:
        who = "no rank" if source["rank"] is None else f"rank {source['rank']}"
        origin = "" if source["rank_from"] == "the trace" else f" (from {source['rank_from']})"
        files = "" if source["files"] == 1 else f", {source['files']} files"
        size = "" if source["member"] else f", {format_size(source['size_bytes'])}"
        lines.append(f"  {who}{origin}: {source['path']} ({source['reader']}{size}{files})")
    for what, told in (("failed", "cannot be read"), ("left", "left")):
        if facts[what]:
            lines.append(f"{len(facts[what])} {told}")
            lines += _folded(facts[what])
    lines += [f"conflict: {conflict}" for conflict in facts["conflicts"]]
    return lines + [f"hint: {hint}" for hint in facts["hints"]]


def _folded(items: list[dict[str, str]]) -> list[str]:
    """Every item, but of a reason that concerns many files the first few."""
    lines: list[str] = []
    seen: Counter[str] = Counter()
    for item in items:
        seen[item["reason"]] += 1
        if seen[item["reason"]] <= _SHOWN:
            lines.append(f"  {item['path']}: {item['reason']}")
    return lines + [f"  {n - _SHOWN:,} more: {reason} (--json lists all)" for reason, n in seen.items() if n > _SHOWN]


def summary_lines(facts: dict[str, Any]) -> list[str]:
    """The summary for people."""
    readers = sorted({s["reader"] for s in facts["sources"]})
    devices = sorted({r["device_name"] for r in facts["ranks"] if r["device_name"]})
    unread = unread_events(facts["sources"])
    lines = [
        f"{len(facts['ranks'])} of {facts['world_size']} ranks ({', '.join(readers)})"
        + (f" on {', '.join(devices)}" if devices else ""),
        f"  {facts['events']:,} events, {format(facts['kernels'], ',') if facts['kernels'] else 'no'} kernels, "
        f"over {format_duration(facts['span_ns'])}"
        + (f"; {unread}" if (unread := unread_events(facts["sources"])) else ""),
        _communication_line(facts),
        f"  steps: {format_ranges(facts['steps']) or 'none marked'}",
    ]
    if facts["memory_rows"]:
        lines.append(f"  memory: {facts['memory_rows']:,} allocator records")
    if facts["vendor_figures"]:
        lines.append(f"  vendor_figures: {facts['vendor_figures']:,} figures of a vendor's analysis")
    lines += _pipeline_lines(facts["pipeline"], set(notes_of_sources(facts["sources"])), facts["host_gaps"])
    if facts["replayed"]:
        names = ", ".join(facts["replayed"]["timelines"])
        lines.append(f"  replayed timelines: {names} (by {facts['replayed']['command']})")
    lines += finding_lines(facts["findings"])
    lines += [f"  missing for {gap['needed_for']}: {gap['lacks']} ({gap['hint']})" for gap in facts["gaps"]]
    lines += _loss_lines(facts)
    return lines


def _communication_line(facts: dict[str, Any]) -> str:
    if not facts["comms"]:
        return "  no communication operations were read"
    told = f"  {facts['comms']:,} communication operations, {facts['sends_and_receives']:,} of them sends and receives"
    return told + (f" ({facts['without_peer']:,} without a peer)" if facts["without_peer"] else "")


def _pipeline_lines(pipeline: dict[str, Any], told: set[str], gaps: list[dict[str, Any]]) -> list[str]:
    if pipeline["missing"]:
        lines = [f"  pipeline: cannot be replayed: {pipeline['missing']}"]
        return lines + ([f"    {pipeline['hint']}"] if pipeline["hint"] else [])
    lines = [f"  pipeline of step {pipeline['step']}: {len(pipeline['stages'])} stages"]
    for stage in pipeline["stages"]:
        times = [
            f"{name} {format_duration(stage[key])}"
            for name, key in (
                ("F", "forward_ns"), ("B", "backward_ns"),
                ("I", "backward_input_ns"), ("W", "backward_weight_ns"),
            )
            if stage[key] is not None
        ]  # fmt: skip
        sizes = [
            f"{name} {format_size(stage[key])}"
            for name, key in (("activation", "activation_bytes"), ("static", "static_bytes"))
            if stage[key] is not None
        ]
        lines.append(
            f"    stage {stage['stage']} on rank {stage['rank']}: {', '.join(times + sizes)} (by {stage['evidence']})"
        )
        alone = stage["backward_weight_ns"] is not None and stage["backward_input_ns"] is None
        if alone and stage["backward_ns"] is None:
            lines.append("      W is its whole backward: the first stage has no input gradient to send")
    shares = {(gap["stage"], gap["kind"]): gap["gap_ratio"] for gap in gaps}
    notes = [note for note in pipeline["notes"] if note not in told]
    return lines + [f"    note: {note}" for note in (*notes, *tell_gaps(shares))]


def _left_lines(left: list[dict[str, str]]) -> list[str]:
    """Files that were left, the reasons that concern many files in one line each."""
    by_reason: dict[str, list[str]] = {}
    for item in left:
        by_reason.setdefault(item["reason"], []).append(item["path"])
    lines = []
    for reason, paths in by_reason.items():
        named = ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
        lines.append(f"  left: {named}: {reason}")
    return lines[:_SHOWN] + ([f"  left for {len(lines) - _SHOWN} more reasons"] if len(lines) > _SHOWN else [])


def _loss_lines(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for source in facts["sources"]:
        who = source["path"] if source["rank"] is None else f"rank {source['rank']}"
        if source["failure"]:
            lines.append(f"  {who} cannot be used: {source['failure']}")
            continue
        for what in ("dropped", "repaired"):
            for reason, count in source[what].items():
                place = source["places"].get(reason)
                where = f" (the first in {place})" if place else ""
                size = source["lost_bytes"].get(reason, 0) if what == "dropped" else 0
                told_size = f" ({format_count(size, 'byte')})" if size else ""
                lines.append(f"  {who}: {format_count(count, 'record')} {what}{told_size}: {reason}{where}")
        if python := source["skipped"].get("python_function", 0):
            lines.append(
                f"  {who}: {format_count(python, 'event')} of Python functions not read (--keep python_function)"
            )
    lines += [f"  {note}" for note in notes_of_sources(facts["sources"])]
    lines += [f"  cannot be used: {item['reason']}" for item in facts["failed"]]
    lines += _left_lines(facts["left"])
    return lines + _bubble_lines(facts["vendor_bubble"])


def _bubble_lines(bubbles: list[dict[str, Any]]) -> list[str]:
    """The vendor's Bubble beside ours, equal ones in one line."""
    ranks: dict[tuple[int, int, int | None], list[int]] = {}
    for b in bubbles:
        ranks.setdefault((b["step"], b["vendor_bubble_ns"], b["bubble_ns"]), []).append(b["rank"])
    lines = ["  Ascend's own Bubble (receive operators only) beside ours (idle in the window):"] if ranks else []
    for (step, theirs, ours), members in list(ranks.items())[:_SHOWN]:
        told = "not reconstructed" if ours is None else f"ours {format_duration(ours)}"
        lines.append(f"    step {step}, {format_ranks(members)}: Ascend's {format_duration(theirs)}, {told}")
    if len(ranks) > _SHOWN:
        lines.append(f"    {len(ranks) - _SHOWN} more (--json has all)")
    return lines
