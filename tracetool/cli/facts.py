"""The facts that ``ingest`` and ``info`` show about a Run.

What crosses data centres, as ``info --dc`` shows it.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.cli.output import free_name
from tracetool.errors import CopyableRank
from tracetool.model.notice import NoticeCode
from tracetool.model.schedule import OBSERVED
from tracetool.reconstruction import notes_of_sources, unread_events
from tracetool.reconstruction.closeup.slowdown import notes_on_gaps
from tracetool.reconstruction.job import SlowRank
from tracetool.reconstruction.steps.crossing import by_direction, find_crossing
from tracetool.reports import marked_text
from tracetool.reports.recording.findings import finding_lines
from tracetool.reports.recording.summary import own_notes, stand_in_lines
from tracetool.units import format_count, format_duration, format_ranges, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.model.dc_map import DCMap
    from tracetool.reports.recording.summary import (
        CrossingInfo,
        ExposedInfo,
        HostGapInfo,
        LeftInfo,
        ObservedPipelineInfo,
        ReplayedRunInfo,
        SummaryInfo,
        VendorBubbleInfo,
    )
    from tracetool.store.run import Run

_SHOWN = 12
_MOST_LOST = 3


def next_command(named: str, run: Run, facts: SummaryInfo, dc: str | None = None) -> str:
    """The command that is useful after a Run was shown.

    Args:
        named: The Run, or its traces, as named, quoted for the shell.
        run: The Run.
        facts: Its summary.
        dc: The map of data centres that was given.
    """
    pipeline = facts["pipeline"]
    copying = run.manifest.get("reconstruction", {}).get("kind") == CopyableRank.__name__
    if pipeline["missing"] and not copying:
        table = "vendor_figures" if not facts["ranks"] else "events" if facts["events"] else "comms"
        if len(shlex.split(named)) > 1:
            return f"tracetool ingest {named} -o {shlex.quote(free_name('x.run'))}"
        column = {"vendor_figures": "metric", "events": "category", "comms": "operation"}[table]
        return f'tracetool sql {named} "select {column}, count(*) from {table} group by all"'
    stages = pipeline["stages"]
    several = len({s["rank"] for s in stages}) < len(stages)
    forwards_alone = all(s[column] is None for s in stages for column in s if column.startswith("backward_"))
    schedules = OBSERVED if several or copying or forwards_alone else "1f1b,gpipe,geopipe"
    return (
        f"tracetool replay {named} --schedule {schedules}"
        + (" --copy-missing-ranks" if copying else "")
        + (_places(dc, crossing) if dc is not None and (crossing := facts.get("cross_dc")) is not None else "")
    )


def _places(dc: str, crossing: CrossingInfo) -> str:
    """The map as an option, with a link to fill in for each pair of data centres that exchange messages."""
    pairs = dict.fromkeys(tuple(sorted((way["src_dc"], way["dst_dc"]))) for way in crossing["directions"])
    links = [shlex.quote(f"{one}-{two}=25Gbit/s,10ms") for one, two in pairs]
    return " ".join(["", "--dc", shlex.quote(dc), *(f"--link {link}" for link in links)])


_OBSERVED_SQL = """
SELECT step_ns, window_ns, bubble_ratio, peak_hbm_bytes,
       (SELECT max(end_ns - start_ns) FROM steps JOIN stages USING (rank)
        WHERE step = (SELECT step FROM step_facts WHERE chosen AND evidence = 'label')) AS marked_ns,
       (SELECT any_value(value) FROM findings WHERE fact = 'schedule') AS schedule
