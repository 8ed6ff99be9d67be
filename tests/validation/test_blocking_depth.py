"""Deeper warm-ups in blocking batches, against steps that Megatron ran (data/megatron, two H200)."""

from __future__ import annotations

import pytest
from helpers.recorded import data, looked_at, run_of

from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements


def test_deeper_warm_ups_in_blocking_batches_take_what_megatron_measured() -> None:
    """NCCL copies what is sent into buffers, in a batch with a receive as well: no rank waits for the other's receive.

    With a rendezvous in every batch one more forward takes 350 ms, and two more cannot finish.
    """
    found = looked_at(run_of(data("megatron", "1f1b_m8")))
    rows = validate(Sources(found), read_measurements(data("megatron", "1f1b_m8", "measured.json"))).rows
    errors = {row.measured.name: row.error_ratio or 0 for row in rows}
    plain = errors["mg_1f1b_m8"]
    for name in ("mg_1f1b_geo1_m8", "mg_1f1b_geo2_m8"):
        assert errors[name] == pytest.approx(0, abs=0.05), name
        # Against 1F1B of the same recording, what its computes are taken to cost does not matter.
        assert (1 + errors[name]) / (1 + plain) == pytest.approx(1, abs=0.01), name
