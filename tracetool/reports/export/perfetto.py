"""The trace for Perfetto and chrome://tracing: what was observed and every result in one file, all from time 0 on.

JSON rather than Perfetto's own protobuf: it needs no package, and every such viewer reads it.

Tracks, slices and flows of a Timeline in the Trace Event Format, which Perfetto and chrome://tracing read.

Reference: "Trace Event Format" (Google, 2016), https://perfetto.dev/docs/getting-started/other-formats. Times are
written in us with the ns as three decimals, from the integers: no float ever holds them.
"""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from tracetool.causes.cause import IN_WINDOW
from tracetool.model.action import Action, ActionKind
from tracetool.model.timeline import Op
from tracetool.model.topology import Topology
from tracetool.reports import Report, RunFacts
from tracetool.reports.answer.text import compared_results, is_baseline, short_name
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.causes.cause import Idle
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics, RankOp, Timeline, Transfer
    from tracetool.whatif.results import Answer

Event = dict[str, Any]

_SENT = {ActionKind.FORWARD: ActionKind.SEND_F, ActionKind.BACKWARD: ActionKind.SEND_B}
_RECEIVED = {ActionKind.FORWARD: ActionKind.RECV_F, ActionKind.BACKWARD: ActionKind.RECV_B}
_MOVED = {ActionKind.FORWARD: "activation", ActionKind.BACKWARD: "gradient"}


def microseconds(time_ns: int) -> Raw:
    """A time as the number that the format wants, exact to the ns."""
    return Raw(f"{time_ns // 1000}.{time_ns % 1000:03d}".encode())


@dataclass(slots=True)
class Numbers:
    """Numbers that must differ within a file: of tracks and flows. Track 0 is the kernel's idle task to Perfetto."""

    track: int = 1000
    flow: int = 0

    def next_track(self) -> int:
        """The next track's number."""
        self.track += 1
        return self.track

    def next_flow(self) -> int:
        """The next flow's number."""
        self.flow += 1
        return self.flow


@dataclass(slots=True)
class Process:
    """One Timeline as a process of the trace.

    Attributes:
        pid: Its number, which is its place from the top.
        name: What it is called.
        labels: What stands beside the name.
        numbers: Numbers of the file.
        events: What was written so far.
    """

    pid: int
    name: str
    labels: str
    numbers: Numbers
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        for what, args in (
            ("process_name", {"name": self.name}),
            ("process_labels", {"labels": self.labels}),
            ("process_sort_index", {"sort_index": self.pid}),
        ):
            self.events.append({"ph": "M", "pid": self.pid, "name": what, "args": args})

    def add_track(self, name: str) -> int:
        """A track below those before it."""
        tid = self.numbers.next_track()
        for what, args in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": tid})):
            self.events.append({"ph": "M", "pid": self.pid, "tid": tid, "name": what, "args": args})
        return tid

    def add_slice(self, tid: int, category: str, name: str, span: tuple[int, int], args: Event) -> None:
        """Something that lasted, from one time in ns to another."""
        start, end = span
        self.events.append(
            {"ph": "X", "pid": self.pid, "tid": tid, "ts": microseconds(start), "dur": microseconds(end - start),
             "cat": category, "name": name, "args": {key: value for key, value in args.items() if value is not None}}
        )  # fmt: skip

    def add_counter(self, name: str, unit: str, points: Iterable[tuple[int, float]]) -> None:
        """A value over time, which holds from each of its points on."""
        for time_ns, value in points:
            self.events.append(
                {"ph": "C", "pid": self.pid, "ts": microseconds(time_ns), "name": name, "args": {unit: value}}
            )

    def add_flow_end(self, phase: str, tid: int, time_ns: int, number: int) -> None:
        """One end of an arrow: ``s`` where it begins, ``f`` where it ends, in the slice that is open there."""
        end: Event = {"ph": phase, "pid": self.pid, "tid": tid, "ts": microseconds(time_ns),
                      "cat": "message", "name": "message", "id": number}  # fmt: skip
        self.events.append({**end, "bp": "e"} if phase == "f" else end)


def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Give each span the first lane that is free at its start: those of a lane do not overlap, and lanes are fewest.

    Args:
        spans: Start and end of each, in ns.

    Returns:
        Per span, the number of its lane.
    """
    free: list[int] = []
    lane_of = [0] * len(spans)
    for number in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[number]
        lane = next((at for at, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        lane_of[number] = lane
    return lane_of


def add_timeline(process: Process, timeline: Timeline, topology: Topology, idles: Sequence[Idle]) -> None:
    """Write a Timeline's ranks in order, each with its tracks for compute, idle time, what it receives and sends."""
    ranks = range(len(timeline.global_ranks))
    digits = len(str(max(timeline.global_ranks)))
    rows = [
        f"rank {global_rank:0{digits}d}" + (f" ({topology.dcs[rank]})" if topology.dcs else "")
        for rank, global_rank in enumerate(timeline.global_ranks)
    ]
    ops = _by_rank(ranks, ((op.rank, op) for op in timeline.ops))
    idle = _by_rank(ranks, ((gap.rank, gap) for gap in idles))
    received = _by_rank(ranks, ((t.dst_rank, t) for t in timeline.transfers))
    sent = _by_rank(ranks, ((t.src_rank, t) for t in timeline.transfers))
    source: dict[int, int] = {}
    target: dict[int, int] = {}
    for rank in ranks:
        at = _track_of(process, f"{rows[rank]} compute", [(op.start_ns, op.end_ns) for op in ops[rank]])
        for tid, op in zip(at, ops[rank], strict=True):
            _add_op(process, tid, op)
        _add_idles(process, f"{rows[rank]} idle", idle[rank])
        for what, moved, ends in (("receive", received, target), ("send", sent, source)):
            spans = [(t.start_ns, t.end_ns) for t in moved[rank]]
            tids = _track_of(process, f"{rows[rank]} {what}", spans)
            ends.update(zip(map(id, moved[rank]), tids, strict=True))
    for transfer in timeline.transfers:
        _add_transfer(process, timeline, topology, transfer, (source[id(transfer)], target[id(transfer)]))


