"""Collectives over links: against a ring simulated part by part, and against hand-made cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.notices import codes, texts
from helpers.recorded import rebuilt
from helpers.synthetic import pipeline
from hypothesis import given
from hypothesis import strategies as st

from tracetool.costs.over_links import over_links
from tracetool.errors import BadTopology, ScenarioError
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.notice import NoticeCode
from tracetool.model.pipeline import TailPart
from tracetool.model.scenario import LINK_SHARINGS, LinkSharing, Scenario
from tracetool.model.timeline import Op
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay
from tracetool.replays.scenarios import replay_many
from tracetool.schedules import build_schedule
from tracetool.whatif.remarks import collective_notes

MB = 10**6


def links(*dcs: str, bandwidth: int = 10**9, latency: int = 0) -> tuple[Link, ...]:
    """Both ways between neighbours in a row; 1 GB/s moves one byte per ns."""
    pairs = [pair for a, b in pairwise(dcs) for pair in ((a, b), (b, a))]
    return tuple(Link(src, dst, bandwidth, latency) for src, dst in pairs)


def simulated_ring_ns(dcs: list[str], payload: int, bandwidth: int, latency: int, rounds: int) -> int:
    """A ring in which part k starts at rank k and hops on; an edge over a link serves one part at a time."""
    ranks = len(dcs)
    part_ns = payload * 10**9 // ranks // bandwidth
    free = [0] * ranks
    ready = [0] * ranks  # per part
    for hop in range(rounds * (ranks - 1)):
        for part in sorted(range(ranks), key=lambda k: ready[k]):
            edge = (part + hop) % ranks
            if dcs[edge] != dcs[(edge + 1) % ranks]:
                start = max(ready[part], free[edge])
                free[edge] = start + part_ns
                ready[part] = start + part_ns + latency
    return max(ready)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.integers(0, 50),
    st.sampled_from([("allreduce", 2), ("_allgather_base", 1), ("reduce_scatter_tensor", 1)]),
)
def test_a_ring_takes_between_its_parts_and_their_sum(sizes: list[int], latency_ms: int, kind: tuple[str, int]) -> None:
    """Bytes and latency partly overlap in a ring; the model adds them, so it is never short."""
    names = [f"dc{n}" for n in range(len(sizes))]
    dcs = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    ring = (*links(*names), *links(names[-1], names[0])) if len(names) > 2 else links(*names)
    payload, latency = 12 * MB * len(dcs), latency_ms * MB
    topology = Topology(links=tuple(replace(link, latency_ns=latency) for link in ring))
    use = CollectiveUse(kind[0], tuple(range(len(dcs))), payload, 1)
    found = over_links(use, topology, dict(enumerate(dcs)))
    assert found is not None
    simulated = simulated_ring_ns(dcs, payload, 10**9, latency, kind[1])
    assert max(found.occupied_ns, found.latency_ns) <= simulated <= found.occupied_ns + found.latency_ns


def test_two_ranks_apart_pay_exactly_two_exchanges_of_halves() -> None:
    """2 (V / 2 / bandwidth + latency): the textbook all-reduce of two ranks."""
    topology = Topology(links=links("a", "b", latency=3 * MB))
    found = over_links(CollectiveUse("allreduce", (4, 9), 8 * MB, 1), topology, {4: "a", 9: "b"})
    assert found is not None
    assert found.duration_ns == 2 * (4 * MB + 3 * MB)


def test_a_row_of_dcs_closes_its_ring_over_the_one_between() -> None:
    """a-b-c with no link a-c: the edge back from c to a goes over b, so links carry two edges' bytes."""
    topology = Topology(links=links("a", "b", "c", latency=MB))
    found = over_links(CollectiveUse("allreduce", (0, 1, 2), 3 * MB, 1), topology, {0: "a", 1: "b", 2: "c"})
    assert found is not None
    # Ring a→b→c→(b)→a: each of four directed links carries one edge: 2·(2/3)·3 MB = 4 MB.
    assert found.occupied_ns == 4 * MB
    # Four hops in a row: two whole-ms edges and the two-ms edge, and the dearest of the others once more.
    assert found.latency_ns == (1 + 1 + 2 + 2) * MB


