"""Several tensors per hop are one message of their sum; how many there are of what size is known beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes
from helpers.recorded import data, run_of
from helpers.small_pipeline import MIB, Job, gpipe, one_f_one_b, write
from helpers.thorough import spread

from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction import Reconstruction, reconstruct

if TYPE_CHECKING:
    from pathlib import Path

TWO = (2 * MIB, MIB // 2)
THREE = (2 * MIB, MIB // 2, 64 * 1024)


def _check(found: Reconstruction, p: int, m: int, forward: int, backward: int) -> None:
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.chunks, shape.microbatches) == (p, 1, m)
    assert len(found.observed.transfers) == 2 * (p - 1) * m
    sizes = {(t.kind.value, t.payload_bytes) for t in found.observed.transfers}
    assert sizes == {("F", forward), ("B", backward)}
    assert {s.forward_payload_bytes for s in found.pipeline.stages[:-1]} == {forward}
    assert {s.backward_payload_bytes for s in found.pipeline.stages[1:]} == {backward}


@spread("batched", [False, True], 1)
# Labels say where actions are, which messages then need not: the others, and other numbers of tensors, meet one by one.
@spread("labelled", [False, True], 1)
@spread(
    ("p", "forward", "backward"),
    [(4, TWO, TWO), (2, (MIB,), THREE), (2, (MIB, MIB), (MIB, MIB)), (3, THREE, (MIB,))],
    [(3, THREE, (MIB,))],
)
def test_tensors_of_a_hop_are_one_message(
    tmp_path: Path, p: int, forward: tuple[int, ...], backward: tuple[int, ...], *, labelled: bool, batched: bool
) -> None:
    job = Job(p, forward_bytes=forward, backward_bytes=backward, labelled=labelled, batched=batched)
    found = reconstruct(ingest([write(tmp_path / "traces", job)], tmp_path / "x.run"))
    _check(found, p, 4, sum(forward), sum(backward))
    assert NoticeCode.MESSAGES_TOGETHER in codes(found.notes)
    moved = {t.end_ns - t.start_ns for t in found.observed.transfers if t.kind.value == "F"}
    # One kernel moves a batch; separate ones move one after the other, at least for as long as one takes.
    assert min(moved) == 60_000 if batched else min(moved) >= 60_000


# 1F1B with several tensors by default (above), GPipe with one (test_coordinates).
@pytest.mark.thorough
def test_gpipe_with_several_tensors(tmp_path: Path) -> None:
    job = Job(3, forward_bytes=TWO, backward_bytes=THREE, orders=(gpipe,), batched=False)
    run = derive(ingest([write(tmp_path / "traces", job)], tmp_path / "x.run"))
    assert run.rows("SELECT value FROM findings WHERE fact = 'schedule'") == [("gpipe, p=3 v=1 m=4",)]
    assert run.rows("SELECT kind, payload_bytes, count(*) FROM transfers GROUP BY ALL ORDER BY ALL") == [
        ("B", sum(THREE), 8),
        ("F", sum(TWO), 8),
    ]


def test_tensors_in_one_kernel_do_not_move_the_clocks(tmp_path: Path) -> None:
    """The ranks share one clock here; what one kernel carries to one rank tells as much as a single message."""
    job = Job(4, forward_bytes=THREE, orders=(one_f_one_b,))
    run = derive(ingest([write(tmp_path / "traces", job)], tmp_path / "x.run"))
    assert run.rows("SELECT count(*) FROM clocks WHERE applied") == [(0,)]


# As reported; made jobs by default (above).
@pytest.mark.thorough
def test_the_reported_two_tensors() -> None:
    found = reconstruct(run_of(data("cases", "two-tensors-per-hop")))
    _check(found, 4, 4, 2 * MIB + 512 * 1024, 2 * MIB + 512 * 1024)
