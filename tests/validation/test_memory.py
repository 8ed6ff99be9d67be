"""Peaks of every schedule from one 1F1B recording against what one H200 allocated (tests/data/h200-memory)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from helpers.accuracy import FILES, H200_MEMORY, validated
from helpers.notices import texts
from helpers.recorded import ROOT
from helpers.synthetic import found, pipeline

from tracetool.model.notice import NoticeCode
from tracetool.validation import Sources, Validation, validate
from tracetool.validation.measured import MeasuredStep, Measurements, read_measurements

P, M, PAYLOAD, STATIC = 4, 8, 64 * 2**20, 4 * 2**30


def test_peaks_of_all_schedules_are_those_that_were_allocated() -> None:
    """Nothing was fitted to them: 19 configurations of 8 and 16 microbatches, 61 peaks of single ranks."""
    measured = read_measurements(ROOT / "tests" / "data" / H200_MEMORY / "measured.json")
    done = validated("rt1f1b_m8", H200_MEMORY)
    errors = [abs(e) for row in done.rows for e in row.peak_error_ratios if e is not None]
    assert len(errors) == sum(gib is not None for step in measured.steps for gib in step.peak_allocated_gib or ()) == 61
    assert max(errors) <= 0.01
    after = {row.measured.name: row.prediction.left_over_microbatches for row in done.rows if row.prediction}
    assert {name for name, count in after.items() if count} == {name for name in after if "_after_m16" in name}
    assert set(after.values()) == {0, 8}


@pytest.mark.parametrize("name", FILES)
def test_peaks_of_the_pipeline_of_four_ranks(name: str) -> None:
    """What H100s allocated, with and without links, of 8 and 16 microbatches."""
    done = validated("rt1f1b_m8", name)
    assert done.max_peak_error_ratio is not None
    assert done.max_peak_error_ratio <= 0.005


def _validated(static_gib: list[float | None] | None, buffers: int) -> Validation:
    of = pipeline(P, M, 1, 1, payload_bytes=PAYLOAD, activation_bytes=10, static_bytes=STATIC)
    standing = buffers * PAYLOAD
    ranks = tuple(
        replace(rank, receive_buffer_bytes=standing * (1 if n in {0, P - 1} else 2)) for n, rank in enumerate(of.ranks)
    )
    row = {"name": "row", "schedule": "1f1b", "microbatches": M, "pipeline_ranks": P, "step_ms": None}
    step = msgspec.convert(row | {"static_allocated_gib": static_gib, "peak_allocated_gib": [5.0] * P}, MeasuredStep)
    return validate(Sources(found(replace(of, ranks=ranks))), Measurements((step,), {}))


@pytest.mark.parametrize(
    ("static_gib", "buffers", "count"),
    [
        ([4.5, 5, 5, 4.5], M, 8),  # 8 messages of 1/16 GiB more on the ends, 16 between
        ([4.53, 5.03, 5.03, 4.53], M, 8),  # and an example of what a stage takes
        ([4.5, None, 5, 4.5], M, 8),
        ([4.0, 4.0, 4.0, 4.0], M, 0),
        ([4.5, 4.5, 4.5, 4.5], M, 0),  # no number of messages is as much on every rank
        ([3.5, 3, 3, 3.5], M, 0),
        ([4.5, 5, 5, 4.5], 0, 0),  # buffers that come and go leave nothing
        (None, M, 0),
    ],
)
def test_buffers_left_from_larger_steps_are_told_from_what_rows_held(
    static_gib: list[float | None] | None, buffers: int, count: int
) -> None:
    done = _validated(static_gib, buffers)
    (row,) = done.rows
    assert row.prediction is not None
    assert row.prediction.left_over_microbatches == count
    messages = [1, 2, 2, 1]
    plain = [STATIC + 10 * (P - rank) for rank in range(P)]
    assert row.peak_bytes == tuple(level + n * count * PAYLOAD for level, n in zip(plain, messages, strict=True))
    told = texts(done.notes, NoticeCode.PEAKS_OF_BUFFERS)
    assert any("for 8 more microbatches" in note for note in told) == bool(count)
