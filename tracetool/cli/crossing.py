"""What crosses data centres, as ``info --dc`` shows it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.reconstruction.steps.crossing import by_direction, find_crossing
from tracetool.units import format_count, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.dc_map import DCMap
    from tracetool.reports.recording.summary import CrossingInfo
    from tracetool.store.run import Run

_SHOWN = 8


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
        told = [f"{m.src_rank}→{m.dst_rank}: {m.messages}" for m in pairs]
        lines.append(
            f"    {way['src_dc']}→{way['dst_dc']}: {format_count(way['messages'], 'message')}, "
            f"{_size(way['payload_bytes'])} ({_listed(told)})"
        )
    for part in facts["collectives"][:_SHOWN]:
        lines.append(
            f"    {format_count(part.operations, part.operation)} over {', '.join(part.dcs)} "
            f"({format_ranks(part.ranks)}): {_size(part.payload_bytes)} from each rank"
        )
    if len(facts["collectives"]) > _SHOWN:
        lines.append(f"    {len(facts['collectives']) - _SHOWN} more collectives (--json lists all)")
    if not facts["directions"] and not facts["collectives"]:
        lines.append("    nothing that was recorded crosses DCs")
    return lines


def _size(value: int | None) -> str:
    return "of unknown size" if value is None else format_size(value)


def _listed(parts: Sequence[str]) -> str:
    more = f", {len(parts) - _SHOWN} more pairs" if len(parts) > _SHOWN else ""
    return f"messages by ranks {', '.join(parts[:_SHOWN])}{more}"
