"""Recordings of megatron-core without labels, against the configuration that was run (README of the data, code)."""

from __future__ import annotations

from collections import Counter

from recorded import data, looked_at, run_of

from tracetool.schedules.recognise import recognise


def test_interleaved_stages_whose_loss_is_scaled_apart_from_its_forward_are_read() -> None:
    """2 ranks, 2 chunks, 8 microbatches; 3 hops between 4 stages, there and back: 2 x 3 x 8 messages."""
    found = looked_at(run_of(data("megatron", "vpp2_overlap_m8")))
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.chunks, shape.microbatches, shape.placement) == (2, 2, 8, "loop")
    known = recognise(found.pipeline.observed)
    assert known is not None
    assert known.name == "interleaved"
    assert len(found.observed.transfers) == 2 * 3 * 8
    actions = Counter((s.stage, s.kind.value) for of_rank in found.segments.values() for s in of_rank)
    assert actions == {(stage, kind): 8 for stage in range(4) for kind in "FB"}
    assert [f.confidence for f in found.findings if f.fact == "transfers"] == [1]
