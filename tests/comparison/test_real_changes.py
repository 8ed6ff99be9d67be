"""Real recordings against themselves, and against themselves with one thing changed: nothing found, and just that."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import msgspec
import pytest
from helpers.injected import injected, later, slower
from helpers.notices import texts
from helpers.recorded import SAMPLES, data, derived, h100, run_of
from helpers.thorough import some

from tracetool.comparison import Comparison, compare
from tracetool.comparison.sides import Side, side_of
from tracetool.comparison.summary import main_causes, summary
from tracetool.comparison.verdict import Rules, judge
from tracetool.ingestion.recording import Recording, make_recording, recording_of
from tracetool.reconstruction import record_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.reconstruction.recorded_step import RecordedStep
    from tracetool.store.run import Run

STEPS = 10
MS = 10**6
GIB = 2**30


def straggling() -> Run:
    return run_of(data("torch", "ByteDance-Seed+StragglerAnalysis"))


@cache
def looks() -> list[RecordedStep]:
    return record_steps(straggling(), most=STEPS)


@cache
def real_steps() -> Recording:
    return make_recording("job ST", looks())


def of_steps(recording: Recording, places: Sequence[int]) -> Side:
    steps = [recording.steps[place] for place in sorted(places)]
    return side_of([("steps", msgspec.structs.replace(recording, steps=steps))])


def test_disjoint_steps_of_one_run_never_regress() -> None:
    """20 pairs of five and five steps of job ST, of which 8 by default.

    Its steps take 2.05 to 2.33 s, so this is no quiet machine.
    """
    draw = random.Random(20)  # noqa: S311 - which steps, not secrets
    for _ in some(range(20), 8):
        places = draw.sample(range(STEPS), STEPS)
        base, new = (of_steps(real_steps(), half).values for half in (places[:5], places[5:]))
        lines = judge(base, new, Rules(), same_traces=False)
        assert len(lines) > 20
        assert {line.verdict for line in lines} <= {"unchanged", "inconclusive"}


def test_what_of_a_run_is_not_compared_is_said() -> None:
    """Job ST: two data-parallel pipelines, 32 complete steps, of which ingest keeps eight."""
    side = side_of([("job", derived(data("torch", "ByteDance-Seed+StragglerAnalysis")))])
    assert texts(side.notes) == [
        "job: one of 2 pipelines side by side is compared (ranks 0, 2, 4, 6), which sets the step: none that was "
        "recorded takes longer by 2% or more",
        "job: 8 of 32 complete steps are compared, those about the one of median length",
    ]
    assert side_of([("sample", derived(SAMPLES / "h100-1f1b"))]).notes == ()


# Disjoint steps of a job never regress by default (above).
@pytest.mark.thorough
def test_one_step_of_a_recording_does_not_regress_from_the_other() -> None:
    recording = recording_of(h100("1f1b_m8"))
    done = compare(of_steps(recording, [0]), of_steps(recording, [1]))
    assert (done.gate, done.failures) == ("workload", ())
    assert next(line for line in done.lines if line.key.text == "step_ns").verdict == "inconclusive"


# Two recordings are derived for it; what slows a stage down is named of recordings that were slowed by default (below).
@pytest.mark.thorough
def test_computes_that_slow_down_beside_waiting_messages_are_named_so() -> None:
    """Grouped against in-order 1F1B on one machine: only the latter posts receives ahead, which wait beside computes.

    By the table ``costs`` no backward of stage 3 ran beside a communication kernel, then 54 % of their time.
    """
    grouped, in_order = (derived(data("h100-pp4", "traces", name)) for name in ("1f1b_m8", "rt1f1b_m8"))
    done = compare(side_of([("grouped", grouped)]), side_of([("in-order", in_order)]))
    cause = done.causes["step_ns"][0]
    assert (cause.kind, cause.name) == ("stage", "stage 3 B beside communication")
    ((share,),) = in_order.rows("SELECT sum(beside_ns) / sum(duration_ns) FROM costs WHERE stage = 3 AND kind = 'B'")
    assert share == pytest.approx(0.54, abs=0.005)
    assert cause.detail.endswith(f"beside communication for 3B 0% → {share:.0%} of the time")
    assert ": stage 3 B beside communication +" in summary(done)
    # The last stage computes without a pause: each backward's growth counts once, and whole.
    times = [[step.actions["3B"].duration_ns for step in recording_of(run).steps] for run in (grouped, in_order)]
    before, after = (sum(median(of) for of in zip(*each, strict=True)) for each in times)
    assert float(cause.value) == pytest.approx(after - before, rel=0.01)


def with_change(change: Callable[[Pipeline], Pipeline]) -> Recording:
    return recording_of(injected(straggling(), looks()[:5], change, Path(mkdtemp(prefix="tracetool-test-")) / "x.run"))


@cache
def base() -> Recording:
    """Five steps of the first pipeline of job ST, written anew like the changed ones."""
    return with_change(lambda pipeline: pipeline)


def compared(change: Callable[[Pipeline], Pipeline]) -> Comparison:
    return compare(side_of([("base", base())]), side_of([("new", with_change(change))]))


def regressed(done: Comparison) -> set[str]:
    return {line.key.text for line in done.lines if line.verdict == "regressed"}


def test_a_recording_written_anew_is_the_recording() -> None:
    """What is injected is all that differs: nothing moves where nothing was changed."""
    numbers = [step.number for step in base().steps]
    before = {step.number: step for step in real_steps().steps}
    assert len(numbers) == 5
    for step in base().steps:
        assert (step.step_ns, step.actions) == (before[step.number].step_ns, before[step.number].actions)


def test_a_slower_backward_is_named_with_its_stage() -> None:
    done = compared(slower({3: "B"}, 1.05))
    assert {"action_ns/3B", "window_ns"} <= regressed(done)
    assert not {"action_ns/3F", "action_ns/2B"} & regressed(done)
    line = next(line for line in done.lines if line.key.text == "action_ns/3B")
    assert line.change_ratio == pytest.approx(0.05, abs=1e-6)
    cause = done.causes["window_ns"][0]
    assert (cause.kind, cause.name) == ("stage", "stage 3 B")
    # Four backwards of 204 ms on the critical path, one after the other, each 5 % longer.
    window = next(line for line in done.lines if line.key.text == "window_ns")
    assert float(cause.value) == pytest.approx(4 * 0.05 * 204e6, rel=0.01)
    assert float(cause.value) == pytest.approx(window.change or 0, rel=0.01)
    assert "window_ns" in summary(done)
    assert ": stage 3 B +4" in summary(done)


def test_a_slower_link_is_named_by_its_ranks() -> None:
    """Ranks of the first pipeline are 0, 2, 4 and 6. The link's messages are found within 6 % of the 10 ms."""
    done = compared(later(1, 10 * MS))
    assert {"transfer_ns/1F", "transfer_ns/2B"} <= regressed(done)
    cause = done.causes["step_ns"][0]
    assert (cause.kind, cause.name) == ("link", "link 2↔4")
    for name in ("transfer_ns/1F", "transfer_ns/2B"):
        line = next(line for line in done.lines if line.key.text == name)
        assert line.change == pytest.approx(10 * MS, rel=0.06)
        assert name in summary(done)


