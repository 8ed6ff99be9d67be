"""Predictions against measured step times of the recorded machine (measured.json of the shared data).

Every case replays one plain recording under another order and an emulated link that was never in its trace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data, looked_at, rebuilt, small
from helpers.thorough import spread

from tracetool.model.pipeline import P2P_MODES
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay
from tracetool.schedules import SCHEDULES, build_schedule
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction


def _rows(file: str = "measured.json") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(data("h100-pp4", file).read_text(encoding="utf-8"))["results"]
    return rows


def _measured(name: str) -> dict[str, Any]:
    return next(row for row in _rows() if row["name"] == name)


def _topology(row: dict[str, Any]) -> Topology:
    (link,) = row["links"]
    assert link["between_pipeline_ranks"] == [1, 2]
    bandwidth = int(link["bandwidth_gbit_per_s"] * 1e9 / 8)
    latency = int(link["latency_ms"] * 1e6)
    ends = ("dc0", "dc1")
    return Topology(("dc0", "dc0", "dc1", "dc1"), tuple(Link(a, b, bandwidth, latency) for a, b in (ends, ends[::-1])))


def _error_ratio(base: str, name: str) -> float:
    row = _measured(name)
    pipeline = rebuilt(base).pipeline
    extra = tuple(row["extra_forwards"]) if row["extra_forwards"] else None
    schedule = build_schedule(row["schedule"], pipeline.observed.shape, extra_forwards=extra)
    mode = next(m for m in P2P_MODES if m == row["p2p"])
    done = replay(pipeline, schedule, Scenario(topology=_topology(row), p2p=mode))
    return measure(done.timeline).step_ns / 1e6 / float(row["step_ms"]) - 1


@pytest.mark.parametrize("link", ["L1", "L2"])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_geopipe_over_a_link_within_4_percent(extra: int, link: str) -> None:
    assert abs(_error_ratio("rt1f1b_m8", f"geo_k{extra}_m8_{link}")) < 0.04


@pytest.mark.parametrize("link", ["L1", "L2"])
def test_1f1b_over_a_link_within_3_percent(link: str) -> None:
    assert abs(_error_ratio("1f1b_m8", f"1f1b_m8_{link}")) < 0.03


# From its own recording; the same rows are predicted from another one by default (below), as are those of 1F1B (above).
@pytest.mark.thorough
@pytest.mark.parametrize("link", ["L1", "L2"])
def test_gpipe_over_a_link_within_3_percent(link: str) -> None:
    assert abs(_error_ratio("gpipe_m8", f"gpipe_m8_{link}")) < 0.03


# Both steps of each: an error that some of them hide is in one recording's costs alone.
@spread(
    ("name", "step"),
    [(name, step) for name in ("1f1b_m8", "rt1f1b_m8", "gpipe_m8") for step in (1, 2)],
    [("1f1b_m8", 1), ("rt1f1b_m8", 2)],
)
def test_replaying_the_observed_order_gives_the_observed_window_within_1_5_percent(name: str, step: int) -> None:
    found = rebuilt(name, step=step, use_labels=name != "1f1b_m8")
    done = replay(found.pipeline, found.pipeline.observed, Scenario())
    assert measure(done.timeline).window_ns == pytest.approx(measure(found.observed).window_ns, rel=0.015)


def test_the_memory_of_deeper_warm_ups_is_the_measured_one() -> None:
    """Peaks of geo_k2_m8_L2 minus what the emulated link itself keeps allocated (static_allocated_gib there minus
    that of the plain run), within 3 %."""
    row, plain = _measured("geo_k2_m8_L2"), _measured("1f1b_m8")
    pipeline = rebuilt("1f1b_m8_mem").pipeline
    schedule = build_schedule("geopipe", pipeline.observed.shape, extra_forwards=(2, 2, 0, 0))
    peaks = measure(replay(pipeline, schedule, Scenario()).timeline).peak_hbm_bytes
    for rank, peak in enumerate(peaks):
        emulation = row["static_allocated_gib"][rank] - plain["static_allocated_gib"][rank]
        assert (peak or 0) / 2**30 == pytest.approx(row["peak_allocated_gib"][rank] - emulation, rel=0.03)


# Other orders are those of small recordings by default (below).
@spread("name", ["rt1f1b_m8", "gpipe_m8", "zbh1_m8", "interleaved_m8"], 1)
def test_receives_are_posted_where_torchs_runtime_posts_them(name: str) -> None:
    """The order of single operations on every rank, as recorded, against the replay's own placement."""
    _check_posts(rebuilt(name))


# Other orders of torch.
@spread("name", ["zbv", "izb", "loopedbfs", "interleaved2", "interleaved3"], 2)
def test_receives_of_small_recordings_are_posted_where_torch_posts_them(name: str) -> None:
    _check_posts(looked_at(small(name)))


def _check_posts(found: Reconstruction) -> None:
    from helpers.programs import Post, build_program

    for program, (_, ops) in zip(
        build_program(found.pipeline.observed, "in-order"), sorted(found.p2p_ops.items()), strict=True
    ):
        placed = [
            (bool(post.sends), message.kind, message.microbatch)
            for post in program
            if isinstance(post, Post)
            for message in (*post.sends, *post.recvs)
        ]
        assert placed == [(o.op.is_send, o.kind, o.microbatch) for o in ops]


# Other recordings that predict the same rows.
@spread("base", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "zbh1_m8"], 1)
def test_every_prediction_is_within_the_error_it_is_reported_with(base: str) -> None:
    """All measured rows of one model and four ranks that a schedule of ours exists for, whatever was recorded."""
    found = rebuilt(base)
    for row in [*_rows(), *_rows("measured-per-edge.json")]:
        schedule = {"zbh1": "zb-h1"}.get(row["schedule"], row["schedule"])
        if schedule not in SCHEDULES.names() or row["tensor_parallel"] > 1 or row["microbatches"] != 8:
            continue
        topology = _topology(row) if row["links"] else Topology()
        mode = next(m for m in P2P_MODES if m == row["p2p"])
        extra = tuple(row["extra_forwards"]) if row["extra_forwards"] else None
        (result,) = answer(
            found, [schedule], Scenario(topology=topology, p2p=mode), extra_forwards=extra, baseline="observed"
        ).results
        error = result.metrics.step_ns / 1e6 / row["step_ms"] - 1
        assert abs(error) <= result.seen_error_ratio, (base, row["name"], round(error, 4))
