"""Replay against a second simulator, written for these tests: fixed points over start times, no event queue.

It shares nothing with the replay engine: orders, calls and links are worked out here from their descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import BYTE_PER_NS, pipeline, places, replayed, scenario, window_ns
from helpers.thorough import spread

from tracetool.model.topology import Topology
from tracetool.network.link import Link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.model.pipeline import P2PMode, Pipeline

Op = tuple[int, str, int]  # stage, "F" or "B", microbatch
Hop = tuple[int, str, int]  # sending stage, "F" or "B", microbatch
Step = tuple[Op | None, tuple[Hop, ...]]  # an operation, or a call that makes these transfers


@dataclass(frozen=True)
class Net:
    """A pipeline's costs; a message over a link occupies it for its payload in ns, then needs the latency.

    What it takes inside a DC it takes over a link as well, after that.
    """

    p: int
    m: int
    compute_ns: Mapping[Op, int]
    payload_ns: Mapping[tuple[int, str], int]
    transfer_ns: int
    dcs: tuple[str, ...]
    latency_ns: int

    def measured(self) -> Pipeline:
        def durations(kind: str) -> list[list[int]]:
            return [[self.compute_ns[s, kind, j] for j in range(self.m)] for s in range(self.p)]

        return pipeline(
            self.p,
            self.m,
            durations("F"),
            durations("B"),
            payload_bytes=[self.payload_ns[s, "F"] for s in range(self.p)],
            backward_payload_bytes=[self.payload_ns[s, "B"] for s in range(self.p)],
            transfer_ns=self.transfer_ns,
        )

    def topology(self) -> Topology:
        names = sorted(set(self.dcs))
        links = tuple(Link(a, b, BYTE_PER_NS, self.latency_ns) for a in names for b in names if a != b)
        return Topology(self.dcs, links)


def receiver(hop: Hop) -> int:
    return hop[0] + 1 if hop[1] == "F" else hop[0] - 1


def hop_into(op: Op, p: int) -> Hop | None:
    """The message an operation waits for."""
    stage, kind, j = op
    if kind == "F":
        return (stage - 1, "F", j) if stage > 0 else None
    return (stage + 1, "B", j) if stage < p - 1 else None


def hop_out_of(op: Op, p: int) -> Hop | None:
    """The message an operation makes."""
    return op if 0 <= receiver(op) < p else None


def order(stage: int, m: int, warm_up: int) -> list[Op]:
    """So many forwards, then a forward and a backward in turn, then the backwards left."""
    forwards, ops = min(m, warm_up), [(stage, "F", j) for j in range(min(m, warm_up))]
    for j in range(m):
        if forwards < m:
            ops.append((stage, "F", forwards))
            forwards += 1
        ops.append((stage, "B", j))
    return ops


def deliver(net: Net, ready: Mapping[Hop, int]) -> dict[Hop, tuple[int, int]]:
    """When the bytes of each message have left and when they are there; links serve in order of readiness."""
    free: dict[tuple[str, str], int] = {}
    times = {}
    for hop in sorted(ready, key=lambda hop: (ready[hop], hop)):
        pair = net.dcs[hop[0]], net.dcs[receiver(hop)]
        if pair[0] == pair[1]:
            times[hop] = (ready[hop] + net.transfer_ns,) * 2
        else:
            free[pair] = max(ready[hop], free.get(pair, 0)) + net.payload_ns[hop[0], hop[1]]
            times[hop] = free[pair], free[pair] + net.latency_ns + net.transfer_ns
    return times


def posted_ahead_starts(net: Net, orders: list[list[Op]]) -> dict[Op, int]:
    """An operation starts when the one before it on its rank has ended and its data is there."""
    starts = dict.fromkeys(net.compute_ns, 0)
    while True:
        made = {hop: starts[op] + net.compute_ns[op] for op in starts if (hop := hop_out_of(op, net.p))}
        arrived = deliver(net, made)
        again = {}
        for ops in orders:
            free = 0
            for op in ops:
                hop = hop_into(op, net.p)
                again[op] = max(free, arrived[hop][1] if hop else 0)
                free = again[op] + net.compute_ns[op]
        if again == starts:
            return starts
        starts = again


def single_operations(net: Net, orders: list[list[Op]]) -> list[list[Op | tuple[str, Hop]]]:
    """What each rank does in turn: rounds over the ranks, each of which runs an operation whose message was sent.

    What it makes it sends at once, and the peer posts the receive then, behind all it has done by that turn.
    """
    left = [list(ops) for ops in orders]
    programs: list[list[Op | tuple[str, Hop]]] = [[] for _ in orders]
    sent: set[Hop] = set()
    while any(left):
        for rank, ops in enumerate(left):
            if not ops or ((needed := hop_into(ops[0], net.p)) and needed not in sent):
                continue
            op = ops.pop(0)
            programs[rank].append(op)
            if hop := hop_out_of(op, net.p):
                sent.add(hop)
                programs[rank].append(("send", hop))
                programs[receiver(hop)].append(("receive", hop))
    return programs


def single_starts(net: Net, orders: list[list[Op]], *, by_edge: bool) -> dict[Op, int]:
    """A message moves once both sides have posted it: after their computes, and after what its channel had before.

    Over a link a channel is free for the next one once both sides of a message have met, inside a DC when it is there.
    A rank has one channel, or one for each peer and direction.
    """
    programs = single_operations(net, orders)
    starts = dict.fromkeys(net.compute_ns, 0)
    met: dict[Hop, int] = {}
    times: dict[Hop, tuple[int, int]] = {}
    while True:
        again, posts = dict[Op, int](), dict[Hop, int]()
        for rank, program in enumerate(programs):
            free, channels = 0, dict[object, int]()
            for item in program:
                if isinstance(item[1], tuple):
                    hop = item[1]
                    channel = (hop[0], receiver(hop)) if by_edge else rank
                    posts[hop] = max(posts.get(hop, 0), free, channels.get(channel, 0))
                    crosses = net.dcs[hop[0]] != net.dcs[receiver(hop)]
                    over = met.get(hop, 0) if crosses else times.get(hop, (0, 0))[1]
                    channels[channel] = max(posts[hop], over)
                else:
                    needed = hop_into(item, net.p)
                    again[item] = max(free, times.get(needed, (0, 0))[1] if needed else 0)
                    free = again[item] + net.compute_ns[item]
        if (again, posts) == (starts, met):
            return starts
        starts, met, times = again, posts, deliver(net, posts)


def program_of_1f1b(stage: int, net: Net) -> list[Step]:
    """A rank's steps in blocking rendezvous, as Megatron issues them without interleaving.

    Warm-up: recv F | F | send F. Steady: F | {send F, recv B} | B | {send B, recv next F}, the last pair with send B
    alone. Drain: recv B | B | send B.
    """
    warm_up = min(net.m, net.p - stage - 1)
    steps: list[Step] = []

    def run(kind: str, j: int) -> None:
        steps.append(((stage, kind, j), ()))

    def call(*hops: Hop) -> None:
        hops = tuple(hop for hop in hops if 0 <= hop[0] < net.p and 0 <= receiver(hop) < net.p)
        if hops:
            steps.append((None, hops))

    for j in range(warm_up):
        call((stage - 1, "F", j))
        run("F", j)
        call((stage, "F", j))
    if warm_up < net.m:
        call((stage - 1, "F", warm_up))
    for j in range(net.m - warm_up):
        run("F", warm_up + j)
        call((stage, "F", warm_up + j), (stage + 1, "B", j))
        run("B", j)
        more = warm_up + j + 1 < net.m
        call((stage, "B", j), *([(stage - 1, "F", warm_up + j + 1)] if more else []))
    for j in range(net.m - warm_up, net.m):
        call((stage + 1, "B", j))
        run("B", j)
        call((stage, "B", j))
    return steps


def grouped_window_ns(net: Net) -> int:
    """A transfer starts when both sides have posted it; a call ends when all its transfers have.

    For the receiver that is when the data is there; for the sender when its bytes have left, whether or not the
    latency has passed.
    """
    programs = [program_of_1f1b(stage, net) for stage in range(net.p)]
    ends = [[0] * len(program) for program in programs]
    while True:
        posted: dict[Hop, int] = {}
        for stage, program in enumerate(programs):
            for i, (_, hops) in enumerate(program):
                for hop in hops:
                    posted[hop] = max(posted.get(hop, 0), ends[stage][i - 1] if i else 0)
        times = deliver(net, posted)
        again: list[list[int]] = []
        for stage, program in enumerate(programs):
            row: list[int] = []
            for op, hops in program:
                before = row[-1] if row else 0
                over = [times[hop][0 if hop[0] == stage else 1] for hop in hops]
                row.append(before + net.compute_ns[op] if op else max(over))
            again.append(row)
        if again == ends:
            return max(
                ends[stage][i] for stage, program in enumerate(programs) for i, (op, _) in enumerate(program) if op
            )
        ends = again


def random_net(seed: int, *, contiguous: bool = False, occupancy: bool = True, one_dc: bool = False) -> Net:
    """Coarse times would let messages become ready together, where the order on a link is anybody's choice."""
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    p, m = random.randint(1, 6), random.randint(1, 12)
    keys = [(s, kind) for s in range(p) for kind in "FB"]
    cuts = sorted(random.sample(range(1, p), random.randint(0, p - 1)))
    seats = [sum(s >= cut for cut in cuts) for s in range(p)]
    if one_dc:
        seats = [0] * p
    elif not contiguous:
        seats = [random.randrange(3) for _ in range(p)]
    return Net(
        p,
        m,
        {(s, kind, j): random.randint(1, 10**6) for s, kind in keys for j in range(m)},
        {key: random.randint(1, 10**6) if occupancy else 0 for key in keys},
        random.choice([0, random.randint(1, 10**6)]),
        tuple(f"dc{seat}" for seat in seats),
        random.choice([0, random.randint(1, 3 * 10**6)]),
    )


