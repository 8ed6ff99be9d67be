"""The trace for Perfetto and chrome://tracing: what was observed and every result in one file, all from time 0 on.

JSON rather than Perfetto's own protobuf: it needs no package, and every such viewer reads it.
"""

from __future__ import annotations

import gzip
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from tracetool.causes.cause import Cause
from tracetool.model.topology import Topology
from tracetool.replays.side_by_side import divided
from tracetool.reports import Report, RunFacts
from tracetool.reports.answer.text import compared_results, is_baseline, short_name
from tracetool.reports.export.tracks import Event, Numbers, Process, add_timeline
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.model.metrics import Metrics
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Timeline
    from tracetool.whatif.results import Answer


def render(answer: Answer, facts: RunFacts, suffix: str = ".json") -> bytes:
    """The trace as JSON, one event a line; compressed if the suffix ends in ``.gz``.

    Equal input gives equal bytes.
    """
    lines = [msgspec.json.encode(event) for event in _events(answer)]
    about = msgspec.json.encode(_about(answer, facts))
    # Ahead of the events, for readers of traces to see that it is no recording. Perfetto once took "ns" for the unit of
    # the times themselves, which are in us by the format.
    text = b'{"otherData":%b,"displayTimeUnit":"ms","traceEvents":[\n%b\n]}\n' % (about, b",\n".join(lines))
    return gzip.compress(text, compresslevel=6, mtime=0) if suffix.lower().endswith(".gz") else text


REPORT = Report((".perfetto.json", ".perfetto.json.gz"), render)


def _events(answer: Answer) -> list[Event]:
    numbers, results = Numbers(), compared_results(answer)
    # Perfetto's interface goes by the name, whatever the sort index says.
    digits = len(str(1 + len(results)))
    name = f"{1:0{digits}d} observed {answer.observed_schedule or ''}".rstrip()
    observed = Process(1, name, _labels(answer.observed_metrics), numbers)
    add_timeline(observed, answer.observed, Topology(), answer.observed_idles)
    _add_memory(observed, answer.observed)
    events = observed.events
    for pid, result in enumerate(results, 2):
        name = f"{pid:0{digits}d} {short_name(result)}" + (" (baseline)" if is_baseline(answer, result) else "")
        process = Process(pid, name, _labels(result.metrics), numbers)
        add_timeline(process, result.timeline, _links_of(answer.scenario), result.idles)
        _add_memory(process, result.timeline)
        _add_link_load(process, result.timeline, answer.scenario)
        events += process.events
    return events


def _labels(metrics: Metrics) -> str:
    return f"step {format_duration(metrics.step_ns)}, bubble {metrics.bubble_ratio:.1%}"


def _about(answer: Answer, facts: RunFacts) -> dict[str, object]:
    topology = answer.scenario.topology
    return {
        "tracetool": facts.tool_version,
        "source": facts.name,
        "digest": facts.digest,
        "command": facts.command,
        "extra_forwards": {r.schedule: list(r.extra_forwards) for r in answer.results if r.extra_forwards is not None},
        "dcs": list(topology.dcs),
        "links": [str(link) for link in topology.links],
        "warnings": list(map(str, answer.warnings)),
        "notes": list(map(str, answer.notes)),
        "idle_causes": {cause.value: cause.words.meaning for cause in Cause},
    }


def _links_of(scenario: Scenario) -> Topology:
    """The links as one pipeline has them."""
    shared = scenario.pipelines_on_link > 1 and scenario.link_sharing == "spatial"
    return divided(scenario.topology, scenario.pipelines_on_link) if shared else scenario.topology


def _add_memory(process: Process, timeline: Timeline) -> None:
    digits = len(str(max(timeline.global_ranks)))
    for rank, curve in zip(timeline.global_ranks, timeline.memory, strict=True):
        if curve is not None:
            process.add_counter(f"rank {rank:0{digits}d} memory", "bytes", curve)


def _add_link_load(process: Process, timeline: Timeline, scenario: Scenario) -> None:
    """Per link, the share of its bandwidth that the pipeline's own messages use: all of it while one occupies it."""
    topology = _links_of(scenario)
    share = 1 / scenario.pipelines_on_link if topology is not scenario.topology else 1
    changes: dict[str, Counter[int]] = {link.name: Counter({0: 0}) for link in topology.links}
    for transfer in timeline.transfers:
        begins = transfer.start_ns
        for link in (topology.path(transfer.src_rank, transfer.dst_rank) or ()) if transfer.link else ():
            changes[link.name][begins] += 1
            changes[link.name][begins + link.occupancy_ns(transfer.payload_bytes or 0)] -= 1
            begins += link.latency_ns
    own = " by this pipeline" if scenario.pipelines_on_link > 1 else ""
    for name, change in changes.items():
        times = sorted(change)
        levels = accumulate(change[time] for time in times)
        points = [(time, level * share) for time, level in zip(times, levels, strict=True) if change[time] or not time]
        process.add_counter(f"link {name} used{own}", "ratio", points)
