"""Equalizing jobs made up with one straggler, against what can be worked out by hand.

A 1F1B pipeline over free transfers whose last stage is the slowest takes (p-1)(f+b) + the last stage's own time: its
inputs are always there. With equal stages that is (m+p-1)(f+b). The job is two such pipelines whose ranks of a stage
meet in a gradient reduction; stage 0 is through last.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.synthetic import pipeline
from helpers.thorough import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.pipeline import P2P_MODES
from tracetool.reconstruction.capture import Account
from tracetool.stragglers import stragglers_of
from tracetool.stragglers.equalize import Averages, places
from tracetool.stragglers.many import CompiledOrders, ManyReplays
from tracetool.stragglers.step import Frame, JobStep, OutsideStretch, StepReplay, numbered
from tracetool.stragglers.together import put_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline, StageProfile
    from tracetool.stragglers import Stragglers, Suspect
    from tracetool.stragglers.together import InsideWaits

P, M, F, B = 4, 6, 1000, 2000
REDUCE, OPTIMIZER = 300, 50
ENDS = REDUCE + OPTIMIZER
SLOWER = 2 * P * M * 10
"""Divides evenly over all that it is averaged over here."""


def job(
    forwards: Sequence[Sequence[Sequence[int]]],
    backwards: Sequence[Sequence[Sequence[int]]],
    *,
    number: int = 0,
    reduces: Sequence[Sequence[int]] | None = None,
) -> JobStep:
    """A step of pipelines, from durations by pipeline, stage and microbatch."""
    pipelines, frames = [], []
    for k, (forward, backward) in enumerate(zip(forwards, backwards, strict=True)):
        p = len(forward)
        made = pipeline(p, len(forward[0]), forward, backward, p2p="posted-ahead")
        ranks = tuple(replace(profile, rank=p * k + s) for s, profile in enumerate(made.ranks))
        pipelines.append(replace(made, ranks=ranks))
        frames.append(
            tuple(
                Frame(
                    tail=(
                        OutsideStretch(
                            "reducescatter dp", "collective", reduces[k][s] if reduces else REDUCE, f"dp {s}"
                        ),
                        OutsideStretch("optimizer", "compute", OPTIMIZER),
                    )
                )
                for s in range(p)
            )
        )
    step = JobStep(number, 1, tuple(pipelines), tuple(frames))
    return replace(step, observed_ns=StepReplay().step_ns(step))


def even(value: int) -> list[list[int]]:
    return [[value] * M for _ in range(P)]


def suspect(result: Stragglers, axis: str, name: object) -> Suspect:
    (found,) = [s for s in result.suspects if (s.axis, s.name) == (axis, str(name))]
    return found


def last_slowest_ns(cycle_ns: int, last_ns: int) -> int:
    return (P - 1) * cycle_ns + last_ns + ENDS


def test_one_slow_rank() -> None:
    """Rank 7, last stage of pipeline 1, takes SLOWER more for every action."""
    slow_f, slow_b = even(F), even(B)
    slow_f[-1], slow_b[-1] = [F + SLOWER] * M, [B + SLOWER] * M
    result = stragglers_of([job([even(F), slow_f], [even(B), slow_b])])
    (step,) = result.steps
    mean = F + B + 2 * SLOWER // (2 * P)
    assert step.measured_ns == step.replayed_ns == last_slowest_ns(F + B, M * (F + B + 2 * SLOWER))
    assert step.equalized_ns == (M + P - 1) * mean + ENDS
    assert result.slowdown_ratio == step.measured_ns / step.equalized_ns
    # Equalized alone, the rank takes the mean, which still is more than its neighbours take.
    for axis, name in (("rank", 7), ("stage", 3)):
        found = suspect(result, axis, name)
        assert found.without_ns == (last_slowest_ns(F + B, M * mean),)
        assert found == result.worst(found.axis)
    assert suspect(result, "pipeline", 1).without_ns == ((M + P - 1) * mean + ENDS,)
    assert suspect(result, "pipeline", 0).saved_ns == 0
    # As the only straggler among equal ranks, it costs this.
    assert suspect(result, "rank", 7).alone_ns == (last_slowest_ns(mean, M * (F + B + 2 * SLOWER)),)
    assert suspect(result, "rank", 3).alone_ns == (step.equalized_ns,)


def test_a_slow_rank_is_a_straggler_and_a_slow_stage_a_matter_of_the_cut() -> None:
    """Stage 3 is SLOWER on both pipelines, rank 7 of it as much again. Alike, both take what 3 does."""
    slow, slower = even(F), even(F)
    slow[-1], slower[-1] = [F + SLOWER] * M, [F + 2 * SLOWER] * M
    result = stragglers_of([job([slow, slower], [even(B)] * 2)])
    (step,) = result.steps
    assert step.measured_ns == last_slowest_ns(F + B, M * (F + B + 2 * SLOWER))
    assert step.alike_ns == last_slowest_ns(F + B, M * (F + B + SLOWER))
    assert step.equalized_ns == (M + P - 1) * (F + B + 3 * SLOWER // (2 * P)) + ENDS
    rank, stage = result.slow_rank, result.slow_stage
    assert rank is not None
    assert stage is not None
    assert (rank.rank, rank.stage, stage.stage) == (7, 3, 3)
    assert rank.compute_ratio == pytest.approx((F + B + 2 * SLOWER) / (F + B + SLOWER) - 1)
    assert stage.compute_ratio == pytest.approx((F + B + SLOWER) / (F + B + SLOWER / 4) - 1)
    # Uneven stages alone are no stragglers, and of one rank per stage nobody can tell.
    cut = stragglers_of([job([slow, slow], [even(B)] * 2)])
    assert cut.steps[0].alike_ns == cut.steps[0].measured_ns
    assert cut.slow_rank is not None
    assert cut.slow_rank.compute_ratio == 0
    assert stragglers_of([job([slower], [even(B)])]).slow_rank is None


def test_one_slow_rank_of_three_is_no_matter_of_the_cut() -> None:
    """Its stage takes what the median one of its ranks takes: with ranks alike, the step is that of equal stages."""
    slow = even(F)
    slow[-1] = [F + SLOWER] * M
    result = stragglers_of([job([even(F), slow, even(F)], [even(B)] * 3)])
    (step,) = result.steps
    assert step.measured_ns == last_slowest_ns(F + B, M * (F + B + SLOWER))
    assert step.alike_ns == (M + P - 1) * (F + B) + ENDS
    rank, stage = result.slow_rank, result.slow_stage
    assert rank is not None
    assert stage is not None
    assert rank.rank == 7
    assert rank.compute_ratio == pytest.approx(SLOWER / (F + B))
    assert stage.compute_ratio == 0


def test_what_costs_the_same_is_in_the_order_of_names_whatever_the_tables_order() -> None:
    step = job([even(F)] * 2, [even(B)] * 2)  # every saving is 0
    mirrored = replace(step, pipelines=step.pipelines[::-1], frames=step.frames[::-1])
    for one in (step, mirrored):
        result = stragglers_of([one])
        assert {s.saved_ns for s in result.suspects} == {0}
        assert [s.name for s in result.suspects if s.axis == "rank"] == [str(rank) for rank in range(2 * P)]


def test_one_slow_stage() -> None:
    """The last stage of both pipelines: equalizing one of its ranks alone wins nothing, the other is as slow."""
    slow_f = even(F)
    slow_f[-1] = [F + SLOWER] * M
    result = stragglers_of([job([slow_f, slow_f], [even(B), even(B)])])
    measured = last_slowest_ns(F + B, M * (F + B + SLOWER))
    mean = F + SLOWER // P
    assert result.steps[0].measured_ns == measured
    assert result.steps[0].equalized_ns == (M + P - 1) * (mean + B) + ENDS
    assert suspect(result, "stage", 3).step_ns == last_slowest_ns(F + B, M * (mean + B))
    assert [suspect(result, "rank", rank).saved_ns for rank in (3, 7)] == [0, 0]
    assert [suspect(result, "pipeline", k).saved_ns for k in (0, 1)] == [0, 0]
    assert suspect(result, "kind", "forward").step_ns == result.steps[0].equalized_ns
    assert suspect(result, "kind", "forward").share_ratio == 1
    assert suspect(result, "kind", "backward").saved_ns == suspect(result, "kind", "optimizer").saved_ns == 0
    # A fast stage that gets the mean takes longer: it is the first of the pipeline that every microbatch goes through.
    assert suspect(result, "stage", 0).saved_ns < 0


def test_one_slow_microbatch() -> None:
    """One backward of the last stage takes SLOWER more: everything after it is that much later."""
    slow_b = even(B)
    slow_b[-1][2] += SLOWER
    result = stragglers_of([job([even(F), even(F)], [even(B), slow_b])])
    (step,) = result.steps
    assert step.measured_ns == (M + P - 1) * (F + B) + SLOWER + ENDS
    assert step.equalized_ns == (M + P - 1) * (F + B + SLOWER // (2 * P * M)) + ENDS
    assert suspect(result, "kind", "backward").step_ns == step.equalized_ns
    assert suspect(result, "kind", "forward").saved_ns == 0


def test_one_slow_step_is_compared_with_the_mean_of_all_steps() -> None:
    quick, slow = (job([even(f), even(f)], [even(B), even(B)], number=n) for n, f in enumerate((F, F + 2 * SLOWER)))
    result = stragglers_of([quick, slow])
    mean = (M + P - 1) * (F + SLOWER + B) + ENDS
    assert [s.equalized_ns for s in result.steps] == [mean, mean]
    assert [s.measured_ns - mean for s in result.steps] == [-(M + P - 1) * SLOWER, (M + P - 1) * SLOWER]
    assert result.slowdown_ratio == 1
    assert suspect(result, "kind", "forward").without_ns == (mean, mean)
    assert suspect(result, "kind", "forward").share_ratio is None


def test_collectives_take_the_median_and_the_replicas_of_a_stage_meet_in_them() -> None:
    """Stage 0 is through last; its two ranks begin their reduction together, each takes its own time."""
    reduces = [[900, 100, 100, 100], [200, 100, 100, 100]]
    slow_b = even(B)
    slow_b[-1][2] += SLOWER
    result = stragglers_of([job([even(F)] * 2, [even(B), slow_b], reduces=reduces)])
    (step,) = result.steps
    window = (M + P - 1) * (F + B) + SLOWER
    assert step.measured_ns == window + 900 + OPTIMIZER
    assert suspect(result, "kind", "reducescatter dp").step_ns == window + 100 + OPTIMIZER
    assert suspect(result, "rank", 0).step_ns == window + 200 + OPTIMIZER


def framed(made: Pipeline, frames: Sequence[Frame]) -> JobStep:
    return JobStep(0, 1, (made,), (tuple(frames),))


@pytest.mark.parametrize(("late", "expected"), [(F - 1, 0), (F, 0), (F + 70, 70)])
def test_a_rank_that_is_ready_late_holds_its_first_compute_back(late: int, expected: int) -> None:
    """Two stages: the last one begins when it is ready and its input is there, and is never idle after that."""
    made = pipeline(2, M, F, B, p2p="posted-ahead")
    step = framed(made, (Frame(), Frame(head=(OutsideStretch("allgather dp", "collective", late),))))
    assert StepReplay().step_ns(step) == (M + 1) * (F + B) + expected


def test_ready_times_add_up_along_the_pipeline() -> None:
    """Rank r is ready at 40 + 2F r: every input is there before, so that the last rank alone tells the window."""
    made = pipeline(P, M, F, B, p2p="posted-ahead")
    heads = [Frame(head=(OutsideStretch("allgather dp", "collective", 40 + 2 * F * r),)) for r in range(P)]
    assert StepReplay().step_ns(framed(made, heads)) == 40 + 2 * F * (P - 1) + M * (F + B) + (P - 1) * B
    # Ready late, but not later than the delayed input of the rank before.
    heads[2] = Frame(head=(OutsideStretch("allgather dp", "collective", 40 + 3 * F),))
    heads[3] = Frame(head=(OutsideStretch("allgather dp", "collective", 40 + 4 * F),))
    assert StepReplay().step_ns(framed(made, heads)) == 40 + 4 * F + M * (F + B) + (P - 1) * B


def test_host_gaps_count_in_the_replayed_step_alone() -> None:
    made = pipeline(2, M, F, B, p2p="posted-ahead")
    gap = OutsideStretch("host gap", "host", 77)
    frames = [Frame(head=(gap,), tail=(gap, OutsideStretch("optimizer", "compute", 30)))] * 2
    (step,) = stragglers_of([framed(made, frames)]).steps
    assert step.measured_ns == step.equalized_ns == (M + 1) * (F + B) + 30
    assert step.replayed_ns == step.measured_ns + 2 * 77


def test_the_nth_collective_of_a_name_is_compared_with_the_nth() -> None:
    """Buckets differ in size: 10 and 100 on every rank, one of them once 130."""
    made = pipeline(4, M, F, B, p2p="posted-ahead")
    tails = [[10, 100], [10, 130], [10, 100], [10, 100]]
    frames = [
        Frame(tail=numbered([OutsideStretch("reducescatter dp", "collective", d) for d in tail])) for tail in tails
    ]
    step = framed(made, frames)
    (equal,) = Averages([step]).apply(step, lambda _where: True).frames
    assert [[part.duration_ns for part in frame.tail] for frame in equal] == [[10, 100]] * 4


def test_compute_in_several_stretches_is_evened_out_as_a_whole() -> None:
    made = pipeline(2, M, F, B, p2p="posted-ahead")
    tails = [(30, 60), (10, 20)]
    frames = [Frame(tail=numbered([OutsideStretch("optimizer", "compute", d) for d in tail])) for tail in tails]
    step = framed(made, frames)
    (equal,) = Averages([step]).apply(step, lambda _where: True).frames
    assert [[part.duration_ns for part in frame.tail] for frame in equal] == [[20, 40], [20, 40]]


def test_whole_and_halved_backwards_keep_their_sum() -> None:
    """As torch runs zb-h1: the first stage runs the whole backward as W, the others I and W."""
    made = pipeline(2, 2, F, B, p2p="posted-ahead")
    first, last = made.stages
    one = first.costs[ActionKind.BACKWARD][0]
    halved = {
        ActionKind.FORWARD: last.costs[ActionKind.FORWARD],
        ActionKind.BACKWARD_INPUT: (replace(one, duration_ns=900),) * 2,
        ActionKind.BACKWARD_WEIGHT: (replace(one, duration_ns=300),) * 2,
    }
    whole = {
        ActionKind.FORWARD: first.costs[ActionKind.FORWARD],
        ActionKind.BACKWARD_WEIGHT: first.costs[ActionKind.BACKWARD],
    }
    step = framed(replace(made, stages=(replace(first, costs=whole), replace(last, costs=halved))), [Frame(), Frame()])
    (equal,) = Averages([step]).apply(step, lambda _where: True).pipelines
    # Mean of 2000 and 1200, cut three to one.
    assert {c.duration_ns for c in equal.stages[0].costs[ActionKind.BACKWARD_WEIGHT]} == {1600}
    assert {c.duration_ns for c in equal.stages[1].costs[ActionKind.BACKWARD_INPUT]} == {1200}
    assert {c.duration_ns for c in equal.stages[1].costs[ActionKind.BACKWARD_WEIGHT]} == {400}


durations = st.lists(st.lists(st.integers(1, 10**6), min_size=3, max_size=3), min_size=3, max_size=3)


@settings(max_examples=25, deadline=None)
@given(st.lists(durations, min_size=2, max_size=2), st.lists(durations, min_size=2, max_size=2), st.integers(2, 9))
def test_properties_of_any_job(forwards: list[list[list[int]]], backwards: list[list[list[int]]], factor: int) -> None:
    """Equal stages give the closed form; one time for all leaves nothing to win; scaled durations scale the step."""
    step = job(forwards, backwards)
    result = stragglers_of([step])
    (times,) = result.steps
    means = [round(sum(all_of) / len(all_of)) for all_of in (_flat(forwards), _flat(backwards))]
    assert times.equalized_ns == (3 + 3 - 1) * sum(means) + ENDS
    even_step = Averages([step]).apply(step, lambda _where: True)
    again = stragglers_of([even_step])
    assert again.slowdown_ratio == 1
    assert {s.saved_ns for s in again.suspects} == {0}
    scaled = job(*([[[[d * factor for d in s] for s in k] for k in of] for of in (forwards, backwards)]))
    assert scaled.observed_ns - ENDS == factor * (step.observed_ns - ENDS)
    swapped = stragglers_of([job(forwards[::-1], backwards[::-1])])
    assert swapped.steps == result.steps


def _flat(values: list[list[list[int]]]) -> list[int]:
    return [d for k in values for s in k for d in s]


@drawn(30)
@given(
    st.lists(durations, min_size=2, max_size=2), st.lists(durations, min_size=2, max_size=2),
    st.lists(st.integers(0, 10**6), min_size=12, max_size=12), st.sampled_from(P2P_MODES), st.integers(0, 2**20),
)  # fmt: skip
def test_many_what_ifs_at_once_are_each_by_itself(
    forwards: list[list[list[int]]], backwards: list[list[list[int]]], waits: list[int], p2p: P2PMode, seed: int
) -> None:
    """Whatever is chosen, ranks ready at any time, however messages are issued: a replay of that step alone.

    So it is of ranks that share layers, too, whatever they waited for each other.
    """
    made = job(forwards, backwards)
    pipelines = [
        replace(
            one,
            p2p=p2p,
            stages=tuple(replace(s, forward_transfer_ns=waits[s.stage], backward_transfer_ns=7) for s in one.stages),
        )
        for one in made.pipelines
    ]
    frames = tuple(
        tuple(
            replace(frame, head=(OutsideStretch("allgather dp", "collective", waits[6 + 3 * k + s], f"head {s}"),))
            for s, frame in enumerate(of_pipeline)
        )
        for k, of_pipeline in enumerate(made.frames)
    )
    draw = Random(seed)  # noqa: S311 - no secret
    inside: list[InsideWaits] = [
        {
            (stage.stage, kind): tuple(draw.randrange(cost.duration_ns) for cost in costs)
            for stage in one.stages
            for kind, costs in stage.costs.items()
        }
        for one in pipelines
    ]
    shared = draw.randrange(4)
    pipelines = [
        replace(one, stages=tuple(_meeting(s) for s in one.stages[:shared]) + one.stages[shared:]) for one in pipelines
    ]
    together = put_together(pipelines, inside, Account())
    assert len(together.peers) == 2 * 2 * shared
    step = replace(made, pipelines=together.pipelines, frames=frames, own=together.own, peers=together.peers)
    averages = Averages([step])
    every = places([step])
    chosen = [{where for where in every if draw.random() < 0.5} for _ in range(5)]
    at_once = ManyReplays(step, averages, CompiledOrders()).steps_ns(
        lambda ordered: np.array([[where in one for one in chosen] for where in ordered])
    )
    alone = StepReplay()
    assert at_once == [alone.step_ns(averages.apply(step, one.__contains__)) for one in chosen]


def _meeting(stage: StageProfile) -> StageProfile:
    """A stage whose actions meet those of the other pipeline."""
    use = CollectiveUse("allreduce", (stage.stage, 3 + stage.stage), None, 1)
    return replace(stage, collectives=dict.fromkeys(stage.costs, (use,)))


def test_meetings_in_different_orders_are_replayed_one_at_a_time() -> None:
    """Two ranks that name the same collectives in turns meet nowhere: neither waits for what never comes."""
    made = pipeline(2, M, F, B, p2p="posted-ahead")
    one, other = (OutsideStretch(name, "collective", 100, name) for name in ("a", "b"))
    step = framed(made, [Frame(tail=(one, other)), Frame(tail=(other, one))])
    none = ManyReplays(step, Averages([step]), CompiledOrders()).steps_ns(
        lambda ordered: np.zeros((len(ordered), 1), bool)
    )
    assert none is None
    (times,) = stragglers_of([step]).steps
    assert times.measured_ns == StepReplay().step_ns(step) == (M + 1) * (F + B) + 200