def test_all_to_all_sends_each_pair_its_part_straight() -> None:
    """Two DCs of 3 and 1 ranks: 3 x 1 parts of 4 MB / 4 each way."""
    topology = Topology(links=links("a", "b", latency=MB))
    places = {0: "a", 1: "a", 2: "a", 3: "b"}
    found = over_links(CollectiveUse("all_to_all", (0, 1, 2, 3), 4 * MB, 1), topology, places)
    assert found is not None
    assert (found.occupied_ns, found.latency_ns) == (3 * MB, MB)


def test_what_is_unknown_is_refused_and_kept_with_a_note() -> None:
    topology = Topology(("a", "a"), links("a", "b"), rank_dcs=((0, "a"), (7, "b")))
    places = dict(topology.rank_dcs)
    nameless = CollectiveUse("coalesced", (0, 7), MB, 1)
    with pytest.raises(ScenarioError, match="moves its bytes"):
        over_links(nameless, topology, places)
    with pytest.raises(ScenarioError, match="size is unknown"):
        over_links(CollectiveUse("allreduce", (0, 7), None, 1), topology, places)
    with pytest.raises(BadTopology, match="no link b-c"):
        over_links(CollectiveUse("allreduce", (7, 8), MB, 1), topology, {7: "b", 8: "c"})
    pipe = pipeline(2, 4, 100, 200)
    pipe = replace(pipe, ranks=tuple(replace(rank, overlapped=(nameless,)) for rank in pipe.ranks))
    assert texts(collective_notes(pipe, Scenario(topology))) == [
        "coalesceds over 2 ranks cross DCs but take what was measured, a lower bound: how it moves its bytes is not "
        "known"
    ]


P, M, F, B = 2, 4, 100 * MB, 200 * MB
WINDOW = (M + P - 1) * (F + B)


def reduced(lead_ns: int | None, own_ns: int = 5 * MB) -> tuple[int, int]:
    """Window and step of 1F1B whose ranks 0 and 1 reduce 80 MB with ranks 2 and 3 of another DC over 1 GB/s, 3 ms.

    The reduction comes after the last compute, or begins ``lead_ns`` ahead of its end.
    """
    pipe = pipeline(P, M, F, B, p2p="posted-ahead")
    ranks = []
    for rank in pipe.ranks:
        use = CollectiveUse("allreduce", (rank.rank, rank.rank + 2), 80 * MB, own_ns, lead_ns=lead_ns or 0)
        part = TailPart(ActionKind.REDUCE_GRAD, own_ns, collectives=(use,))
        ranks.append(replace(rank, tail=(part,)) if lead_ns is None else replace(rank, overlapped=(use,)))
    pipe = replace(pipe, ranks=tuple(ranks))
    topology = Topology(("a", "a"), links("a", "b", latency=3 * MB), rank_dcs=((0, "a"), (1, "a"), (2, "b"), (3, "b")))
    schedule = build_schedule("1f1b", pipe.observed.shape)
    timeline = replay(pipe, schedule, Scenario(topology)).timeline
    (many,) = replay_many(pipe, schedule, [Scenario(topology)])
    window = max(op.end_ns for op in timeline.computes())
    step = max(op.end_ns for op in timeline.ops)
    assert (many.window_ns, many.step_ns) == (window, step)
    return window, step


def test_reductions_take_their_turns_on_the_link() -> None:
    """Rank 1 is through b ahead of rank 0, so its 80 ms over the link and 6 ms of latency are over by then."""
    assert reduced(None) == (WINDOW, WINDOW + 80 * MB + 6 * MB)


def test_a_reduction_beside_computes_adds_what_outlasts_them() -> None:
    """Begun 50 ms ahead, 86 ms over the link outlast rank 0's last compute by 36 ms; ahead by 86 ms, by nothing."""
    assert reduced(50 * MB) == (WINDOW, WINDOW + 36 * MB)
    assert reduced(86 * MB) == (WINDOW, WINDOW)