@pytest.mark.parametrize(
    ("mode", "linked", "first_backward_ns", "window"),
    [
        ("in-order", False, 30, 37),
        ("in-order", True, 25, 33),
        ("per-edge", False, 25, 33),
        ("per-edge", True, 25, 33),
        ("posted-ahead", False, 22, 33),
        ("posted-ahead", True, 22, 33),
    ],
)
def test_a_waiting_receive_blocks_what_its_channel_has_to_do_after_it(
    mode: P2PMode, linked: bool, first_backward_ns: int, window: int
) -> None:
    """1F1B of two microbatches on two ranks, f = 10 and 1, b = 1, messages of 5 ns; worked out by hand.

    Rank 0 computes F0 0-10, F1 10-20; rank 1 F0 15-16, B0 16-17. In order, rank 1's channel holds recv F0, recv F1,
    send B0, since rank 0's turn for F1 comes before rank 1's for B0. Inside a DC F1 moves 20-25 and B0 after it 25-30;
    over a link the channel is free again once both sides have met at 20, so B0 moves 20-25. Per edge B0 waits for F1 no
    longer, but rank 0 posts its receive at 20 as well, after its F1: 20-25. With receives posted ahead it moves 17-22.
    Then F1 25-26 and B1 26-27 on rank 1, whose gradient moves 27-32 both ways. In order inside a DC rank 0 receives it
    after B0 30-31, from 31 to 36; over a link after B0 25-26, from 27 to 32. B1 on rank 0 takes the last ns.
    """
    what_if = scenario(places([1, 1]) if linked else None, mode)
    measured = pipeline(2, 2, [10, 1], [1, 1], payload_bytes=5, transfer_ns=0 if linked else 5)
    timeline = replayed(measured, "1f1b", what_if).timeline
    starts = {(op.rank, op.kind.value, op.microbatch): op.start_ns for op in timeline.computes()}
    assert starts[0, "B", 0] == first_backward_ns
    assert max(op.end_ns for op in timeline.computes()) == window