FROM schedule_comparison WHERE timeline = 'observed'
"""
_DISTORTING = (NoticeCode.HOST_ONLY, NoticeCode.PROFILER_AT_WORK, NoticeCode.KERNELS_LOST, NoticeCode.STEP_INCOMPLETE)
"""Notes of a pipeline that stand ahead of its figures: they change all of them."""
_TIMES = {"forward_ns": "F", "backward_ns": "B", "backward_input_ns": "I", "backward_weight_ns": "W"}
_SIZES = {"activation_bytes": "activation", "static_bytes": "static"}


def screen_lines(facts: SummaryInfo, run: Run) -> list[str]:
    """What was recorded, its step, schedule, stages, memory, traffic, and what is missing for what: in eight lines."""
    lines = [
        f"{_recorded_text(facts)}, steps {format_ranges(facts['steps']) or 'not marked'}",
        *_observed_lines(facts, run),
    ]
    if (crossing := facts.get("cross_dc")) is not None:
        lines.append(f"  cross-DC: {_crossing_text(crossing)}")
    lines += _exposed_lines(facts["exposed_collectives"])
    if facts["replayed"]:
        lines.append(_replayed_line(facts["replayed"]))
    gaps = [f"{gap.needed_for}: {gap.lacks} ({gap.hint})" for gap in facts["gaps"]]
    lines += [f"  missing for {gap}" for gap in gaps[:1]]
    lines += [f"  {text}" for text in stand_in_lines(run)[:1]]
    lost = _loss_lines(facts)
    lines += lost[:_MOST_LOST]
    more = [
        *([f"{len(gaps) - 1} more that is missing"] if len(gaps) > 1 else []),
        *(
            [f"{format_count(len(lost) - _MOST_LOST, 'line')} more of what was lost or left"]
            if len(lost) > _MOST_LOST
            else []
        ),
        format_count(len(facts["findings"]), "finding"),
    ]
    return [*lines, f"  {', '.join(more)}: -v"]


def _recorded_text(facts: SummaryInfo) -> str:
    """How many ranks of what were recorded by what."""
    readers = sorted({s["reader"] for s in facts["sources"]})
    devices = sorted({r["device_name"] for r in facts["ranks"] if r["device_name"]})
    return f"{len(facts['ranks'])} of {facts['world_size']} ranks ({', '.join(readers)})" + (
        f" on {', '.join(devices)}" if devices else ""
    )


def _observed_lines(facts: SummaryInfo, run: Run) -> list[str]:
    """The pipeline in short: what distorts its figures, its step, schedule and stages, and their memory."""
    pipeline = facts["pipeline"]
    if pipeline["missing"]:
        return _pipeline_lines(pipeline, [], [])
    warnings = [f"  warning: {note}" for note in own_notes(run, *_DISTORTING)]
    took, order, peak = "not measured", None, None
    for row in run.records(_OBSERVED_SQL):
        marked = marked_text(row["step_ns"], row["marked_ns"] or 0)
        took = f"{format_duration(row['step_ns'])}{marked and f' ({marked})'}, bubble {row['bubble_ratio']:.1%}"
        whose = "pipeline 0's" if facts["slow_ranks"] else "the pipeline's"
        took += f" of {whose} {format_duration(row['window_ns'])}"
        order, peak = row["schedule"], row["peak_hbm_bytes"]
    stages = pipeline["stages"]

    def between(names: Mapping[str, str], shown: Callable[[float], str]) -> list[str]:
        values = {name: [stage[key] for stage in stages if stage[key] is not None] for key, name in names.items()}
        return [f"{name} {_between(each, shown)}" for name, each in values.items() if each]

    sizes = [*between(_SIZES, format_size), *([] if peak is None else [f"peak {format_size(peak)}"])]
    return [
        *warnings,
        f"  step {pipeline['step']}: {took}",
        *(f"  slow: {SlowRank(**slow)}" for slow in facts["slow_ranks"][:1]),
        f"  schedule: {order or 'an order without a name'}",
        f"  {format_count(len(stages), 'stage')}: {', '.join(between(_TIMES, format_duration))}",
        f"  memory: {', '.join(sizes) or 'unknown'}",
    ]


def _exposed_lines(collectives: Sequence[ExposedInfo]) -> list[str]:
    """What collectives inside actions keep ranks from computing, and where most."""
    lines = []
    for each in collectives:
        name = f"{each['parallelism']} {each['operation']}" if each["parallelism"] else each["operation"]
        where = f"{each['kind']} of stage {each['stage']}" + (
            "" if each["layer"] is None else f", layer {each['layer']}"
        )
        took = f"{format_count(each['operations'], 'time')} in actions"
        if each["exposed_ns"] is None or each["own_ns"] is None or each["tail_ns"] is None:
            lines.append(f"  {name}: {took}, fused with its matrix product, {format_duration(each['duration_ns'])}")
            continue
        own = f"{'at most ' * each['own_is_bound']}{format_duration(each['own_ns'])}"
        lines.append(
            f"  {name}: {took}, {format_duration(each['exposed_ns'])} exposed ({format_duration(each['tail_ns'])} as a "
            f"tail), {own} once all ranks were there; most in {where}"
        )
    return lines


def _between(values: Sequence[int], shown: Callable[[float], str]) -> str:
    least, most = shown(min(values)), shown(max(values))
    return least if least == most else f"{least} to {most}"


def _crossing_text(crossing: CrossingInfo) -> str:
    ways = [
        f"{way['src_dc']}→{way['dst_dc']}: {format_count(way['messages'], 'message')}, {_size(way['payload_bytes'])}"
        for way in crossing["directions"]
    ]
    joint = sum(part.operations for part in crossing["collectives"])
    ways += [format_count(joint, "collective")] if joint else []
    return "; ".join(ways) or "nothing that was recorded"


def summary_lines(facts: SummaryInfo, run: Run) -> list[str]:
    """The summary for people."""
    lines = [
        _recorded_text(facts),
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
    lines += _pipeline_lines(facts["pipeline"], own_notes(run), facts["host_gaps"])
    lines += [f"  slow: {SlowRank(**slow)}" for slow in facts["slow_ranks"]]
    lines += _exposed_lines(facts["exposed_collectives"])
    if facts["replayed"]:
        lines.append(_replayed_line(facts["replayed"]))
    lines += finding_lines(facts["findings"])
    lines += [f"  missing for {gap.needed_for}: {gap.lacks} ({gap.hint})" for gap in facts["gaps"]]
    lines += [f"  {text}" for text in stand_in_lines(run)]
    lines += _loss_lines(facts)
    return lines


def _replayed_line(replayed: ReplayedRunInfo) -> str:
    return f"  replayed timelines: {', '.join(replayed['timelines'])} (by {replayed['command']})"


def _communication_line(facts: SummaryInfo) -> str:
    if not facts["comms"]:
        return "  no communication operations were read"
    line = f"  {facts['comms']:,} communication operations, {facts['sends_and_receives']:,} of them sends and receives"
    return line + (f" ({facts['without_peer']:,} without a peer)" if facts["without_peer"] else "")


def _pipeline_lines(pipeline: ObservedPipelineInfo, notes: list[str], gaps: list[HostGapInfo]) -> list[str]:
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
    return lines + [f"    note: {note}" for note in (*notes, *notes_on_gaps(shares))]


def _left_lines(left: list[LeftInfo]) -> list[str]:
    """Files that were left, the reasons that concern many files in one line each."""
    by_reason: dict[str, list[str]] = {}
    for item in left:
        by_reason.setdefault(item["reason"], []).append(item["path"])
    lines = []
    for reason, paths in by_reason.items():
        named = ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
        lines.append(f"  left: {named}: {reason}")
    return lines[:_SHOWN] + ([f"  left for {len(lines) - _SHOWN} more reasons"] if len(lines) > _SHOWN else [])


def _loss_lines(facts: SummaryInfo) -> list[str]:
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
                size_text = f" ({format_count(size, 'byte')})" if size else ""
                lines.append(f"  {who}: {format_count(count, 'record')} {what}{size_text}: {reason}{where}")
        if python := source["skipped"].get("python_function", 0):
            lines.append(
                f"  {who}: {format_count(python, 'event')} of Python functions not read (--keep python_function)"
            )
    lines += [f"  {note}" for note in notes_of_sources(facts["sources"])]
    lines += [f"  cannot be used: {item['reason']}" for item in facts["failed"]]
    lines += _left_lines(facts["left"])
    return lines + _bubble_lines(facts["vendor_bubble"])


def _bubble_lines(bubbles: list[VendorBubbleInfo]) -> list[str]:
    """The vendor's Bubble beside ours, equal ones in one line."""
    ranks: dict[tuple[int, int, int | None], list[int]] = {}
    for b in bubbles:
        ranks.setdefault((b["step"], b["vendor_bubble_ns"], b["bubble_ns"]), []).append(b["rank"])
    lines = ["  Ascend's own Bubble (receive operators only) beside ours (idle in the window):"] if ranks else []
    for (step, theirs, ours), members in list(ranks.items())[:_SHOWN]:
        ours_text = "not reconstructed" if ours is None else f"ours {format_duration(ours)}"
        lines.append(f"    step {step}, {format_ranks(members)}: Ascend's {format_duration(theirs)}, {ours_text}")
    if len(ranks) > _SHOWN:
        lines.append(f"    {len(ranks) - _SHOWN} more (--json has all)")
    return lines