def _by_rank(ranks: range, pairs: Iterable[tuple[int, Any]]) -> list[list[Any]]:
    of_ranks: list[list[Any]] = [[] for _ in ranks]
    for rank, value in pairs:
        of_ranks[rank].append(value)
    return of_ranks


def _track_of(process: Process, name: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Per span, the track of its lane; the first lane's name has no number."""
    lane_of = lanes(spans)
    tids = [process.add_track(name if not n else f"{name} {n + 1}") for n in range(max(lane_of, default=-1) + 1)]
    return [tids[lane] for lane in lane_of]


def _add_op(process: Process, tid: int, op: Op | RankOp) -> None:
    args: dict[str, object] = {"kind": op.kind.name.lower()}
    if isinstance(op, Op):
        args |= {"stage": op.stage, "microbatch": op.microbatch}
    process.add_slice(tid, "compute", op.text, (op.start_ns, op.end_ns), args)


def _add_idles(process: Process, name: str, idles: Sequence[Idle]) -> None:
    if not idles:
        return
    tid = process.add_track(name)
    for idle in idles:
        held, via = idle.held, idle.transfer
        args = {
            "cause": idle.cause.value,
            "held_action": held and held.text,
            "message": via and _name_of(via, _RECEIVED),
            "link": via and via.link,
        }
        process.add_slice(tid, "idle", idle.cause.value, (idle.start_ns, idle.end_ns), args)


def _name_of(transfer: Transfer, codes: dict[ActionKind, ActionKind]) -> str:
    stage = transfer.src_stage if codes is _SENT else transfer.dst_stage
    return str(Action(stage, codes[transfer.kind], transfer.microbatch))


def _add_transfer(
    process: Process, timeline: Timeline, topology: Topology, transfer: Transfer, tids: tuple[int, int]
) -> None:
    """The send, the receive, and the arrow between them."""
    span = transfer.start_ns, transfer.end_ns
    path = topology.path(transfer.src_rank, transfer.dst_rank) if transfer.link else None
    occupied = None if path is None else path.occupancy_ns(transfer.payload_bytes or 0)
    args = {
        "kind": _MOVED[transfer.kind],
        "microbatch": transfer.microbatch,
        "src_stage": transfer.src_stage,
        "dst_stage": transfer.dst_stage,
        "src_rank": timeline.global_ranks[transfer.src_rank],
        "dst_rank": timeline.global_ranks[transfer.dst_rank],
        "payload_bytes": transfer.payload_bytes,
        "link": transfer.link,
        "link_occupied_ns": occupied,
        "link_latency_ns": None if path is None else path.latency_ns,
        "send_wait_ns": transfer.start_ns - transfer.send_posted_ns,
        "receive_wait_ns": transfer.start_ns - transfer.recv_posted_ns,
    }
    number = process.numbers.next_flow()
    for tid, what, codes, phase in ((tids[0], "send", _SENT, "s"), (tids[1], "receive", _RECEIVED, "f")):
        process.add_slice(tid, what, _name_of(transfer, codes), span, args)
        process.add_flow_end(phase, tid, transfer.start_ns, number)


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
        "idle_causes": {cause.value: cause.words.meaning for cause in IN_WINDOW},
    }


def _links_of(scenario: Scenario) -> Topology:
    """The links as one pipeline has them."""
    shared = scenario.pipelines_on_link > 1 and scenario.link_sharing == "spatial"
    return scenario.topology.divided(scenario.pipelines_on_link) if shared else scenario.topology


def _add_memory(process: Process, timeline: Timeline) -> None:
    digits = len(str(max(timeline.global_ranks)))
    for rank, curve in zip(timeline.global_ranks, timeline.memory, strict=True):
        if curve is not None:
            process.add_counter(f"rank {rank:0{digits}d} memory", "bytes", curve)


def _add_link_load(process: Process, timeline: Timeline, scenario: Scenario) -> None:
    """Per link, the share of its bandwidth that the pipeline's messages and collectives use: all while one does."""
    topology = _links_of(scenario)
    share = 1 / scenario.pipelines_on_link if topology is not scenario.topology else 1
    changes: dict[str, Counter[int]] = {link.name: Counter({0: 0}) for link in topology.links}
    for transfer in timeline.transfers:
        begins = transfer.start_ns
        for link in (topology.path(transfer.src_rank, transfer.dst_rank) or ()) if transfer.link else ():
            changes[link.name][begins] += 1
            changes[link.name][begins + link.occupancy_ns(transfer.payload_bytes or 0)] -= 1
    own = [one for one in timeline.collectives if one.rank in range(len(timeline.global_ranks))]
    crossing = {(one.use.meeting or one.rank, one.end_ns): one for one in own}
    for one in crossing.values():
        for name in changes.keys() & set(one.links):
            changes[name][one.taken_ns] += 1
            changes[name][one.left_ns] -= 1
            begins += link.latency_ns
    by = " by this pipeline" if scenario.pipelines_on_link > 1 else ""
    for name, change in changes.items():
        times = sorted(change)
        levels = accumulate(change[time] for time in times)
        used = ((time, min(level, 1) * share) for time, level in zip(times, levels, strict=True))
        process.add_counter(f"link {name} used{by}", "ratio", [(t, part) for t, part in used if change[t] or not t])
