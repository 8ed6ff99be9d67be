"""Tracks, slices and flows of a Timeline in the Trace Event Format, which Perfetto and chrome://tracing read.

Reference: "Trace Event Format" (Google, 2016), https://perfetto.dev/docs/getting-started/other-formats. Times are
written in us with the ns as three decimals, from the integers: no float ever holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from tracetool.model.action import Action, ActionKind
from tracetool.model.timeline import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.causes.idle import Idle
    from tracetool.model.timeline import RankOp, Timeline, Transfer
    from tracetool.model.topology import Topology

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
    found = [0] * len(spans)
    for number in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[number]
        lane = next((at for at, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        found[number] = lane
    return found


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
    found: list[list[Any]] = [[] for _ in ranks]
    for rank, value in pairs:
        found[rank].append(value)
    return found


def _track_of(process: Process, name: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Per span, the track of its lane; the first lane's name has no number."""
    found = lanes(spans)
    tids = [process.add_track(name if not n else f"{name} {n + 1}") for n in range(max(found, default=-1) + 1)]
    return [tids[lane] for lane in found]


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
