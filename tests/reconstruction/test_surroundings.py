"""Host time around a step's device work, from steps whose marks, barriers and kernels are at known times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, looked_at, rebuilt, run_of

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import TailPart
from tracetool.readers import rows_table
from tracetool.reconstruction.actions import RankWork, Segment
from tracetool.reconstruction.actions.surroundings import outside_ns
from tracetool.reconstruction.capture.groups import PipelineGroup
from tracetool.reconstruction.steps import Step
from tracetool.reconstruction.steps.reading import StepEvidence, StepReading
from tracetool.store.run import Run, RunWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def _outside_ns(path: Path, collectives: Sequence[tuple[int, str, int, int]], step: Step | None = None) -> int | None:
    """What is outside in a Run of nothing but (rank, operation, start, end) of communication."""
    step = step or STEP
    rows: list[tuple[object, ...]] = [
        (rank, n, operation, "x", [], None, None, start, 1, None, 7, start, end, "metadata", None, None)
        for n, (rank, operation, start, end) in enumerate(collectives)
    ]
    with RunWriter(path) as writer:
        writer.commit({"digest": "x", "world_size": 2}, {"comms": rows_table("comms", rows)})
    reading = StepReading(Run(path), [step], GROUP.ranks, StepEvidence(True, True, False, False))
    return outside_ns(reading, GROUP, step, WORK)


def _work(*spans: tuple[int, int], tail_ns: int = 0) -> RankWork:
    segments = tuple(
        Segment(
            kind=ActionKind.FORWARD, microbatch=m, stage=0, start_ns=start, end_ns=end, issue_ns=start, issued_ns=end
        )
        for m, (start, end) in enumerate(spans)
    )
    return RankWork(segments, (TailPart(ActionKind.OPTIMIZER, tail_ns),), "label")


GROUP = PipelineGroup((0, 1))
STEP = Step(3, {0: (1000, 9000), 1: (1200, 9100)})
WORK = {0: _work((1500, 2000), (3000, 8000), tail_ns=300), 1: _work((4000, 8100), tail_ns=100)}
"""Rank 0: 500 ahead, 9000 - 8300 = 700 behind; rank 1 (waits first): 2800 ahead, 9100 - 8200 = 900 behind."""


def test_the_shortest_gap_ahead_and_the_shortest_one_behind_count(tmp_path: Path) -> None:
    assert _outside_ns(tmp_path / "x", []) == 500 + 700


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ((0, "barrier", 1100, 1400), 100 + 700),  # from its end to the first kernel
        ((1, "barrier", 1300, 3900), 100 + 700),
        ((0, "allreduce", 8400, 8800), 500 + 100),  # from the last kernel to its start
        ((0, "barrier", 900, 1400), 500 + 700),  # begins ahead of the step: another one's
        ((0, "barrier", 8900, 9100), 500 + 700),
        ((0, "barrier", 2100, 2200), 500 + 700),  # between actions: waited for there
        ((0, "recv", 1100, 1400), 500 + 700),  # part of the pipeline's work
        ((5, "barrier", 1100, 1400), 500 + 700),  # another pipeline's
    ],
)
def test_barriers_and_what_lies_beyond_them_are_left_out(
    collective: tuple[int, str, int, int], expected: int, tmp_path: Path
) -> None:
    assert _outside_ns(tmp_path / "x", [collective]) == expected


@pytest.mark.parametrize(
    "spans",
    [
        {0: (1000, 8299), 1: (1200, 9100)},  # the host is through before the device
        {0: (1000, 9000), 1: (1200, 8199)},
        {0: (1501, 9000), 1: (1200, 9100)},  # the mark begins after the first kernel
    ],
)
def test_marks_that_do_not_enclose_the_devices_work_do_not_tell(
    spans: dict[int, tuple[int, int]], tmp_path: Path
) -> None:
    assert _outside_ns(tmp_path / "x", [], Step(3, spans)) is None


def test_steps_found_by_other_means_have_none(tmp_path: Path) -> None:
    assert _outside_ns(tmp_path / "x", [], Step(3, STEP.spans, evidence="messages")) is None


def test_the_recorded_steps_have_little_more_than_a_millisecond() -> None:
    """rt1f1b_m8: measured are 262.195 ms without a profiler, device work and what was outside came to as much."""
    found = rebuilt("rt1f1b_m8")
    assert found.pipeline.outside_ns is not None
    assert 0 < found.pipeline.outside_ns < 5_000_000


def test_the_mark_of_a_step_is_that_of_the_rank_where_it_is_longest() -> None:
    """ProfilerStep#1 of the sample's rank 0, whose "dur" is the longest of the four."""
    assert looked_at(run_of(SAMPLES / "h100-1f1b")).pipeline.marked_ns == 248_798_274
