"""All pipelines of a job together: closed forms, and the replays of single pipelines where nothing joins them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import BadTopology, ScenarioError
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.job import AlikePipelines, SortedPipelines
from tracetool.model.pipeline import JobPipelines, TailPart
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.replays import replay
from tracetool.replays.joined import JobReplayed, replay_joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline

MS = 1_000_000
REDUCE, OPTIMIZER = 7 * MS, 2 * MS


def reducing(pipeline: Pipeline, first: int, apart: int, replicas: int, *, beside_ns: int = 0) -> Pipeline:
    """A pipeline on ranks from ``first`` on whose stages reduce gradients over all replicas, then run an optimizer.

    Args:
        pipeline: Its costs.
        first: Its first global rank.
        apart: From a rank to that of the same stage in the next replica.
        replicas: How many.
        beside_ns: How long before the end of the last compute the reduction began, if it did.
    """
    profiles = []
    for position, profile in enumerate(pipeline.ranks):
        group = tuple(position + apart * n for n in range(replicas))
        use = CollectiveUse(
            "allreduce", group, 1000, REDUCE, meeting=f"dp {group}", group="dp", number=1,
            lead_ns=beside_ns, after_ns=REDUCE - beside_ns if beside_ns else 0,
        )  # fmt: skip
        reduces = TailPart(ActionKind.REDUCE_GRAD, REDUCE - beside_ns, collectives=() if beside_ns else (use,))
        tail = (reduces, TailPart(ActionKind.OPTIMIZER, OPTIMIZER))
        profiles.append(replace(profile, rank=first + position, tail=tail, overlapped=(use,) if beside_ns else ()))
    return replace(pipeline, ranks=tuple(profiles))


def joined(
    pipelines: Sequence[Pipeline], kinds: Sequence[int], what_if: Scenario | None = None, **slow: float
) -> JobReplayed:
    ranks = {int(name.removeprefix("rank")): ratio for name, ratio in slow.items()}
    known = SortedPipelines(tuple(AlikePipelines((kind,), 0.0) for kind in sorted(set(kinds))), slower=ranks)
    job = JobPipelines(known, tuple(pipelines), tuple(range(len(pipelines))), tuple(kinds), 0)
    return replay_joined(job, pipelines[0].observed, what_if or Scenario())


@pytest.mark.parametrize("beside_ns", [0, 3 * MS])
def test_a_step_is_the_slowest_pipeline_and_the_reduction(beside_ns: int) -> None:
    """1F1B of p stages and m microbatches takes (m + p - 1) (F + B), with a slower last stage m (F' + B') and the rest.

    A reduction that begins beside the last backward is over that much earlier.
    """
    p, m, forward, backward, more = 4, 8, MS, 2 * MS, 1.5
    usual = synthetic.pipeline(p, m, forward, backward)
    times = [round(ns * more) for ns in (forward, backward)]
    slower = synthetic.pipeline(p, m, [*[forward] * (p - 1), times[0]], [*[backward] * (p - 1), times[1]])
    pair = [reducing(one, n * p, p, 2, beside_ns=beside_ns) for n, one in enumerate((usual, slower))]
    done = joined(pair, (0, 1))
    window = (m + p - 1) * (forward + backward)
    slow = m * sum(times) + (p - 1) * (forward + backward)
    assert [time.window_ns for time in done.times] == [window, slow]
    # The first stage ends last and every rank of the usual pipeline waits for its fellow of the slow one.
    assert measure(done.replayed.timeline).step_ns == slow + REDUCE - beside_ns + OPTIMIZER
    assert done.times[0].step_ns == done.times[1].step_ns == slow + REDUCE - beside_ns + OPTIMIZER
    assert (done.place, done.rank) == (1, None)
    assert done.replayed.timeline.global_ranks == tuple(range(p, 2 * p))
    assert joined(pair, (0, 1), rank7=0.5, rank1=0.9).rank == 7, "rank 1 is of the pipeline that waits"


def test_ranks_of_a_stage_meet_when_the_last_of_them_has_come() -> None:
    """Rank by rank: a reduction begins with the later of the two that it joins."""
    p, m = 3, 4
    left = synthetic.pipeline(p, m, [5 * MS, MS, MS], [5 * MS, MS, MS])
    right = synthetic.pipeline(p, m, [MS, MS, 6 * MS], [MS, MS, 3 * MS])
    pair = [reducing(one, n * p, p, 2) for n, one in enumerate((left, right))]
    ends = []
    for one in pair:
        timeline = replay(one, one.observed).timeline
        ends.append([max(op.end_ns for op in timeline.computes() if op.rank == rank) for rank in range(p)])
    expected = max(max(both) for both in zip(*ends, strict=True)) + REDUCE + OPTIMIZER
    done = joined(pair, (0, 1))
    assert max(time.step_ns for time in done.times) == expected
    by_rank = {op.rank: op.start_ns for op in done.replayed.timeline.ops if op.kind is ActionKind.OPTIMIZER}
    assert list(by_rank.values()) == [max(both) + REDUCE for both in zip(*ends, strict=True)]


@given(
    st.integers(2, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, REDUCE),
    st.lists(st.integers(1, 20), min_size=8, max_size=8),
)  # fmt: skip
def test_equal_pipelines_are_one_of_them_to_the_ns(
    p: int, m: int, count: int, beside_ns: int, costs: list[int]
) -> None:
    one = synthetic.pipeline(p, m, [c * 1001 for c in costs[:p]], [c * 2003 for c in costs[-p:]], transfer_ns=77)
    many = [reducing(one, n * p, p, count, beside_ns=beside_ns) for n in range(count)]
    alone = replay(many[0], one.observed).timeline
    done = joined(many, [0] * count).replayed.timeline
    assert (done.ops, done.transfers) == (alone.ops, alone.transfers)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 900), st.booleans())
def test_equal_pipelines_share_links_as_copies_of_one_do(
    p: int, m: int, count: int, latency: int, spatial: bool
) -> None:
    """What ``pipelines_on_link`` replays, under the pipelines' own names."""
    one = synthetic.pipeline(p, m, 100, 200, payload_bytes=90, tail_ns=50, p2p="in-order")
    many = [replace(one, ranks=tuple(replace(r, rank=r.rank + n * p) for r in one.ranks)) for n in range(count)]
    map_of = synthetic.places([1, p - 1], latency_ns=latency)
    every = tuple((rank + n * p, dc) for n in range(count) for rank, dc in enumerate(map_of.dcs))
    how = Scenario(replace(map_of, rank_dcs=every, pipelines=count), link_sharing="spatial" if spatial else "temporal")
    alone = replay(one, one.observed, how).timeline
    assert measure(joined(many, [0] * count, how).replayed.timeline).step_ns == measure(alone).step_ns


