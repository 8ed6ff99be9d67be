"""What must hold of every replay, whatever the costs: found with random pipelines, never with expected numbers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import BYTE_PER_NS, pipeline, places, scenario
from helpers.thorough import drawn
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tracetool.errors import BadTopology, ScheduleDeadlock
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BLOCKING, P2P_MODES
from tracetool.model.schedule import PipelineShape, schedule_from_csv
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import Replayed, replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.timeline import Transfer

quick = drawn(150, suppress_health_check=[HealthCheck.too_slow])

Durations = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """One random question; payloads are also occupancies, at a byte per ns."""

    p: int
    m: int
    forward_ns: Durations
    backward_ns: Durations
    payload_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    topology: Topology
    schedule: str
    extra_forwards: tuple[int, ...] | None
    mode: P2PMode

    def run(self, mode: P2PMode | None = None, topology: Topology | None = None) -> Replayed:
        measured = pipeline(
            self.p,
            self.m,
            self.forward_ns,
            self.backward_ns,
            payload_bytes=self.payload_bytes,
            backward_payload_bytes=self.gradient_bytes,
            transfer_ns=self.transfer_ns,
        )
        order = build_schedule(self.schedule, PipelineShape(self.p, self.m), extra_forwards=self.extra_forwards)
        return replay(measured, order, scenario(topology or self.topology, mode or self.mode))

    def window_ns(self, mode: P2PMode | None = None, topology: Topology | None = None) -> int:
        return measure(self.run(mode, topology).timeline).window_ns


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    modes: tuple[P2PMode, ...] = P2P_MODES,
    scattered: bool = False,
    most_boundaries: int = 4,
) -> Case:
    """Random costs and places; ``scattered`` lets DCs come back further down the pipeline."""
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    time = st.integers(1, 60)

    def per_stage(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=p, max_size=p)))

    def per_action() -> Durations:
        stages = st.lists(st.lists(time, min_size=m, max_size=m), min_size=p, max_size=p)
        return tuple(tuple(stage) for stage in draw(stages))

    latency = draw(st.integers(0, 150))
    if scattered:
        seats = per_stage(st.integers(0, 2))
        names = sorted({f"dc{seat}" for seat in seats})
        links = tuple(Link(a, b, BYTE_PER_NS, latency) for a in names for b in names if a != b)
        topology = Topology(tuple(f"dc{seat}" for seat in seats), links)
    else:
        cuts = draw(st.sets(st.integers(1, max(1, p - 1)), max_size=most_boundaries))
        edges = sorted({0, p} | {cut for cut in cuts if cut < p})
        topology = places([b - a for a, b in pairwise(edges)], latency_ns=latency)
    mode = draw(st.sampled_from(modes))
    # Blocking batches cannot run more than one extra forward (see the deadlock test below).
    schedule = draw(st.sampled_from(["1f1b", "gpipe"] if mode in BLOCKING else ["1f1b", "gpipe", "geopipe"]))
    extra = tuple(sorted(per_stage(st.integers(0, 3)), reverse=True)) if schedule == "geopipe" else None
    return Case(
        p,
        m,
        per_action(),
        per_action(),
        per_stage(st.integers(0, 90)),
        per_stage(st.integers(0, 90)),
        per_stage(st.integers(0, 40)),
        topology,
        schedule,
        extra,
        mode,
    )


def delay_ns(case: Case, src: int, kind: ActionKind) -> int:
    """Shortest time from producer to consumer of a message that stage ``src`` sends."""
    dst = src + 1 if kind is ActionKind.FORWARD else src - 1
    path = case.topology.path(src, dst)
    payload = case.payload_bytes if kind is ActionKind.FORWARD else case.gradient_bytes
    return case.transfer_ns[src] + (0 if path is None else payload[src] + path.latency_ns)


@quick
@given(cases(scattered=True))
def test_window_covers_the_busiest_rank_and_the_chain_of_every_microbatch(case: Case) -> None:
    window = case.window_ns()
    assert window >= max(sum(case.forward_ns[s]) + sum(case.backward_ns[s]) for s in range(case.p))
    crossing = sum(delay_ns(case, s, ActionKind.FORWARD) for s in range(case.p - 1)) + sum(
        delay_ns(case, s, ActionKind.BACKWARD) for s in range(1, case.p)
    )
    for j in range(case.m):
        chain = sum(case.forward_ns[s][j] + case.backward_ns[s][j] for s in range(case.p))
        assert window >= chain + crossing


@quick
@given(cases(scattered=True))
def test_every_action_runs_once_for_its_own_time_and_ranks_do_one_thing_at_a_time(case: Case) -> None:
    done = case.run()
    computes = done.timeline.computes()
    lengths = {(op.stage, op.kind, op.microbatch): op.duration_ns for op in computes}
    expected = {}
    for s in range(case.p):
        for j in range(case.m):
            expected[s, ActionKind.FORWARD, j] = case.forward_ns[s][j]
            expected[s, ActionKind.BACKWARD, j] = case.backward_ns[s][j]
    assert lengths == expected
    assert len(computes) == len(expected)
    for rank, order in enumerate(done.schedule.orders):
        ops = [op for op in computes if op.rank == rank]
        assert [(op.stage, op.kind, op.microbatch) for op in sorted(ops, key=lambda op: op.start_ns)] == list(order)
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(ops))


@quick
@given(cases(scattered=True))
def test_data_is_sent_after_it_was_made_and_used_after_it_arrived(case: Case) -> None:
    timeline = case.run().timeline
    ops = {(op.stage, op.kind, op.microbatch): op for op in timeline.computes()}
    sent = set()
    for t in timeline.transfers:
        made = ops[t.src_stage, t.kind, t.microbatch].end_ns
        assert made <= t.send_posted_ns <= t.start_ns
        assert t.recv_posted_ns <= t.start_ns
        assert t.end_ns - t.start_ns == delay_ns(case, t.src_stage, t.kind)
        assert ops[t.dst_stage, t.kind, t.microbatch].start_ns >= t.end_ns
        path = case.topology.path(t.src_rank, t.dst_rank)
        assert t.link == (None if path is None else path.name)
        sent.add((t.src_stage, t.dst_stage, t.kind, t.microbatch))
    hops = {(s, s + 1, ActionKind.FORWARD, j) for s in range(case.p - 1) for j in range(case.m)}
    hops |= {(s + 1, s, ActionKind.BACKWARD, j) for s in range(case.p - 1) for j in range(case.m)}
    assert sent == hops
    assert len(timeline.transfers) == len(hops)


@quick
@given(cases(scattered=True))
def test_links_serve_one_message_at_a_time_first_come_first_served(case: Case) -> None:
    by_link: dict[str, list[Transfer]] = defaultdict(list)
    for t in case.run().timeline.transfers:
        if t.link is not None:
            by_link[t.link].append(t)
    for messages in by_link.values():
        free = 0
        ready_before = 0
        for t in sorted(messages, key=lambda t: (t.start_ns, t.end_ns)):
            ready = max(t.send_posted_ns, t.recv_posted_ns)
            payload = case.payload_bytes if t.kind is ActionKind.FORWARD else case.gradient_bytes
            assert t.start_ns == max(free, ready)
            assert ready >= ready_before
            free, ready_before = t.start_ns + payload[t.src_stage], ready


@quick
@given(cases())
def test_a_channel_for_each_edge_is_no_slower_than_one_for_each_rank(case: Case) -> None:
    # Every wait per edge is also one in order; on consecutive DCs a link carries one edge, in one fixed order.
    assert case.window_ns("posted-ahead") <= case.window_ns("per-edge") <= case.window_ns("in-order")


@quick
@given(cases())
def test_free_links_take_no_longer(case: Case) -> None:
    free = Topology(case.topology.dcs, tuple(replace(k, latency_ns=0) for k in case.topology.links))
    instant = case.topology.without_delays()
    assert case.window_ns(topology=instant) <= case.window_ns(topology=free) <= case.window_ns()


@quick
@given(cases(most_boundaries=1), st.data())
def test_no_shorter_when_one_action_takes_longer(case: Case, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, case.p - 1))
    microbatch = data.draw(st.integers(0, case.m - 1))
    longer_ns = data.draw(st.integers(1, 200))

    def grown(durations: Durations) -> Durations:
        rows = [list(row) for row in durations]
        rows[stage][microbatch] += longer_ns
        return tuple(map(tuple, rows))

    if data.draw(st.booleans()):
        slower = replace(case, forward_ns=grown(case.forward_ns))
    else:
        slower = replace(case, backward_ns=grown(case.backward_ns))
    assert slower.window_ns() >= case.window_ns()


@quick
@given(cases(most_boundaries=1), st.integers(1, 8), st.integers(0, 150))
def test_no_longer_when_the_link_gets_faster_or_nearer(case: Case, factor: int, nearer_ns: int) -> None:
    def with_links(bandwidth: int, latency_ns: int) -> int:
        links = tuple(replace(k, bandwidth_bytes_per_s=bandwidth, latency_ns=latency_ns) for k in case.topology.links)
        return case.window_ns(topology=Topology(case.topology.dcs, links))

    assume(case.topology.links)
    latency = case.topology.links[0].latency_ns
    now = with_links(BYTE_PER_NS, latency)
    assert with_links(BYTE_PER_NS * factor, latency) <= now
    assert with_links(BYTE_PER_NS, max(0, latency - nearer_ns)) <= now


@quick
@given(cases(), st.integers(2, 1000))
def test_scaling_every_time_scales_the_result(case: Case, factor: int) -> None:
    def scaled(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(v * factor for v in values)

    slow = replace(
        case,
        forward_ns=tuple(map(scaled, case.forward_ns)),
        backward_ns=tuple(map(scaled, case.backward_ns)),
        payload_bytes=scaled(case.payload_bytes),
        gradient_bytes=scaled(case.gradient_bytes),
        transfer_ns=scaled(case.transfer_ns),
        topology=Topology(
            case.topology.dcs, tuple(replace(k, latency_ns=k.latency_ns * factor) for k in case.topology.links)
        ),
    )
    starts = [op.start_ns * factor for op in case.run().timeline.computes()]
    assert [op.start_ns for op in slow.run().timeline.computes()] == starts


@quick
@given(cases(scattered=True))
def test_the_same_question_gets_the_same_answer(case: Case) -> None:
    assert case.run() == case.run()


def test_dcs_that_exchange_messages_need_a_link() -> None:
    """Two stages per rank in a loop, a DC per rank: stage 2 in dc2 sends to stage 3 in dc0, with no link between."""
    rows = [(rank, rank + 3) for rank in range(3)]
    looped = schedule_from_csv("".join(f"{low}F0,{high}F0,{high}B0,{low}B0\n" for low, high in rows))
    six_stages = pipeline(6, 1, 10, 20)
    measured = replace(six_stages, ranks=six_stages.ranks[:3], observed=looped, p2p="posted-ahead")
    with pytest.raises(BadTopology, match=r"dc2-dc0|dc0-dc2"):
        replay(measured, looped, scenario(places([1, 1, 1], latency_ns=1000)))


@pytest.mark.parametrize("extra", [2, 3])
def test_blocking_batches_cannot_run_two_extra_forwards(extra: int) -> None:
    # Worked out by hand for two ranks: rank 0 cannot end "send F2" before rank 1 posts its receive, which it does
    # together with "receive F1 | send B0" still open, whose other end rank 0 posts only after "send F2".
    measured = pipeline(2, 8, 1, 2)
    order = build_schedule("geopipe", PipelineShape(2, 8), extra_forwards=(extra, 0))
    with pytest.raises(ScheduleDeadlock, match=r"rank 0.*send F2 .*\n.*rank 1.*send B0 "):
        replay(measured, order, scenario(p2p="grouped"))
