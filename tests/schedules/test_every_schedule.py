"""What must hold of every schedule, whatever the shape: found with random shapes and costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from helpers.order_simulator import ends, seat, simulate
from helpers.synthetic import equal_stages
from helpers.thorough import drawn
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tracetool.errors import ScheduleDeadlock, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BLOCKING, P2P_MODES
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape, Schedule, schedule_from_csv
from tracetool.replays import replay
from tracetool.schedules import SCHEDULES, build_schedule

NAMES = [name for name in SCHEDULES.names() if name != "observed"]
F, B, I, W = (ActionKind(code) for code in "FBIW")  # noqa: E741


@st.composite
def built(draw: st.DrawFn) -> Schedule | None:
    """A schedule of a random shape, or None if there is none for it."""
    name = draw(st.sampled_from(NAMES))
    kind = SCHEDULES.get(name)
    chunks = draw(st.sampled_from([kind.least_chunks, kind.least_chunks, kind.least_chunks + 1, 4]))
    placement = draw(st.sampled_from([kind.placement, kind.placement, kind.placement, "loop", "v"]))
    shape = PipelineShape(draw(st.integers(1, 6)), draw(st.integers(1, 16)), chunks, placement)
    extra, group = None, None
    if name == "geopipe":
        extra = tuple(sorted(draw(st.lists(st.integers(0, 3), min_size=shape.ranks, max_size=shape.ranks)))[::-1])
    if name == "interleaved":
        group = draw(st.none() | st.integers(1, 8))
    try:
        return build_schedule(name, shape, extra_forwards=extra, group=group)
    except UnsupportedShape as refusal:
        refused = refusal
    assert name in refused.message
    assert refused.hint
    return None


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("greedy", "optimal")])
def test_what_a_schedule_asks_of_backwards_is_among_its_constraints(name: str) -> None:
    kind = SCHEDULES.get(name)
    order = build_schedule(name, PipelineShape(4, 8, kind.least_chunks, kind.placement))
    splits = any(a.kind is I for of_rank in order.orders for a in of_rank)
    assert splits == ("a trace whose backward is or can be split" in kind.constraints)


@drawn(300, suppress_health_check=[HealthCheck.too_slow])
@given(built(), st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_each_action_runs_once_and_no_mode_deadlocks(schedule: Schedule | None, durations: list[int]) -> None:
    """Blocking batches are Megatron's for 1F1B: another order may be refused in them, naming who waits."""
    if schedule is None:
        return
    f, i, w = durations
    costs = {F: f, I: i, W: w, B: i + w}
    shape = schedule.shape
    half = shape.microbatches // 2
    for mode in P2P_MODES:
        try:
            timeline = replay(equal_stages(schedule, costs), schedule, Scenario(p2p=mode)).timeline
        except ScheduleDeadlock:
            assert mode in BLOCKING
            assert not schedule.blocking
            continue
        ran = Counter((op.rank, op.stage, op.kind, op.microbatch) for op in timeline.computes())
        assert set(ran.values()) == {1}
        for stage in range(shape.stages):
            microbatches = range(shape.microbatches)
            if shape.placement == "bidirectional":
                microbatches = range(half) if stage < shape.ranks else range(half, shape.microbatches)
            for j in microbatches:
                kinds = {kind for kind in ActionKind if (seat(shape, stage), stage, kind, j) in ran}
                assert kinds in ({F, B}, {F, I, W})
        assert len(ran) == sum(len(order) for order in schedule.orders)
        if mode == "posted-ahead":
            cost = {kind.value: duration for kind, duration in costs.items()}
            assert max(op.end_ns for op in timeline.computes()) == simulate(schedule, cost).window


@drawn(100)
@given(built())
def test_messages_stay_within_a_copy_of_the_model(schedule: Schedule | None) -> None:
    if schedule is None:
        return
    shape = schedule.shape
    firsts, lasts = ends(shape)
    assert {s for s in range(shape.stages) if shape.previous(s) is None} == firsts
    assert {s for s in range(shape.stages) if shape.next(s) is None} == lasts
    costs = {F: 1, I: 1, W: 1, B: 2}
    transfers = replay(equal_stages(schedule, costs), schedule, Scenario(p2p="posted-ahead")).timeline.transfers
    for t in transfers:
        assert t.dst_stage - t.src_stage == (1 if t.kind is F else -1)
        assert t.src_stage not in (lasts if t.kind is F else firsts)
        assert (t.src_rank, t.dst_rank) == (seat(shape, t.src_stage), seat(shape, t.dst_stage))


@drawn(100)
@given(built())
def test_csv_reads_back_with_what_runs_as_one(schedule: Schedule | None) -> None:
    if schedule is None or schedule.shape.ranks == 1 or schedule.shape.microbatches == 1:
        return
    back = schedule_from_csv(schedule.to_csv())
    # With one stage per rank nothing turns round.
    shape = replace(schedule.shape, placement="loop") if schedule.shape.chunks == 1 else schedule.shape
    assert (back.shape, back.orders, back.overlaps) == (shape, schedule.orders, schedule.overlaps)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("dualpipe", PipelineShape(4, 6, 2, "bidirectional"), "even number from 8 on"),
        ("dualpipe", PipelineShape(3, 8, 2, "bidirectional"), "even number of ranks"),
        ("dualpipe", PipelineShape(4, 8), "two copies of one stage per rank"),
        ("dualpipev", PipelineShape(4, 7, 2, "v"), "8 or more"),
        ("dualpipev", PipelineShape(4, 8, 2), "v placement"),
        ("chimera", PipelineShape(4, 6, 2, "bidirectional"), "multiple of 4"),
        ("hanayo", PipelineShape(4, 6, 2, "v"), "multiple of 4"),
        ("hanayo", PipelineShape(4, 8, 3, "v"), "even number of chunks"),
        ("interleaved-zero-bubble", PipelineShape(4, 9, 2), "multiple of 4"),
        ("looped-bfs", PipelineShape(4, 8), "at least 2 stages per rank"),
        ("v-half", PipelineShape(4, 8, 3, "v"), "2 stages per rank"),
        ("eager-1f1b", PipelineShape(4, 8, 2), "one stage per rank"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_what_would(name: str, shape: PipelineShape, wanted: str) -> None:
    with pytest.raises(UnsupportedShape) as caught:
        build_schedule(name, shape)
    assert wanted in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("group", [3, 4, 6])
def test_a_group_that_does_not_fit_is_refused_with_those_that_do(group: int) -> None:
    """Nine microbatches on four ranks: 9 mod 5 is 4 (at least p), 9 mod 9 is 0; 9 mod 4 is 1."""
    with pytest.raises(UnsupportedShape) as caught:
        build_schedule("interleaved", PipelineShape(4, 9, 2), group=group)
    assert caught.value.hint == "groups that fit: 5, 9"