def test_a_channel_sends_one_message_after_another_inside_a_dc() -> None:
    """GPipe with f = 1 and messages of 7 ns; worked out by hand.

    F0 moves 1-8. F1 is made at 2: with receives posted ahead it moves 2-9; else rank 1 posts its receive after its own
    F0 at 9, on whichever communicator, so that it moves 9-16.
    """
    measured = pipeline(2, 2, 1, 1, transfer_ns=7)
    cases: list[tuple[P2PMode, list[int]]] = [
        ("in-order", [8, 16]),
        ("per-edge", [8, 16]),
        ("posted-ahead", [8, 9]),
    ]
    for mode, starts in cases:
        timeline = replayed(measured, "gpipe", scenario(p2p=mode)).timeline
        assert [op.start_ns for op in timeline.computes() if op.rank == 1 and op.kind.value == "F"] == starts


# Seeds make nets of other sizes, links and costs, here and below: what one net in ten shows takes all of them.
@spread("seed", range(60), 12)
def test_starts_with_receives_posted_ahead(seed: int) -> None:
    net = random_net(seed)
    extra = tuple(sorted((Random(seed).randrange(5) for _ in range(net.p)), reverse=True))  # noqa: S311
    for schedule, warm_ups in {
        "1f1b": [net.p - s - 1 for s in range(net.p)],
        "gpipe": [net.m] * net.p,
        "geopipe": [net.p - s - 1 + extra[s] for s in range(net.p)],
    }.items():
        done = replayed(
            net.measured(),
            schedule,
            scenario(net.topology(), "posted-ahead"),
            extra_forwards=extra if schedule == "geopipe" else None,
        )
        starts = {(op.stage, op.kind.value, op.microbatch): op.start_ns for op in done.timeline.computes()}
        assert starts == posted_ahead_starts(net, [order(s, net.m, warm_ups[s]) for s in range(net.p)]), schedule


