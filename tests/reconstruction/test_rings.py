"""Messages of ring attention are part of actions; what is a pipeline's and what is not is known beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.recorded import data, run_of
from helpers.small_pipeline import MIB, Job, forwards, gpipe, write
from helpers.thorough import spread

from tracetool.errors import NoPipeline
from tracetool.ingestion import ingest
from tracetool.model.action import ActionKind
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture.exchanges import is_of_actions

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _run(tmp_path: Path, job: Job) -> Run:
    return ingest([write(tmp_path / "traces", job)], tmp_path / "x.run")


# Names of groups as other frameworks give them, and none: with any of them the ring is told by what it exchanges.
@spread(
    ("names", "cp"),
    [
        (("pp", "cp"), 2),
        (("PIPELINE_MODEL_PARALLEL_GROUP", "CONTEXT_PARALLEL_GROUP"), 4),
        (("mesh_pp", "cp_ring_intra"), 3),
        (("undefined", "undefined"), 2),
        (("", ""), 4),
    ],
    [(("undefined", "undefined"), 2)],
)
def test_a_ring_beside_a_pipeline(tmp_path: Path, names: tuple[str, str], cp: int) -> None:
    found = reconstruct(_run(tmp_path, Job(2, cp=cp, names=names)))
    assert [c.pp for c in found.coordinates] == [0] * cp + [1] * cp
    assert found.observed.global_ranks == (0, cp)
    assert found.pipeline.observed.shape.microbatches == 4
    assert {t.payload_bytes for t in found.observed.transfers} == {2 * MIB}
    assert len(found.observed.transfers) == 8
    # The exchanges run beside the computes, so that an action takes what its kernels take.
    for stage in found.pipeline.stages:
        assert {c.duration_ns for c in stage.costs[F]} == {400_000}
        assert {c.duration_ns for c in stage.costs[B]} == {600_000}


def test_several_tensors_go_round(tmp_path: Path) -> None:
    found = reconstruct(_run(tmp_path, Job(2, cp=2, ring_tensors=2, forward_bytes=(MIB, MIB), orders=(gpipe,))))
    assert found.observed.global_ranks == (0, 2)
    assert {t.payload_bytes for t in found.observed.transfers} == {2 * MIB}


# By name it is told before any message is looked at.
@spread("names", [("", ""), ("pp", "cp")], 1)
def test_a_ring_without_a_pipeline(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(NoPipeline, match=r"no pipeline parallelism to replay: all sends and receives .* part of act"):
        reconstruct(_run(tmp_path, Job(1, cp=2, names=names)))


# Forwards alone have fewer messages that could go round.
@spread("order", [gpipe, forwards], 1)
def test_a_pipeline_of_one_microbatch_on_groups_without_a_name_is_no_ring(tmp_path: Path, order: object) -> None:
    """Each rank sends as often as it receives, but the last one computes in between."""
    job = Job(2, steps=(1, 1, 1), orders=(gpipe,), names=("", ""))
    found = reconstruct(_run(tmp_path, job))
    assert found.observed.global_ranks == (0, 1)
    assert len(found.observed.transfers) == 2


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("cp", True), ("CONTEXT_PARALLEL_GROUP", True), ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", True),
        ("mesh_cp", True), ("TENSOR_MODEL_PARALLEL_GROUP", True), ("tp-cp", True), ("ulysses", True),
        ("pp", False), ("pp_new_stream", False), ("PIPELINE_MODEL_PARALLEL_GROUP", False), ("default_pg", False),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", False), ("", False), ("undefined", False),
    ],
)  # fmt: skip
def test_what_descriptions_say(description: str, expected: bool) -> None:
    assert is_of_actions(description) is expected


def test_the_reported_ring_beside_a_pipeline() -> None:
    found = reconstruct(run_of(data("cases", "ring-attention-pp2-cp2")))
    assert [(c.pp, c.cp, c.pipeline) for c in found.coordinates] == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.microbatches, len(found.observed.transfers)) == (2, 4, 8)


def test_the_reported_ring_without_a_pipeline() -> None:
    with pytest.raises(NoPipeline, match=r"ranks 0, 1, group 'cp'"):
        reconstruct(run_of(data("cases", "ring-attention-no-pipeline")))


@pytest.mark.parametrize("labelled", [False, True])
def test_skip_connections_are_the_reason(tmp_path: Path, labelled: bool) -> None:
    with pytest.raises(NoPipeline, match=r"skip connections are not read: stages 1 and 3 \(ranks 1 and 3\)"):
        reconstruct(_run(tmp_path, Job(4, skips=((1, 3),), labelled=labelled)))


def test_a_skip_over_the_whole_pipeline(tmp_path: Path) -> None:
    with pytest.raises(NoPipeline, match=r"skip connections are not read: stages 0 and 2"):
        reconstruct(_run(tmp_path, Job(3, skips=((0, 2),))))


def test_the_reported_skip_connection() -> None:
    with pytest.raises(NoPipeline, match=r"stages 0 and 2 \(ranks 0 and 2\)"):
        reconstruct(run_of(data("cases", "skip-connection")))
