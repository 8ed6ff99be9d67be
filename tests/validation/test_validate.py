"""Rows of measured steps predicted from pipelines whose times can be worked out by hand.

Equal stages of forward f and backward b without delays take (m + p - 1)(f + b), in 1F1B and GPipe alike; one
microbatch alone takes p (f + b) and, for each boundary that a link joins, two crossings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from helpers.notices import codes, texts
from helpers.recorded import data, rebuilt
from helpers.synthetic import found, pipeline
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import ScenarioError
from tracetool.model.notice import NoticeCode
from tracetool.model.pipeline import LayerCosts
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import RankLink, Topology, between_ranks
from tracetool.network.link import Link
from tracetool.reconstruction.capture.coordinates import Coordinates
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.validation import Sources, Validation, validate
from tracetool.validation.measured import MeasuredStep, Measurements, read_measurements
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline, StageProfile

P, M, F, B, TAIL = 4, 8, 1_000_000, 2_000_000, 500_000
CYCLE = F + B
IDEAL = (M + P - 1) * CYCLE + TAIL


def step(name: str = "row", **changed: Any) -> MeasuredStep:
    basis = {"name": name, "schedule": "1f1b", "microbatches": M, "pipeline_ranks": P, "step_ms": IDEAL / 1e6}
    return msgspec.convert({**basis, **changed}, MeasuredStep)


def recorded(**changed: Any) -> Pipeline:
    return pipeline(P, M, F, B, tail_ns=TAIL, p2p="posted-ahead", **changed)


def run(
    *steps: MeasuredStep,
    of: Pipeline | None = None,
    memory: Pipeline | None = None,
    model: dict[str, Any] | None = None,
) -> Validation:
    sources = Sources(found(of or recorded()), None if memory is None else found(memory))
    return validate(sources, Measurements(steps, model or {}))


def predicted_ns(*steps: MeasuredStep, of: Pipeline | None = None) -> list[int]:
    done = run(*steps, of=of)
    assert [row.reason for row in done.rows] == [None] * len(steps)
    return [row.prediction.metrics.step_ns for row in done.rows if row.prediction]


def reason(row: MeasuredStep, **how: Any) -> str:
    done = run(row, **how)
    assert (done.not_predicted, done.mape_ratio, done.max_error_ratio, done.kendall_tau) == (1, None, None, None)
    assert done.rows[0].error_ratio is None
    assert done.rows[0].reason is not None
    return done.rows[0].reason


def test_schedules_and_microbatches_of_each_row() -> None:
    assert predicted_ns(
        step(),
        step(schedule="gpipe"),
        step(microbatches=16),
        step(microbatches=1),
        step(schedule="geopipe", extra_forwards=[2, 2, 0, 0]),
    ) == [IDEAL, IDEAL, 19 * CYCLE + TAIL, 4 * CYCLE + TAIL, IDEAL]


def test_errors_and_their_summary() -> None:
    done = run(
        step(step_ms=IDEAL / 1e6 / 1.1),  # predicted 10 % too slow
        step(step_ms=IDEAL / 1e6 / 0.8, schedule="gpipe"),  # 20 % too fast
        step(step_ms=None),
        step(schedule="nothing"),
        step(step_ms=30.0, microbatches=7),  # 10 cycles and the tail: 30.5 ms
    )
    errors = [row.error_ratio for row in done.rows]
    assert errors == pytest.approx([0.1, -0.2, None, None, 0.5 / 30])
    assert done.mape_ratio == pytest.approx((0.1 + 0.2 + 0.5 / 30) / 3)
    assert done.max_error_ratio == pytest.approx(0.2)
    assert done.not_predicted == 1
    # Measured 30.45, 41.9, 30.0; predicted 33.5, 33.5, 30.5: two pairs agree, one is tied: 2 / sqrt(3 * 2).
    assert done.kendall_tau == pytest.approx(2 / 6**0.5)
    assert done.recorded_ns == done.replayed_ns == IDEAL


@given(
    latencies=st.lists(st.integers(0, 50), min_size=3, max_size=3),
    joined=st.lists(st.booleans(), min_size=3, max_size=3),
    turned=st.booleans(),
)
def test_links_join_the_named_ranks_alone_each_with_its_own_delay(
    latencies: list[int], joined: list[bool], turned: bool
) -> None:
    # 1 MB at 8 Gbit/s (1 byte/ns) occupies a link for 1 ms; such as (0, 1) and (2, 3), but not (1, 2).
    links = [
        {"between_pipeline_ranks": [r + turned, r + 1 - turned], "latency_ms": latency, "bandwidth_gbit_per_s": 8}
        for r, latency in enumerate(latencies)
        if joined[r]
    ]
    crossings = sum(2 * (1 + latency) for latency, is_joined in zip(latencies, joined, strict=True) if is_joined)
    measured = recorded(payload_bytes=1_000_000)
    assert predicted_ns(step(microbatches=1, links=links), of=measured) == [P * CYCLE + TAIL + crossings * 1_000_000]


def test_a_link_serves_one_message_at_a_time_in_each_direction() -> None:
    """GPipe of two ranks: the link is the bottleneck of the forwards, and of the backwards."""
    occupied_ms, latency_ms = 5, 3
    link = {"between_pipeline_ranks": [0, 1], "latency_ms": latency_ms, "bandwidth_gbit_per_s": 8}
    measured = pipeline(2, 3, F, B, payload_bytes=occupied_ms * 1_000_000, p2p="posted-ahead")
    row = step(schedule="gpipe", pipeline_ranks=2, microbatches=3, links=[link])
    # F0 (1), three messages in turn (15), latency (3), F2 on rank 1 (1); B0 (2), three in turn, latency, B2 on rank 0.
    assert predicted_ns(row, of=measured) == [(1 + 15 + 3 + 1 + 2 + 15 + 3 + 2) * 1_000_000]


@given(st.integers(0, 20), st.integers(1, 100), st.sampled_from(["1f1b", "gpipe"]), st.integers(0, 2))
def test_a_single_linked_pair_is_what_two_dcs_are_where_only_neighbours_talk(
    latency_ms: int, gbit: int, name: str, after: int
) -> None:
    measured = recorded(payload_bytes=10_000_000)
    dcs = tuple("a" if rank <= after else "b" for rank in range(P))
    bandwidth, latency = gbit * 125_000_000, latency_ms * 1_000_000
    whole = Topology(dcs, (Link("a", "b", bandwidth, latency), Link("b", "a", bandwidth, latency)))
    pair = between_ranks(P, [RankLink(after, after + 1, bandwidth, latency)])
    schedule = build_schedule(name, measured.observed.shape)
    ops = [replay(measured, schedule, Scenario(topology=t)).timeline.ops for t in (whole, pair)]
    assert ops[0] == ops[1]
    assert whole.boundaries() == pair.boundaries() == (after,)


def test_ranks_that_no_link_joins_are_as_measured_also_round_the_end() -> None:
    pair = between_ranks(4, [RankLink(1, 2, 1, 1)])
    assert pair.path(3, 0) is None
    assert pair.path(0, 3) is None
    assert pair.path(2, 1) == (Link("rank2", "rank1", 1, 1),)
    free = pair.without_delays()
    assert free.path(3, 0) is None
    assert free.path(2, 1) == ()
    assert free.boundaries() == (1,)
    assert between_ranks(4, []) == Topology()


def with_layers(measured: Pipeline, count: int) -> Pipeline:
    """The same pipeline with its stages known to be so many equal layers."""

    def cut(stage: StageProfile) -> StageProfile:
        layer = {k: tuple(replace(c, duration_ns=c.duration_ns // count) for c in cs) for k, cs in stage.costs.items()}
        none = {k: tuple(replace(c, duration_ns=0) for c in cs) for k, cs in stage.costs.items()}
        return replace(stage, layers=LayerCosts(none, (layer,) * count, none))

    return replace(measured, stages=tuple(map(cut, measured.stages)))


@pytest.mark.parametrize(("told", "v"), [({}, 2), ({"chunks": 2}, 2), ({"virtual": 4}, 4), ({"chunks": 4}, 4)])
def test_interleaved_re_cuts_the_stages(told: dict[str, Any], v: int) -> None:
    """Closed form (Narayanan et al.): m (f + b) of work and a bubble of (p - 1)(f + b) / v."""
    of = with_layers(recorded(), 4)
    (row,) = run(step(schedule="interleaved", **told), of=of).rows
    assert row.prediction is not None
    assert row.prediction.metrics.step_ns == M * CYCLE + (P - 1) * CYCLE // v + TAIL
    (remark,) = texts(row.prediction.remarks, NoticeCode.STAGES_CUT)
    assert f" into {v} " in remark


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schedule": "nothing"}, "no schedule named 'nothing'"),
        ({"schedule": "gpip"}, "Did you mean 'gpipe'"),
        ({"p2p": "batched"}, "no p2p mode named 'batched'"),
        ({"pipeline_ranks": 2}, "pipeline_ranks is 2 in the row and 4 in the Run"),
        ({"schedule": "geopipe"}, "does not say how many extra_forwards"),
        ({"schedule": "geopipe", "extra_forwards": [1, 0]}, "one number of extra forwards per pipeline rank"),
        ({"extra_forwards": [1, 1, 0, 0]}, "1f1b has no extra forwards"),
        ({"schedule": "interleaved"}, "layers of stage 0 are unknown"),
        ({"chunks": 2}, "the row has 2 stages per rank, 1f1b runs on 1"),
        ({"schedule": "zb-h1"}, "does not tell what"),
        ({"schedule": "csv:\0"}, "no file has a name like"),
        ({"schedule": "csv:none.csv"}, "cannot read the schedule file none.csv"),
        (
            {"links": [{"between_pipeline_ranks": [3, 4], "latency_ms": 1, "bandwidth_gbit_per_s": 1}]},
            "joins pipeline ranks 3 and 4",
        ),
        (
            {"links": [{"between_pipeline_ranks": [1, 1], "latency_ms": 1, "bandwidth_gbit_per_s": 1}]},
            "joins pipeline ranks 1 and 1",
        ),
        (
            {
                "links": [
                    {"between_pipeline_ranks": pair, "latency_ms": 1, "bandwidth_gbit_per_s": 1}
                    for pair in ([0, 1], [1, 0])
                ]
            },
            "given more than once",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_says_why(changed: dict[str, Any], said: str) -> None:
    assert said in reason(step(**changed))


def test_rows_of_another_model_or_parallelism_are_not_predicted() -> None:
    of = with_layers(recorded(payload_bytes=2 * 512 * 1024 * 2), 4)
    model = {"layers": 16, "mbs": 2, "seq": 512, "h": 1024, "dtype": "bfloat16"}
    assert run(step(), of=of, model=model).not_predicted == 0
    assert run(step(), of=of, model={**model, "layers": [3, 4, 4, 5]}).not_predicted == 0
    assert run(step(), of=of, model={"layers": "many", "h": None}).not_predicted == 0
    assert "layers is 24 in the row and 16 in the Run" in reason(step(), of=of, model={**model, "layers": 24})
    larger = reason(step(model={"mbs": 4}), of=of, model=model)
    assert "4.00 MiB (4 x 512 x 1024 bfloat16) in the file and 2.00 MiB in the Run" in larger
    places = tuple(
        Coordinates(
            rank=r,
            pipeline=0,
            pp=r,
            dp=0,
            tp=0,
            cp=0,
            ep=0,
            recorded=True,
            copied_from=None,
            evidence="metadata",
            confidence=1.0,
        )
        for r in range(P)
    )
    known = Sources(replace(found(of), coordinates=places))
    for field, two in (("tensor_parallel", step(tensor_parallel=2)), ("data_parallel", step(data_parallel=2))):
        (row,) = validate(known, Measurements((two,), model)).rows
        assert row.reason == f"{field} is 2 in the row and 1 in the Run."


@pytest.mark.parametrize("memory_apart", [False, True])
def test_peaks_are_those_of_the_order_wherever_memory_is_from(memory_apart: bool) -> None:
    """1F1B holds min(m, p - i) microbatches on stage i, GPipe m, geopipe as many more as its warm-up is longer."""
    held, static = 10, 500
    with_memory = recorded(activation_bytes=held, static_bytes=static)
    slow = pipeline(P, M, 7 * F, 9 * B, activation_bytes=held, static_bytes=static)
    of, memory = (recorded(), slow) if memory_apart else (with_memory, None)
    gib = [540 / 2**30, 530 / 2**30, None, 510 / 2**30]
    done = run(
        step(peak_allocated_gib=gib),
        step(schedule="gpipe"),
        step(schedule="geopipe", extra_forwards=[2, 1, 0, 0]),
        of=of,
        memory=memory,
    )
    assert [row.peak_bytes for row in done.rows] == [
        (540, 530, 520, 510),
        (580, 580, 580, 580),
        (560, 540, 520, 510),
    ]
    assert list(done.rows[0].peak_error_ratios) == [0, 0, None, 0]
    assert done.rows[0].prediction
    assert done.rows[0].prediction.metrics.step_ns == IDEAL
    assert done.notes == ()


def test_unknown_memory_is_said_not_guessed() -> None:
    done = run(step(peak_allocated_gib=[1.0] * P))
    assert done.rows[0].peak_bytes == (None,) * P
    assert done.max_peak_error_ratio is None
    assert codes(done.notes) == [NoticeCode.MEMORY_UNKNOWN]
    with pytest.raises(ScenarioError, match="4 pipeline ranks in one Run, 2 in the other"):
        run(step(), memory=pipeline(2, M, F, B))


def test_peaks_stand_beside_those_measured_on_all_ranks_of_the_job() -> None:
    """Two tensor-parallel pipelines of two ranks: the Run is about global ranks 0 and 2."""
    one = found(pipeline(2, M, F, B, activation_bytes=10, static_bytes=500))
    one = replace(one, observed=replace(one.observed, global_ranks=(0, 2)))
    row = step(pipeline_ranks=2, tensor_parallel=2, peak_allocated_gib=[1, 2, 3, 4])
    (seen,) = validate(Sources(one), Measurements((row,), {})).rows
    assert seen.peak_bytes == (520, None, 510, None)


def test_peaks_of_other_ranks_are_not_compared() -> None:
    done = run(step(peak_allocated_gib=[1, 2, 3]), of=recorded(activation_bytes=10, static_bytes=500))
    assert done.rows[0].peak_bytes == (540, 530, 520, 510)
    assert done.rows[0].peak_error_ratios == ()
    assert done.max_peak_error_ratio is None
    assert codes(done.notes) == [NoticeCode.NOT_COMPARED]


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e-3, "seconds"), (1e3, "microseconds"), (1e6, "nanoseconds"), (50, None), (0.02, None)]
)
def test_a_time_in_another_unit_is_asked_about(factor: float, unit: str | None) -> None:
    done = run(step(), *(step(f"row {n}", step_ms=IDEAL / 1e6 * factor) for n in range(12)))
    asked = texts(done.notes, NoticeCode.MEASURED_ODD)
    assert len(asked) == (unit is not None)
    for note in asked:
        assert "row 0, row 1, row 2, row 3, row 4, row 5, row 6, row 7 and 4 more is about" in note
        assert note.endswith(f"is it in {unit}?")


def test_peaks_beyond_any_device_are_asked_about() -> None:
    done = run(step(peak_allocated_gib=[12149.0, None, 1.0, 1.0]), step("b", peak_allocated_gib=[4096.0] * P))
    assert "peak_allocated_gib of row is more than any device holds: is it in bytes or MiB?" in texts(done.notes)


def test_a_csv_of_actions_is_sought_beside_the_file(tmp_path: Any) -> None:
    (tmp_path / "own.csv").write_text(build_schedule("gpipe", recorded().observed.shape).to_csv(), encoding="utf-8")
    measurements = Measurements((step(schedule="csv:own.csv"),), {}, folder=tmp_path)
    (row,) = validate(Sources(found(recorded())), measurements).rows
    assert row.prediction is not None
    assert row.prediction.metrics.step_ns == IDEAL


def test_recorded_rows_are_predicted_as_replay_predicts_them() -> None:
    """The same question put through ``answer``, with links between two DCs instead of ranks."""
    base = rebuilt("rt1f1b_m8")
    measurements = read_measurements(data("h100-pp4", "measured.json"))
    done = validate(Sources(base, rebuilt("1f1b_m8_mem")), measurements)
    assert [row.measured.name for row in done.rows if row.reason] == ["tp2pp2_1f1b_m8"]
    asked = 0
    for row in done.rows:
        if row.prediction is None or row.prediction.schedule.shape.chunks > 1:
            continue
        links = tuple(
            Link(a, b, round(link.bandwidth_gbit_per_s * 125_000_000), round(link.latency_ms * 1_000_000))
            for link in row.measured.links
            for a, b in (("a", "b"), ("b", "a"))
        )
        topology = Topology(("a", "a", "b", "b"), links) if links else Topology()
        assert all(link.between_pipeline_ranks == (1, 2) for link in row.measured.links)
        extra = row.measured.extra_forwards
        name = {"zbh1": "zb-h1"}.get(row.measured.schedule, row.measured.schedule)
        (result,) = answer(
            base,
            [name],
            Scenario(topology, p2p=row.prediction.p2p),
            extra_forwards=None if extra is None else tuple(extra),
        ).results
        assert row.prediction.metrics.step_ns == result.metrics.step_ns
        assert row.prediction.p2p == row.measured.p2p
        asked += 1
    assert asked == 19
    observed = measure(rebuilt("1f1b_m8_mem").observed).peak_hbm_bytes
    assert done.rows[0].peak_bytes == pytest.approx(observed, rel=0.005)