# A stage and a link that are slower are named by default (above, below); of a rank all kinds are taken together.
@pytest.mark.thorough
def test_a_rank_all_of_whose_kinds_are_slower_is_named_as_the_rank() -> None:
    done = compared(slower({2: "FB"}, 1.1))
    assert {"compute_ns", "action_ns/2F", "action_ns/2B"} <= regressed(done)
    (cause,) = main_causes(done, next(line for line in done.lines if line.key.text == "compute_ns"))
    assert (cause.kind, cause.name) == ("rank", "rank 4")
    assert cause.detail == "all its computes: 2B +10.0%, 2F +10.0%"


def seen(query: str, table: str) -> tuple[Side, Side]:
    run = run_of(SAMPLES / "h100-1f1b")
    other = recording_of(run.overlay({table: query}))
    return side_of([("base", run)]), side_of([("new", msgspec.structs.replace(other, digest="other traces"))])


def test_doubled_payloads_are_named_with_their_link() -> None:
    on_link = "operation IN ('send', 'recv') AND least(rank, peer) = 1 AND greatest(rank, peer) = 2"
    done = compare(
        *seen(
            f"SELECT * REPLACE (CASE WHEN {on_link} THEN 2 * payload_bytes ELSE payload_bytes END AS payload_bytes) "
            "FROM {recorded}",
            "comms",
        )
    )
    assert regressed(done) == {"payload_bytes/1F", "payload_bytes/2B"}
    assert "payload_bytes/1F (link 1→2) 16.00 MiB → 32.00 MiB (+100.00%, regressed)" in summary(done)
    assert any("payload 16.00 MiB → 32.00 MiB" in cause.detail for cause in done.causes["step_ns"])


def test_more_memory_is_named_with_what_holds_it() -> None:
    more = ", ".join(
        f"{c} + {2 * GIB} * CAST(rank = 1 AS BIGINT) AS {c}" for c in ("allocated_bytes", "reserved_bytes")
    )
    done = compare(*seen(f"SELECT * REPLACE ({more}) FROM {{recorded}}", "memory"))
    assert regressed(done) == {"peak_hbm_bytes/rank1", "static_bytes/rank1"}
    cause = done.causes["peak_hbm_bytes/rank1"][0]
    assert (cause.kind, cause.name, int(cause.value)) == ("memory", "static memory of rank 1", 2 * GIB)
    assert "peak_hbm_bytes/rank1 10.08 GiB → 12.08 GiB" in summary(done)