@pytest.mark.parametrize("mode", ["in-order", "per-edge"])
@spread("seed", range(60), 12)
def test_starts_of_single_operations(seed: int, mode: P2PMode) -> None:
    net = random_net(seed, contiguous=True)
    extra = tuple(sorted((Random(seed).randrange(5) for _ in range(net.p)), reverse=True))  # noqa: S311
    done = replayed(net.measured(), "geopipe", scenario(net.topology(), mode), extra_forwards=extra)
    starts = {(op.stage, op.kind.value, op.microbatch): op.start_ns for op in done.timeline.computes()}
    orders = [order(s, net.m, net.p - s - 1 + extra[s]) for s in range(net.p)]
    assert starts == single_starts(net, orders, by_edge=mode == "per-edge")


def grouped_replay_ns(net: Net) -> int:
    return window_ns(net.measured(), "1f1b", scenario(net.topology(), "grouped"))


@spread("seed", range(30), 6)
def test_grouped_window_within_a_dc(seed: int) -> None:
    net = random_net(seed, one_dc=True)
    assert grouped_replay_ns(net) == grouped_window_ns(net)


@spread("seed", range(30), 6)
def test_grouped_window_over_latency(seed: int) -> None:
    net = random_net(seed, contiguous=True, occupancy=False)
    assert grouped_replay_ns(net) == grouped_window_ns(net)


@spread("seed", range(10), 5)
def test_grouped_window_over_occupancy_with_equal_stages_in_two_dcs(seed: int) -> None:
    net = random_net(seed, contiguous=True)
    f, b, tau = (Random(seed).randint(1, 10**6) for _ in range(3))  # noqa: S311
    equal = replace(
        net,
        dcs=tuple(f"dc{int(s >= (net.p + 1) // 2)}" for s in range(net.p)),
        compute_ns={op: f if op[1] == "F" else b for op in net.compute_ns},
        payload_ns=dict.fromkeys(net.payload_ns, tau),
        transfer_ns=0,
    )
    assert grouped_replay_ns(equal) == grouped_window_ns(equal)


@spread("seed", range(30), 6)
def test_grouped_window_over_occupancy(seed: int) -> None:
    net = random_net(seed, contiguous=True)
    assert grouped_replay_ns(net) == grouped_window_ns(net)


def test_a_blocking_send_over_a_link_holds_its_sender_until_the_bytes_have_left() -> None:
    """Worked out by hand: two ranks in two DCs, two microbatches, f = 10 and 1, b = 5 and 1, occupancy 5, no latency.

    Rank 0: F0 0-10, send F0 10-15, F1 15-25, {send F1, recv B0} 25-30, B0 30-35, recv B1 35-40, B1 40-45.
    Rank 1: recv F0 0-15, F0 15-16, B0 16-17, {send B0, recv F1} 17-30, F1 30-31, B1 31-32, send B1 32-40.
    """
    measured = pipeline(2, 2, [10, 1], [5, 1], payload_bytes=5)
    assert window_ns(measured, "1f1b", scenario(places([1, 1]), "grouped")) == 45


def test_a_link_costs_a_blocking_batch_what_the_same_time_within_a_dc_does() -> None:
    """A hop of 5 ns is a hop of 5 ns: as a measured transfer, or as a link that a message occupies for 5 ns."""
    costs = ([10, 1], [5, 1])
    inside = window_ns(pipeline(2, 2, *costs, transfer_ns=5), "1f1b", scenario(p2p="grouped"))
    across = window_ns(pipeline(2, 2, *costs, payload_bytes=5), "1f1b", scenario(places([1, 1]), "grouped"))
    assert across == inside