def test_collectives_of_actions_lengthen_each_of_them() -> None:
    """Each forward waits for two all-reduces of 10 MB: 2 (10 + 6 - 1) ms more than the 1 ms each took as measured."""
    pipe = pipeline(P, M, F, B, p2p="posted-ahead")
    use = CollectiveUse("allreduce", (0, 2), 10 * MB, MB, count=2.0)
    stages = tuple(replace(stage, collectives={ActionKind.FORWARD: (use,)}) for stage in pipe.stages)
    pipe = replace(pipe, stages=stages)
    topology = Topology(("a", "a"), links("a", "b", latency=3 * MB), rank_dcs=((0, "a"), (2, "b")))
    schedule = build_schedule("1f1b", pipe.observed.shape)
    apart = replay(pipe, schedule, Scenario(topology)).timeline
    assert max(op.end_ns for op in apart.ops) == (M + P - 1) * (F + B + 30 * MB)
    together = replay(pipe, schedule, Scenario(replace(topology, rank_dcs=((0, "a"), (2, "a"), (9, "b"))))).timeline
    assert max(op.end_ns for op in together.ops) == WINDOW


def test_recorded_actions_wait_for_two_all_reduces_per_layer() -> None:
    """Tensor parallelism: one after attention and one after the MLP, of 8 layers per stage, forward and backward."""
    found = rebuilt("tp2pp2_1f1b_m8")
    for stage, ranks in zip(found.pipeline.stages, ((0, 1), (2, 3)), strict=True):
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
            (use,) = stage.collectives[kind]
            assert (use.operation, use.group_ranks, use.count) == ("allreduce", ranks, 16.0)
    assert not any(rank.overlapped for rank in found.pipeline.ranks)


def met(
    dcs: list[str],
    latency: int = 3 * MB,
    *,
    payload: int = 240 * MB,
    beside_ns: int | None = None,
    scenario: Scenario | None = None,
) -> list[tuple[int, int]]:
    """(End of its last compute, of all) per rank of 1F1B whose ranks, one per DC given, all-reduce over 1 GB/s.

    The all-reduce comes last, or begins ``beside_ns`` ahead of the end of each rank's last backward.
    """
    ranks = len(dcs)
    pipe = pipeline(ranks, M, F, B, p2p="per-edge")
    use = CollectiveUse("allreduce", tuple(range(ranks)), payload, MB, lead_ns=beside_ns or 0, meeting="all")
    part = TailPart(ActionKind.REDUCE_GRAD, MB, "all", (use,))
    profiles = (replace(r, tail=(part,)) if beside_ns is None else replace(r, overlapped=(use,)) for r in pipe.ranks)
    pipe = replace(pipe, ranks=tuple(profiles))
    names = list(dict.fromkeys(dcs))
    ring = (*links(*names), *links(names[-1], names[0])) if len(names) > 2 else links(*names)
    free = tuple(replace(link, latency_ns=latency) for link in ring)
    asked = replace(scenario or Scenario(), topology=Topology(tuple(dcs), free))
    timeline = replay(pipe, build_schedule("1f1b", pipe.observed.shape), asked).timeline
    (many,) = replay_many(pipe, build_schedule("1f1b", pipe.observed.shape), [asked])
    assert many.step_ns == max(op.end_ns for op in timeline.ops)
    by_rank = [[op for op in timeline.ops if op.rank == rank] for rank in range(ranks)]
    return [(max(op.end_ns for op in ops if isinstance(op, Op)), max(op.end_ns for op in ops)) for ops in by_rank]


@pytest.mark.parametrize(
    "dcs", [["a", "b"], ["a", "a", "b"], ["a", "b", "c"], ["a", "a", "b", "b"], ["a", "b", "b", "c"]]
)
@pytest.mark.parametrize("beside_ns", [None, 50 * MB])
def test_members_that_meet_share_one_transfer_and_end_together(dcs: list[str], beside_ns: int | None) -> None:
    """2 (n - 1) / n of the tensor over each edge once, from when the last rank came, and 2 (n - 1) hops round the ring.

    The latencies of the hops over links: of n consecutive hops one per DC, so 2 rounds less the two that are spared.
    """
    ranks = len(dcs)
    lasts = met(dcs, beside_ns=beside_ns)
    came = max(end for end, _ in lasts) - (beside_ns or 0)
    crossing = [dcs[n] != dcs[(n + 1) % ranks] for n in range(ranks)]
    hops = max(sum((crossing * 3)[first : first + 2 * (ranks - 1)]) for first in range(ranks))
    moved = 2 * (ranks - 1) * 240 * MB // ranks
    assert {end for _, end in lasts} == {came + moved + hops * 3 * MB}