_SHOWN_PAIRS = 8


def crossing_facts(run: Run, dc_map: DCMap) -> CrossingInfo:
    """Cross-DC messages and collectives of the step, in full.

    Raises:
        BadTopology: If the map does not fit the Run's ranks.
    """
    crossing = find_crossing(run, dc_map)
    members: dict[str, list[int]] = defaultdict(list)
    for rank, dc in sorted(crossing.dcs.items()):
        members[dc].append(rank)
    return {
        "map": dc_map.text,
        "map_counts": dc_map.counts,
        "step": crossing.step,
        "dcs": dict(sorted(members.items())),
        "directions": [
            {"src_dc": src, "dst_dc": dst, "messages": count, "payload_bytes": size}
            for (src, dst), (count, size) in by_direction(crossing).items()
        ],
        "messages": list(crossing.messages),
        "collectives": list(crossing.collectives),
    }


def crossing_lines(facts: CrossingInfo) -> list[str]:
    """The same for people."""
    when = "of the whole capture" if facts["step"] is None else f"of step {facts['step']}"
    lines = [f"  cross-DC traffic {when} (the DC map names {facts['map_counts']}; ranks here are global):"]
    lines += [f"    {dc}: {format_ranks(ranks)}" for dc, ranks in facts["dcs"].items()]
    for way in facts["directions"]:
        pairs = [m for m in facts["messages"] if (m.src_dc, m.dst_dc) == (way["src_dc"], way["dst_dc"])]
        counts = [f"{m.src_rank}→{m.dst_rank}: {m.messages}" for m in pairs]
        lines.append(
            f"    {way['src_dc']}→{way['dst_dc']}: {format_count(way['messages'], 'message')}, "
            f"{_size(way['payload_bytes'])} ({_listed(counts)})"
        )
    for part in facts["collectives"][:_SHOWN_PAIRS]:
        lines.append(
            f"    {format_count(part.operations, part.operation)} over {', '.join(part.dcs)} "
            f"({format_ranks(part.ranks)}): {_size(part.payload_bytes)} from each rank"
        )
    if len(facts["collectives"]) > _SHOWN_PAIRS:
        lines.append(f"    {len(facts['collectives']) - _SHOWN_PAIRS} more collectives (--json lists all)")
    if not facts["directions"] and not facts["collectives"]:
        lines.append("    nothing that was recorded crosses DCs")
    return lines


def _size(value: int | None) -> str:
    return "of unknown size" if value is None else format_size(value)


def _listed(parts: Sequence[str]) -> str:
    more = f", {len(parts) - _SHOWN_PAIRS} more pairs" if len(parts) > _SHOWN_PAIRS else ""
    return f"messages by ranks {', '.join(parts[:_SHOWN_PAIRS])}{more}"
