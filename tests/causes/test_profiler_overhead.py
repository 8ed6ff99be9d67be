"""Time that the profiler itself takes is a cause of its own; how long it is, and where, is known beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes, texts
from helpers.recorded import data, run_of
from helpers.small_pipeline import KERNEL_US, Job, write
from helpers.thorough import spread

from tracetool.causes import idle_by_cause, idle_intervals, profiler_ns
from tracetool.causes.cause import Cause
from tracetool.explanation import explain
from tracetool.ingestion import ingest
from tracetool.model.notice import NoticeCode
from tracetool.model.topology import Topology
from tracetool.reconstruction import reconstruct
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction

LONG_US = 5_000


def _stalled(tmp_path: Path, name: str) -> Reconstruction:
    """1F1B of two ranks, of which the second one's host stands still ahead of its third forward."""
    job = Job(2, stall=(1, "F", 2, LONG_US, name))
    return reconstruct(ingest([write(tmp_path / "traces", job)], tmp_path / "x.run"))


# Names are looked up in one table.
@spread("name", ["Activity Buffer Request", "Buffer Flush", "Instrumentation", "Command Buffer Full"], 1)
def test_idle_time_beside_the_profilers_own_work_is_its(tmp_path: Path, name: str) -> None:
    found = _stalled(tmp_path, name)
    blocking = found.pipeline.p2p == "grouped"
    sums = idle_by_cause(idle_intervals(found.observed, Topology(), blocking=blocking), 2)
    # The device still runs what was launched ahead of it, and hands on what that made.
    whole = LONG_US * 1000
    assert whole - KERNEL_US * 1000 <= sums[Cause.PROFILER_OVERHEAD][1] <= whole
    assert sums[Cause.HOST][1] < 0.1 * whole
    assert profiler_ns(found.observed, blocking=blocking, by_edge=False) == sums[Cause.PROFILER_OVERHEAD][1]
    (note,) = texts(found.notes, NoticeCode.PROFILER_AT_WORK)
    assert f"5.0 ms of the step ({name})" in note


def test_without_a_record_of_it_the_host_was_late(tmp_path: Path) -> None:
    found = _stalled(tmp_path, "")
    sums = idle_by_cause(idle_intervals(found.observed, Topology()), 2)
    assert not any(sums[Cause.PROFILER_OVERHEAD])
    assert sums[Cause.HOST][1] > LONG_US * 900


def test_what_it_takes_is_no_miss_of_the_replay(tmp_path: Path) -> None:
    told, untold = (answer(_stalled(tmp_path / f"x{name}", name), "1f1b") for name in ("Buffer Flush", ""))
    assert LONG_US * 1000 - KERNEL_US * 1000 <= told.fidelity.profiler_ns <= LONG_US * 1000
    assert abs(told.fidelity.error_ratio) < 0.05 < abs(untold.fidelity.error_ratio)
    assert not told.warnings
    assert codes(untold.warnings) == [NoticeCode.FIDELITY]


# As reported; what a profiler takes of made jobs by default (above).
@pytest.mark.thorough
def test_the_reported_buffer_request() -> None:
    """4,940 us of an Activity Buffer Request on rank 2."""
    explained = explain(reconstruct(run_of(data("cases", "profiler-buffer-request"))))
    first = explained.causes[0]
    assert first.cause is Cause.PROFILER_OVERHEAD
    assert first.mean_ns == pytest.approx(4_940_000, rel=0.01)
    assert not explained.answer.warnings
