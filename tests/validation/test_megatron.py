"""Steps of megatron-core, measured without a profiler, from one recording.

Which launches count as undisturbed was chosen among rules with these rows in view; no figure was fitted to them.
"""

from __future__ import annotations

import pytest
from helpers.accuracy import validated_megatron
from helpers.thorough import some


def test_orders_follow_from_a_recording_whose_hosts_wait_after_every_batch() -> None:
    """1F1B, deeper warm-ups, GPipe order and interleaved with overlapped messages, of 4 to 16 microbatches, from 8."""
    for step in some((1, 2), 1):
        done = validated_megatron("1f1b_m8", step)
        errors = {row.measured.name: row.error_ratio for row in done.rows}
        assert len(errors) == 12
        assert all(error is not None and abs(error) < 0.05 for error in errors.values()), errors
        steps = {
            row.measured.name: (row.measured.step_ms, row.prediction.step_ns / 1e6)
            for row in done.rows
            if row.prediction is not None and row.measured.step_ms is not None
        }
        gains = [b / a - 1 for a, b in zip(steps["mg_1f1b_m8"], steps["mg_vpp2_overlap_m8"], strict=True)]
        assert abs(gains[1] - gains[0]) < 0.04, gains


# From a recording of one stage per rank by default (above).
@pytest.mark.thorough
def test_interleaved_steps_follow_from_an_interleaved_recording_whose_hosts_were_held_up() -> None:
    """4, 8 and 16 microbatches from either of two steps, one of them 3 % longer than the other under the profiler."""
    for step in (1, 2):
        done = validated_megatron("vpp2_overlap_m8", step)
        findings = done.sources.run.findings
        assert [f.subject for f in findings if f.fact == "launches"] == ["rank 0", "rank 1"]
        errors = [abs(row.error_ratio) for row in done.rows if row.error_ratio is not None]
        assert len(errors) == 4
        assert max(errors) < 0.03
