"""What explain says: removals against closed forms of equal stages, the critical path, and both outputs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema
import msgspec
import pytest
from helpers.recorded import ROOT, SAMPLES, run_of
from helpers.synthetic import found, pipeline, places, scenario, window_ns
from helpers.thorough import spread

from tracetool.causes import idles_of
from tracetool.causes.cause import Cause
from tracetool.cli import run
from tracetool.explanation import explain
from tracetool.model.pipeline import P2P_MODES
from tracetool.replays import replay
from tracetool.reports import RunFacts
from tracetool.reports.answer.json import report_info
from tracetool.reports.explanation.json import explanation_info
from tracetool.reports.explanation.text import render_text
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.causes.removals import Removal
    from tracetool.explanation import Explanation
    from tracetool.model.pipeline import P2PMode

P, M, F, B, TAIL = 4, 8, 1000, 2000, 500
IDEAL = (M + P - 1) * (F + B)
FACTS = RunFacts("x.run", "", "0", "tracetool explain x.run")
SCHEMA = json.loads((ROOT / "schemas" / "explanation.schema.json").read_text(encoding="utf-8"))
LINK = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]


def removals(explained: Explanation) -> dict[Cause, Removal]:
    return {found.cause: found.removal for found in explained.causes}


# Another order takes the same ways to issue transfers.
@pytest.mark.parametrize("mode", P2P_MODES)
@spread("schedule", ["1f1b", "gpipe"], 1)
def test_removing_all_causes_leaves_compute_fill_and_drain(schedule: str, mode: P2PMode) -> None:
    """Unequal microbatches of mean f and b, slow messages, a link: without all of it (m+p-1)(f+b), and the tail."""
    forwards = [[F - 300 + 600 * ((j + s) % 2) for j in range(M)] for s in range(P)]
    backwards = [[B + 700 * (1 if s < P // 2 else -1)] * M for s in range(P)]
    measured = pipeline(P, M, forwards, backwards, payload_bytes=700, transfer_ns=90, tail_ns=TAIL)
    over = scenario(places([2, 2], latency_ns=5000), mode)
    explained = explain(found(measured), schedule, over)
    assert explained.without_any.step_ns == IDEAL + TAIL
    assert explained.metrics.step_ns > IDEAL + TAIL
    assert sum(cause.mean_ns for cause in explained.causes) + explained.rest_ns == explained.idle_ns
    # One after another: the links, then the channels, then what differs; the step only gets shorter.
    order = explained.answer.results[0].replayed.schedule
    free = replace(over, topology=over.topology.without_delays())
    steps = [
        window_ns(measured, schedule, over),
        window_ns(measured, schedule, free),
        window_ns(measured, schedule, replace(free, p2p="posted-ahead")),
    ]
    assert steps == sorted(steps, reverse=True)
    equal = pipeline(P, M, F, B, tail_ns=TAIL)
    left = replay(equal, order, replace(free, p2p="posted-ahead"))
    assert max(op.end_ns for op in left.timeline.computes()) == M * (F + B) + (P - 1) * (F + B)
    assert {idle.cause for idle in idles_of(left)} == {Cause.FILL, Cause.DRAIN}


def test_each_removal_is_the_step_without_it() -> None:
    """Receives posted ahead, equal stages: T = (m+p-1)(f+b) + 2c + n 2c with n = (m-1-k) // 2 + 1, k = 2, for c =
    latency, occupancy or both (as in tests/replays/test_closed_forms.py); the microbatches given twice likewise."""
    latency, occupancy = 700, 300

    def closed(delay: int, m: int = M) -> int:
        return (m + P - 1) * (F + B) + 2 * delay * ((m - 1 - 3) // 2 + 2)

    topology = places([2, 2], latency_ns=latency)
    explained = explain(
        found(pipeline(P, M, F, B, payload_bytes=occupancy, tail_ns=TAIL)), "1f1b", scenario(topology, "posted-ahead")
    )
    assert explained.metrics.step_ns == closed(latency + occupancy) + TAIL
    without = removals(explained)
    assert without[Cause.CROSS_DC_LATENCY].step_ns == closed(occupancy) + TAIL
    assert without[Cause.CROSS_DC_BANDWIDTH].step_ns == closed(latency) + TAIL
    longer = without[Cause.FILL]
    assert (longer.step_ns, longer.microbatches) == (closed(latency + occupancy, 2 * M) + TAIL, 2 * M)
    per_microbatch = (closed(latency + occupancy, 2 * M) + TAIL) / 2 / explained.metrics.step_ns
    assert longer.change_ratio == pytest.approx(per_microbatch - 1)
    assert longer is without[Cause.DRAIN]
    for cause, removal in without.items():
        if cause in {Cause.CROSS_DC_LATENCY, Cause.CROSS_DC_BANDWIDTH}:
            assert removal.change_ratio == pytest.approx((removal.step_ns or 0) / explained.metrics.step_ns - 1)


def test_what_is_named_first_is_the_largest_gain_more_microbatches_among_them() -> None:
    """Equal stages without links: (m+p-1)(f+b), of twice as many microbatches per microbatch (2m+p-1)(f+b)/2. Over a
    short link removing its latency gives less, which is said besides."""
    for latency in (0, 200):
        over = scenario(places([2, 2], latency_ns=latency), "posted-ahead")
        explained = explain(found(pipeline(P, M, F, B, transfer_ns=0)), "1f1b", over)
        text = " ".join(render_text(explained, FACTS, 80, verbose=False).decode().split())
        gains = {cause.cause: cause.removal.change_ratio or 0.0 for cause in explained.causes}
        assert min(gains.values()) == gains[Cause.FILL]
        assert f"Most would come from {2 * M} microbatches: {gains[Cause.FILL]:+.1%} per microbatch" in text
        if not latency:
            assert gains[Cause.FILL] == pytest.approx((2 * M + P - 1) / 2 / (M + P - 1) - 1)
            assert "with as many as now" not in text
        else:
            assert f"from links with 0 ms latency: a step of {IDEAL / 1000:.1f} us" in text


def test_without_the_memory_limit_the_depth_is_chosen_anew() -> None:
    held, static, latency = 10, 500, 3000
    measured = found(pipeline(P, 40, F, B, p2p="posted-ahead", activation_bytes=held, static_bytes=static))
    limited = scenario(places([2, 2], latency_ns=latency), hbm_bytes=static + held * (P + 1))
    explained = explain(measured, "geopipe", limited)
    assert explained.extra_forwards == (1, 1, 0, 0)
    (free,) = answer(measured, ["geopipe"], replace(limited, hbm_bytes=None)).results
    removal = removals(explained)[Cause.MEMORY]
    assert free.extra_forwards == (2, 2, 0, 0)
    assert removal.step_ns == free.metrics.step_ns < explained.metrics.step_ns
    assert removal.how == "no HBM limit: geopipe +2,2,0,0"
    assert not any(cause.cause is Cause.MEMORY for cause in explain(measured, "1f1b", limited).causes)


def test_the_recording_is_explained_as_it_was_recorded() -> None:
    """Half of the microbatches again after a late start of the last backward: only the host is to blame for that."""
    measured = found(pipeline(2, 2, F, B, p2p="in-order"))
    late = 777
    end = max(op.end_ns for op in measured.observed.ops)
    ops = tuple(replace(op, start_ns=op.start_ns + late) if op.end_ns == end else op for op in measured.observed.ops)
    seen = replace(measured, observed=replace(measured.observed, ops=ops))
    explained = explain(seen)
    assert explained.is_recorded
    assert explained.metrics.window_ns == 3 * (F + B) + late
    host = next(cause for cause in explained.causes if cause.cause is Cause.HOST)
    assert host.rank_ns == (late, late)
    assert host.removal.step_ns == 3 * (F + B)
    assert host.removal.change_ratio is None
    assert explained.replayed_step_ns == 3 * (F + B)
    text = " ".join(render_text(explained, FACTS, 80, verbose=True).decode().split())
    change = f"{3 * (F + B) / (3 * (F + B) + late) - 1:+.1%}"
    assert f"the same order, launched in time: a step of 9.0 us ({change} of the recorded one)" in text
    assert (
        f"Changes are of the order replayed, whose host is never late: 9.0 us ({change} of the 9.8 us recorded)" in text
    )
    assert "host 777.0 ns all ranks alike 9.0 us base" in text
    # In a scenario it is a replay, which has no late host.
    assert not explain(seen, "observed").is_recorded
    assert not any(cause.cause is Cause.HOST for cause in explain(seen, "observed").causes)


def test_the_critical_path_is_told_in_plain_words() -> None:
    """1F1B over a link between ranks 1 and 2, worked out by hand: a round trip repeats."""
    topology = places([2, 2], latency_ns=10_000)
    explained = explain(found(pipeline(P, M, F, B)), "1f1b", scenario(topology, "posted-ahead"))
    window = explained.metrics.window_ns
    assert explained.path[0].start_ns == 0
    assert explained.path[-1].end_ns == window
    assert all(a.end_ns == b.start_ns for a, b in zip(explained.path, explained.path[1:], strict=False))
    assert sum(explained.spent_ns.values()) == window
    text = render_text(explained, FACTS, 80, verbose=True).decode()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "0 ns 2.0 us ranks 0 → 1: forward 0" in lines
    assert "2.0 us 10.0 us link dc0→dc1: activation 0 (rank 1 → 2): 10.0 us latency" in lines
    assert any(" times, first microbatch " in line for line in lines)
    (repeated,) = [part for part in explained.path if part.times > 1]
    # A round trip: two ways over the link, and computes of one forward and one backward on both sides.
    assert sum(step.crosses() for step in repeated.steps) == 2
    assert repeated.end_ns - repeated.start_ns >= repeated.times * 2 * 10_000


def test_one_rank_is_one_step_without_causes() -> None:
    explained = explain(found(pipeline(1, 6, F, B)), "1f1b")
    (part,) = explained.path
    (step,) = part.steps
    assert (part.times, step.ranks, len(step.ops)) == (1, [0], 12)
    assert explained.causes == ()
    assert "No single cause of idle time would give 1%" in render_text(explained, FACTS, 80, verbose=True).decode()


def test_reports_agree_on_the_bubble_of_each_cause() -> None:
    """Explanation and report of replay, per rank: idle and compute are the window, to the ns."""
    over = scenario(places([2, 2], latency_ns=5000))
    for schedule in (None, "1f1b"):
        explained = explain(found(pipeline(P, M, F, B, transfer_ns=40)), schedule, over if schedule else None)
        report = report_info(explained.answer, FACTS)
        same = report.results[0] if schedule else report.step
        told = explanation_info(explained, FACTS)
        assert (told.step_ns, told.bubble_ns) == (same.step_ns, same.bubble_ns)
        assert [same.bubble_by_cause_ns[cause.cause] for cause in told.causes] == [cause.idle for cause in told.causes]
        assert sum(cause.mean_ns for cause in same.bubble_by_cause_ns.values()) == told.bubble_ns
        assert sum(cause.idle.mean_ns for cause in told.causes) + told.other_causes_ns == explained.idle_ns
        for rank in range(P):
            idle = sum(cause.rank_ns[rank] for cause in same.bubble_by_cause_ns.values())
            assert idle + told.rank_compute_ns[rank] == told.window_ns
        jsonschema.validate(json.loads(msgspec.json.encode(told)), SCHEMA)


def test_the_command_answers_in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    recording = str(run_of(SAMPLES / "h100-1f1b").path)
    assert run(["explain", recording, "--schedule", "geopipe", *LINK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Next: tracetool replay {recording} --schedule geopipe {' '.join(LINK)} -o gantt.png"
    assert max(len(line) for line in lines[:-1]) <= 80
    assert any(line.startswith("Ranks idle ") for line in lines[:8])
    assert run(["explain", recording, "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    jsonschema.validate(explained, SCHEMA)
    assert explained["subject"] == "observed"


def test_explain_takes_one_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(SAMPLES / "h100-1f1b"), "--schedule", "1f1b,geopipe"]) == 2
    assert "explain takes one schedule, got 2: 1f1b,geopipe." in capsys.readouterr().err
