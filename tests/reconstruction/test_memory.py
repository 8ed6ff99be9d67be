"""Memory by action: against measured peaks, the model's own sizes, and a plain computation of small logs."""

from __future__ import annotations

import csv
import json
from bisect import bisect_right
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from helpers.ascend_capture import ORDERS, of_text
from helpers.notices import texts
from helpers.recorded import SAMPLES, data, derived, looked_at, rebuilt, run_of

from tracetool.ingestion import ingest
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.replays import replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
MIB, GIB = 2**20, 2**30
LEVEL2 = ("ascend", "Ascend+msinsight", "test", "st", "level2")


def _measured(name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(data("h100-pp4", "measured.json").read_text())["results"]
    (row,) = [r for r in rows if r["name"] == name]
    return row


# --- H100, Kineto's allocator records


def test_figures_of_the_stages_alone_give_the_measured_peaks() -> None:
    """static + gradients + microbatches in flight x activation + transient: 1F1B holds p - stage microbatches.

    The criterion is 3 % per rank; the tighter bound is what the measured figures' own digits leave.
    """
    found = rebuilt("1f1b_m8_mem")
    for rank, peak in enumerate(_measured("1f1b_m8")["peak_allocated_gib"]):
        profile, stage = found.pipeline.ranks[rank], found.pipeline.stages[rank]
        figures = (profile.static_bytes, stage.gradient_bytes(), stage.activation_bytes(), stage.transient_bytes())
        static, gradients, activation, transient = (figure or 0 for figure in figures)
        predicted = static + gradients + (4 - rank) * activation + transient
        assert predicted / GIB == pytest.approx(peak, rel=0.001)


def test_peaks_of_other_orders_are_those_that_were_measured() -> None:
    """Every row of measured.json with 4 stages, 8 microbatches and a full backward, from the one run with memory.

    Rows with an emulated link have its buffers beside: their static_allocated_gib says how much more there is.
    """
    found = rebuilt("1f1b_m8_mem")
    static = [(r.static_bytes or 0) / GIB for r in found.pipeline.ranks]
    seen = 0
    for row in json.loads(data("h100-pp4", "measured.json").read_text())["results"]:
        name = row["schedule"]
        if name not in ("1f1b", "gpipe", "geopipe") or row["microbatches"] != 8 or row["tensor_parallel"] != 1:
            continue
        extra = tuple(row["extra_forwards"]) if name == "geopipe" else None
        schedule = build_schedule(name, found.pipeline.observed.shape, extra_forwards=extra)
        done = replay(found.pipeline, schedule, Scenario(p2p=row["p2p"]))
        peaks = [(peak or 0) / GIB for peak in measure(done.timeline).peak_hbm_bytes]
        expected = [
            peak - more + own
            for peak, more, own in zip(row["peak_allocated_gib"], row["static_allocated_gib"], static, strict=True)
        ]
        assert peaks == pytest.approx(expected, rel=0.005), row["name"]
        seen += 1
    assert seen == 16


def test_gradients_are_those_of_the_parameters() -> None:
    """bf16, from the sizes in measured.json: 4 layers per stage, the embedding ahead of them, the head after them.

    A stage but the first keeps the gradient that it sends besides, until its next backward: 16,777,216 bytes.
    """
    found = rebuilt("1f1b_m8_mem")
    h, ffn, vocab = 4096, 11008, 32000
    layers = 4 * (4 * h * h + 3 * h * ffn) * 2
    parameters = [layers + vocab * h * 2, layers, layers, layers + vocab * h * 2]
    for stage, expected in zip(found.pipeline.stages, parameters, strict=True):
        message = 0 if stage.stage == 0 else 16_777_216
        assert stage.gradient_bytes() == pytest.approx(expected + message, abs=4 * MIB)


def test_gradients_stay_until_after_the_last_action() -> None:
    """zero_grad follows the optimizer: a fifth, a ninth ... microbatch finds them where the second did."""
    found = rebuilt("1f1b_m8_mem")
    for profile, stage, curve in zip(found.pipeline.ranks, found.pipeline.stages, found.observed.memory, strict=True):
        held = [cost.held_bytes or 0 for cost in stage.costs[B]]
        assert held[-1] == pytest.approx(held[1], abs=8 * MIB)
        assert curve is not None
        assert curve[-1][1] - (profile.static_bytes or 0) == pytest.approx(stage.gradient_bytes() or 0, abs=8 * MIB)


def test_logits_that_outlive_their_backward_count_as_in_flight() -> None:
    """The last stage holds 2048 x 32000 bf16 logits until its next forward: GPipe holds those of all microbatches."""
    found = rebuilt("1f1b_m8_mem")
    (finding,) = [f for f in found.findings if f.fact == "memory" and f.subject == "stage 3"]
    assert finding.detail is not None
    assert finding.detail.startswith("125.00 MiB of a forward outlive its backward")
    assert finding.confidence == 1
    forward = [cost.held_bytes or 0 for cost in found.pipeline.stages[3].costs[F]]
    assert max(forward) - min(forward) <= 2 * MIB


def test_reserved_memory_is_told_beside_the_allocated() -> None:
    """Total Reserved of the records: 13,709,082,624 bytes on rank 0 throughout, of which 12.149 GiB were allocated."""
    found = rebuilt("1f1b_m8_mem")
    metrics = measure(found.observed)
    assert metrics.overhead_bytes[0] == 13_709_082_624 - (metrics.peak_hbm_bytes[0] or 0)
    assert metrics.needed_hbm_bytes[0] == 13_709_082_624
    assert found.pipeline.ranks[0].overhead_bytes == metrics.overhead_bytes[0]


# --- Ascend, levels on the host's clock against actions on the device's


def _level2() -> tuple[Reconstruction, list[Any]]:
    account = Account()
    found = reconstruct(run_of(data(*LEVEL2)), account=account)
    return found, [f for f in account.findings if f.fact == "memory"]


def test_ascends_peaks_are_the_golden_ones() -> None:
    """Maxima of memory_record.csv: PTA reserved 10 372 and 10 868 MB, APP 11 925 and 12 675 MB on ranks 0 and 2."""
    found, findings = _level2()
    for profile, curve, reserved, process in zip(
        found.pipeline.ranks, found.observed.memory, (10_372, 10_868), (11_925, 12_675), strict=True
    ):
        assert curve is not None
        peak = max(level for _, level in curve)
        assert profile.overhead_bytes is not None
        # What the device must hold is what the driver says the process holds.
        assert (peak + profile.overhead_bytes) / MIB == pytest.approx(process, abs=1)
        (told,) = [f for f in findings if f.subject == f"rank {profile.rank}"]
        assert f"{reserved / 1024:.2f} GiB reserved" in told.value
        assert "HCCL" in told.detail


def _levels(rank: int) -> tuple[list[int], list[Decimal], list[tuple[int, int]]]:
    """Times and levels of the allocator, and the transfers, straight from the files."""
    folder = data(*LEVEL2, f"rank_{rank}_ascend_pt", "ASCEND_PROFILER_OUTPUT")
    with (folder / "memory_record.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["Component"] == "PTA"]
    levels = sorted((int(Decimal(r["Timestamp(us)"].strip()) * 1000), Decimal(r["Total Allocated(MB)"])) for r in rows)
    with (folder / "kernel_details.csv").open() as file:
        waits = [
            (int(Decimal(r["Start Time(us)"].strip()) * 1000), int(Decimal(r["Duration(us)"].strip()) * 1000))
            for r in csv.DictReader(file)
            if r["Type"] == "hcom_batchSendRecv_"
        ]
    return [t for t, _ in levels], [level for _, level in levels], sorted((s, s + d) for s, d in waits)


def test_ascends_first_stage_holds_what_its_levels_say_between_transfers() -> None:
    """Levels of memory_record.csv at the ends of the transfers, which part F0, F1, B0 and B1 of rank 0."""
    found, findings = _level2()
    times, levels, waits = _levels(0)
    at = [levels[bisect_right(times, end) - 1] for _, end in waits]
    # F0 from the first record to the first transfer, then F1, B0; B1 gives back what F1 made.
    changes = [at[0] - levels[0], at[1] - at[0], at[2] - at[1]]
    stage = found.pipeline.stages[0]
    held = [(cost.held_bytes or 0) / MIB for cost in (*stage.costs[F], stage.costs[B][0])]
    # A receive buffer (8 or 16 MB) is made while the host gets ready for the next action.
    assert held == pytest.approx([float(change) for change in changes], abs=17)
    (told,) = [f for f in findings if f.subject == "stage 0"]
    assert told.evidence == "inferred"
    assert "host's clock" in told.detail


def test_ascends_last_stage_turns_where_the_host_stands_still() -> None:
    """Rank 2: no transfer between forward and backward; for 40 ms the host waits for the loss and nothing changes."""
    found, findings = _level2()
    times, levels, waits = _levels(2)
    for number, cost in enumerate(found.pipeline.stages[1].costs[F]):
        begin = bisect_right(times, waits[number][1])
        end = bisect_right(times, waits[number + 1][0])
        longest = max(range(begin, end - 1), key=lambda i: times[i + 1] - times[i])
        assert times[longest + 1] - times[longest] > 30_000_000
        assert (cost.held_bytes or 0) / MIB == pytest.approx(float(levels[longest] - levels[begin - 1]), abs=17)
    (told,) = [f for f in findings if f.subject == "stage 1"]
    assert told.confidence == 0.5


def test_levels_that_are_too_few_for_an_action_are_told(tmp_path: Path) -> None:
    """The synthetic sample has a level every 20 ms and actions of 9 ms."""
    found = looked_at(run_of(SAMPLES / "ascend-1f1b"))
    assert found.observed.memory == (None,) * 4
    assert found.pipeline.stages[0].activation_bytes() is None
    (note,) = texts(found.notes, NoticeCode.MEMORY_UNKNOWN)
    assert "PTA's levels are samples" in note
    assert note.startswith("ranks 0-3")
    assert found.pipeline.ranks[0].overhead_bytes is not None


def test_launches_tell_what_belongs_together_however_far_the_host_is_ahead(tmp_path: Path) -> None:
    """The sample as databases, whose host launches everything within some us, before the device begins.

    Each forward of a rank allocates (rank + 1) x 64 MiB at its first launch, its backward frees them at its own.
    """
    text = run_of(SAMPLES / "ascend-1f1b")
    timeline = reconstruct(text).observed
    ((origin,),) = text.rows("SELECT min(start_ns) FROM events WHERE rank = 0 AND category = 'kernel'")
    for rank, order in ORDERS.items():
        capture = of_text(SAMPLES / "ascend-1f1b" / f"rank_{rank}_ascend_pt", rank, order)
        launches = {row["connectionId"]: row["startNs"] for row in capture.rows["CANN_API"]}
        launched = {task["startNs"]: launches[task["connectionId"]] for task in capture.rows["TASK"]}
        device = capture.rows["TASK"][0]["deviceId"]
        capture.rows["MEMORY_RECORD"].clear()
        size, level, made = (rank + 1) * 64 * MIB, GIB, {}
        for op in sorted((o for o in timeline.computes() if o.rank == rank), key=lambda o: o.start_ns):
            time = launched[origin + op.start_ns] + 1
            level += size if op.kind is F else -size
            capture.add(
                "MEMORY_RECORD", component=capture.text("PTA"), timestamp=time, totalAllocated=level,
                totalReserved=20 * GIB, deviceId=device,
            )  # fmt: skip
            if op.kind is F:
                made[op.microbatch] = time, level
            else:
                capture.add(
                    "OP_MEMORY", name=capture.text("aten::mm"), size=size, allocationTime=made[op.microbatch][0],
                    releaseTime=time, activeReleaseTime=time, allocationTotalAllocated=made[op.microbatch][1],
                    allocationTotalReserved=20 * GIB, releaseTotalAllocated=level, releaseTotalReserved=20 * GIB,
                    deviceId=device,
                )  # fmt: skip
        capture.write(tmp_path / f"ascend_pytorch_profiler_{rank}.db")
    account = Account()
    found = reconstruct(ingest([tmp_path], tmp_path / "x.run"), account=account)
    for rank, stage in enumerate(found.pipeline.stages):
        size = (rank + 1) * 64 * MIB
        assert [cost.held_bytes for cost in stage.costs[F]] == [size] * 4
        assert [cost.held_bytes for cost in stage.costs[B]] == [-size] * 4
        assert found.pipeline.ranks[rank].static_bytes == GIB
    told = [f for f in account.findings if f.fact == "memory" and f.subject.startswith("stage")]
    assert {(f.evidence, f.confidence) for f in told} == {("order", 1.0)}


def test_stages_hold_the_figures() -> None:
    run = derived(SAMPLES / "h100-1f1b")
    rows = run.rows("SELECT activation_bytes, transient_bytes, gradient_bytes, static_bytes FROM stages ORDER BY stage")
    stages = reconstruct(run).pipeline.stages
    assert [row[:3] for row in rows] == [
        (s.activation_bytes(), s.transient_bytes(), s.gradient_bytes()) for s in stages
    ]
    assert all(one != two for one, two in pairwise(rows[:2]))
    told = run.rows("SELECT subject FROM findings WHERE fact = 'memory' ORDER BY subject")
    assert [subject for (subject,) in told] == [*(f"rank {i}" for i in range(4)), *(f"stage {i}" for i in range(4))]
    overhead = run.rows("SELECT count(*) FROM metrics WHERE metric = 'overhead_bytes' AND rank IS NOT NULL")
    assert overhead == [(4,)]