@pytest.mark.parametrize("pipelines", [2, 3])
def test_each_of_several_pipelines_has_a_collective_of_its_own_over_the_link(pipelines: int) -> None:
    """All members in one pipeline: as many transfers as pipelines, one after another, and the last one counts."""
    alone = met(["a", "b"], 0)
    shared = met(["a", "b"], 0, scenario=Scenario(pipelines=pipelines))
    assert shared[0][1] - alone[0][1] == (pipelines - 1) * 240 * MB
    spatial = met(["a", "b"], 0, scenario=Scenario(pipelines=pipelines, link_sharing="spatial"))
    assert spatial[0][1] - alone[0][1] == pytest.approx((pipelines - 1) * 240 * MB, abs=10)


@pytest.mark.parametrize(("pipelines", "transfers"), [(1, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize("sharing", LINK_SHARINGS)
def test_pipelines_that_meet_move_their_bytes_once(pipelines: int, transfers: int, sharing: LinkSharing) -> None:
    """A group with a rank of each of two pipelines: its all-reduce is one for both of them."""
    pipe = pipeline(P, M, F, B, p2p="per-edge")
    uses = [CollectiveUse("allreduce", (r, r + 2), 80 * MB, MB, meeting=f"dp {r}") for r in range(P)]
    parts = [TailPart(ActionKind.REDUCE_GRAD, MB, None, (use,)) for use in uses]
    # Rank 0 is through last, by far: its all-reduce has the link to itself.
    pipe = replace(pipe, ranks=tuple(replace(r, tail=(part,)) for r, part in zip(pipe.ranks, parts, strict=True)))
    topology = Topology(("a", "a"), links("a", "b"), rank_dcs=((0, "a"), (1, "a"), (2, "b"), (3, "b")))
    asked = Scenario(topology, pipelines=pipelines, link_sharing=sharing)
    timeline = replay(pipe, build_schedule("1f1b", pipe.observed.shape), asked).timeline
    assert max(op.end_ns for op in timeline.ops) == WINDOW + transfers * 80 * MB


def test_how_ranks_that_are_not_replayed_are_taken_is_said() -> None:
    """Ranks of another pipeline in a tail's group, and four pipelines whose actions wait for sums of two of them."""
    pipe = pipeline(P, M, F, B, p2p="per-edge")
    use = CollectiveUse("allreduce", (0, 2), 80 * MB, MB)
    part = TailPart(ActionKind.REDUCE_GRAD, MB, None, (use,))
    tail = replace(pipe, ranks=tuple(replace(rank, tail=(part,)) for rank in pipe.ranks))
    topology = Topology(("a", "a"), links("a", "b"), rank_dcs=((0, "a"), (1, "a"), (2, "b")))
    (note,) = texts(collective_notes(tail, Scenario(topology)))
    assert note.endswith("ranks of other pipelines are taken to come to them no later than this one's")
    stages = tuple(replace(stage, collectives={ActionKind.FORWARD: (use,)}) for stage in pipe.stages)
    awaited = replace(pipe, stages=stages)
    for pipelines, notes in ((1, 1), (2, 1), (4, 2)):
        found = collective_notes(awaited, Scenario(topology, pipelines=pipelines))
        assert len(found) == notes
    assert codes(found) == [NoticeCode.COLLECTIVES_RESCALED, NoticeCode.COLLECTIVES_ALONE]
    own = replace(use, group_ranks=(0, 1))
    inside = replace(pipe, ranks=tuple(replace(r, tail=(replace(part, collectives=(own,)),)) for r in pipe.ranks))
    (note,) = texts(collective_notes(inside, Scenario(Topology(("a", "b"), links("a", "b")))))
    assert note.endswith("(a model that no recording checked)")
