"""Reconstruction from Ascend kernels alone: the synthetic sample's constants, and a real capture's golden numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.ascend_capture import ORDERS, add_host_side, of_text
from helpers.recorded import SAMPLES, data, looked_at, run_of
from helpers.thorough import spread

from tracetool.ingestion import ingest
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import RankOp, measure
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.replays import replay

if TYPE_CHECKING:
    from pathlib import Path

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _times_ms(found: Reconstruction, kind: ActionKind) -> list[list[float]]:
    return [[round(c.duration_ns / 1e6, 2) for c in s.costs[kind]] for s in found.pipeline.stages]


def test_the_samples_constants_come_back() -> None:
    """Chosen in sample_traces/ascend_sample_step.py: F 9/8/8/11 ms, B 17/16/16/21 ms, 8,388,608 bytes per message."""
    found = looked_at(run_of(SAMPLES / "ascend-1f1b"))
    assert [times[1:] for times in _times_ms(found, F)] == [[t] * 3 for t in (9.0, 8.0, 8.0, 11.0)]
    assert _times_ms(found, B) == [[t] * 4 for t in (17.0, 16.0, 16.0, 21.0)]
    assert found.pipeline.p2p == "grouped"
    assert {t.payload_bytes for t in found.observed.transfers} == {8_388_608}
    assert len(found.observed.transfers) == 2 * 3 * 4
    assert measure(found.observed).step_ns == pytest.approx(209_782_330, rel=1e-6)
    done = replay(found.pipeline, found.pipeline.observed, Scenario())
    assert measure(done.timeline).window_ns == pytest.approx(measure(found.observed).window_ns, rel=0.005)


# Without the host side there is less to read, and more to infer.
@spread("host_side", [False, True], [True])
def test_the_samples_constants_come_back_from_databases(tmp_path: Path, host_side: bool) -> None:
    """The same sample in the profiler's other format, also where autograd's nodes are seen but no transfer is."""
    for rank, order in ORDERS.items():
        capture = of_text(SAMPLES / "ascend-1f1b" / f"rank_{rank}_ascend_pt", rank, order)
        if host_side:
            add_host_side(capture)
            (step,) = capture.rows["STEP_TIME"]
            step["endNs"] = max(task["endNs"] for task in capture.rows["TASK"])
        capture.write(tmp_path / f"ascend_pytorch_profiler_{rank}.db")
    text = looked_at(run_of(SAMPLES / "ascend-1f1b"))
    found = reconstruct(ingest([tmp_path], tmp_path / "x.run"))
    for kind in (F, B):
        assert _times_ms(found, kind) == _times_ms(text, kind)
    assert measure(found.observed).step_ns == measure(text.observed).step_ns
    assert [t.payload_bytes for t in found.observed.transfers] == [t.payload_bytes for t in text.observed.transfers]


def test_a_real_pipeline_gives_its_golden_numbers() -> None:
    """PP2 x DP2 capture, read by hand from kernel_details.csv: times in ms, rank 0 then rank 2."""
    found = looked_at(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")))
    assert found.observed.global_ranks == (0, 2)
    assert _times_ms(found, F)[0] == [73.27, 79.57]
    assert _times_ms(found, B)[0] == [81.96, 94.80]
    # Rank 2: F0 with loss 76.50 to 197.8, B0 197.82 to 312.31, F1 315.51 to 435.7, B1 435.74 to 550.86.
    assert _times_ms(found, F)[1] == pytest.approx([121.3, 120.2], abs=0.1)
    assert _times_ms(found, B)[1] == pytest.approx([114.49, 115.12], abs=0.1)
    assert [(t.kind, t.src_rank, t.payload_bytes) for t in found.observed.transfers] == [
        (F, 0, 8_388_608),
        (F, 0, 8_388_608),
        (B, 1, 8_388_608),
        (B, 1, 8_388_608),
    ]


def test_the_vendors_bubble_is_kept_under_its_own_name() -> None:
    run = run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    assert run.rows("SELECT DISTINCT vendor_bubble_ns FROM steps") == [(0,)]


def test_waiting_in_collectives_of_the_tail_is_not_a_cost() -> None:
    """Elapse times in communication.json, rank 2 against the fastest member of each group, from its last backward
    to its optimizer: embedding all-reduce 120.99 - 34.62, reduce-scatters 23.30 - 18.58 and 26.40 - 26.30, norm
    all-reduce 1.05 - 0.02 ms: 92.22 ms in all."""
    found = looked_at(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")))
    observed = sum(o.duration_ns for o in found.observed.ops if o.rank == 1 and isinstance(o, RankOp))
    assert (observed - sum(part.duration_ns for part in found.pipeline.ranks[1].tail)) / 1e6 == pytest.approx(
        92.22, abs=0.1
    )