def test_a_pipeline_within_a_dc_takes_no_part_in_the_links() -> None:
    p, m = 2, 4
    one = synthetic.pipeline(p, m, 100, 200, payload_bytes=90, p2p="in-order")
    pair = [one, replace(one, ranks=tuple(replace(rank, rank=rank.rank + p) for rank in one.ranks))]
    map_of = synthetic.places([1, 1], latency_ns=500)
    places = ((0, "dc0"), (1, "dc1"), (2, "dc1"), (3, "dc1"))
    how = Scenario(replace(map_of, rank_dcs=places))
    done = joined(pair, (0, 0), how)
    inside = measure(replay(one, one.observed).timeline)
    across = measure(replay(one, one.observed, Scenario(map_of)).timeline)
    assert [time.window_ns for time in done.times] == [across.window_ns, inside.window_ns]
    assert across.window_ns > inside.window_ns
    assert done.place == 0


def test_what_cannot_be_replayed_together_is_refused() -> None:
    one = synthetic.pipeline(2, 2, 100, 200, payload_bytes=90)
    pair = [one, replace(one, ranks=tuple(replace(rank, rank=rank.rank + 2) for rank in one.ranks))]
    map_of = replace(synthetic.places([1, 1]), rank_dcs=((0, "dc0"), (1, "dc1"), (2, "dc0")))
    with pytest.raises(BadTopology, match="does not say where rank 3 of another pipeline is"):
        joined(pair, (0, 0), Scenario(map_of))
    with pytest.raises(ScenarioError, match="follows from the map"):
        joined(pair, (0, 0), Scenario(Topology(), pipelines=2))
