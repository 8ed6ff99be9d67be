"""The scenario in words above the schedule picture: every link, those of equal speed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.sharing import sharing_lines
from tracetool.units import format_bandwidth, format_duration, format_size

if TYPE_CHECKING:
    from tracetool.model.scenario import Scenario
    from tracetool.model.topology import Link

_NAMED = 12
"""Links of one speed that are named; further ones are counted."""


def scenario_parts(scenario: Scenario) -> list[str]:
    """What a scenario differs in, part by part; empty if in nothing that the picture shows."""
    same: dict[tuple[int, int], list[str]] = {}
    for name, link in _named(scenario.topology.links):
        same.setdefault((link.bandwidth_bytes_per_s, link.latency_ns), []).append(name)
    parts = []
    for (bandwidth, latency), names in same.items():
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        colon, each = (":", " each") if len(names) > 1 else ("", "")
        parts.append(f"{shown}{colon} {format_bandwidth(bandwidth)}, {format_duration(latency)}{each}")
    parts += sharing_lines(scenario)
    if scenario.hbm_bytes is not None:
        parts.append(f"HBM limit {format_size(scenario.hbm_bytes)} per rank")
    if parts:
        parts[0] = f"Scenario: {parts[0]}"
    return parts


def _named(links: tuple[Link, ...]) -> list[tuple[str, Link]]:
    """Links by name, both directions as one where they are equal."""
    pairs = {(link.src_dc, link.dst_dc): link for link in links}
    named = []
    for number, link in enumerate(links):
        back = pairs.get((link.dst_dc, link.src_dc))
        same = back is not None and (back.bandwidth_bytes_per_s, back.latency_ns) == (
            link.bandwidth_bytes_per_s,
            link.latency_ns,
        )
        if same and back in links[:number]:
            continue
        named.append((f"{link.src_dc}{'↔' if same else '→'}{link.dst_dc}", link))
    return named
