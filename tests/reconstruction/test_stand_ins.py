"""Fewer traces than ranks: recordings with ranks left out, beside the whole; made jobs whose spread is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.notices import texts
from helpers.recorded import data, h100, rebuilt, run_of
from helpers.thorough import spread

import tracetool as tt
from tracetool.errors import MissingRank
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Taken
from tracetool.model.topology import Topology
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.stand_ins import StandIn, find_stand_ins, spread_of_copies
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reports.recording.summary import run_summary, stand_in_lines
from tracetool.whatif.accuracy import KnownError, change_error_ratio, with_copies

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

SLOW = 1.1
SPREAD = (48 * SLOW + 0.5) / 48.5 - 1
"""Four microbatches of 4 ms forward and 8 ms backward, slower; 0.5 ms of optimizer, which is not."""
_PER_RANK = ("events", "comms", "groups", "steps", "memory", "ranks")


def only(run: Run, *ranks: int) -> Run:
    """The Run as if these ranks alone had been recorded."""
    return run.overlay(dict.fromkeys(_PER_RANK, f"SELECT * FROM {{recorded}} WHERE rank IN {(*ranks, -1)}"))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six replicas of two stages, of which rank 2 (stage 0) is slow; ranks 4, 5, 9 and 10 were not recorded.

    Ranks 4 and 10 are a whole pipeline: the groups of their stages name them.
    """
    folder = tmp_path_factory.mktemp("sampled")
    write_job(folder / "all", MadeJob(pp=2, dp=6, slow={2: SLOW}))
    for rank in (4, 5, 9, 10):
        (folder / "all" / f"rank{rank}.json").rename(folder / f"rank{rank}.json")
    tt.ingest(folder / "all", folder / "x.run")
    return folder / "x.run"


def test_who_stands_for_whom_and_how_far_those_seen_are_apart(sampled: Path) -> None:
    """Stage 0 is ranks 0 to 5, stage 1 ranks 6 to 11."""
    run = tt.open_run(sampled)
    first, second = find_stand_ins(run, survey_run(run, Account()).coordinates)
    assert (first.stage, first.recorded, first.stand_ins) == (0, (0, 1, 2, 3), (StandIn(4, 3), StandIn(5, 3)))
    assert (second.stage, second.recorded, second.stand_ins) == (1, (6, 7, 8, 11), (StandIn(9, 8), StandIn(10, 11)))
    assert first.spread_ratio == pytest.approx(SPREAD, abs=1e-6)
    assert second.spread_ratio == pytest.approx(0, abs=1e-3)
    assert first.slower_chance == pytest.approx(2 / 6), "any of six ranks may be the slowest"
    assert spread_of_copies((first, second), {4: 3}) == first.spread_ratio
    assert stand_in_lines(run)[0].startswith(
        "stage 0: ranks 0-3 recorded, rank 3 stands for 2 more; those recorded are 9.9%"
    )
    told = run_summary(run)["stand_ins"]
    assert [(stage["stage"], [one["source"] for one in stage["stand_ins"]]) for stage in told] == [
        (0, [3, 3]),
        (1, [8, 11]),
    ]


def test_a_slow_rank_that_was_left_out_lies_within_what_the_seen_ones_tell(sampled: Path) -> None:
    """The step of the slow pipeline beside that of a copied one: longer by no more than the spread."""
    run = tt.open_run(sampled)
    copied = reconstruct(run, pipeline=4, copy_missing=True)
    spread = copied.taken.copied_spread_ratio
    assert copied.taken.copied_ranks == {5: 3}
    assert spread is not None
    steps = [tt.answer(one, "1f1b").baseline.step_ns for one in (copied, reconstruct(run, pipeline=2))]
    assert steps[0] < steps[1] <= steps[0] * (1 + spread)
    (note,) = texts(copied.notes, NoticeCode.RANKS_COPIED)
    assert "up to 9.9% apart, which ± holds" in note


# Copies of made jobs say the same by default (test_coordinates); how far two recorded pipelines are apart is measured
# here.
@pytest.mark.thorough
# Other ranks are missing of the same two pipelines.
@spread("recorded", [(0, 3), (1, 2), (0, 1, 2)], 1)
def test_of_a_single_rank_of_a_stage_nothing_tells_how_far_others_are_apart(recorded: tuple[int, ...]) -> None:
    """Two tensor parallel pipelines of H100s: the whole recording lies up to 2.4 % from what copies make of it."""
    run = only(h100("tp2pp2_1f1b_m8"), *recorded)
    number = 1 if recorded == (0, 1, 2) else 0
    found = reconstruct(run, pipeline=number, copy_missing=True)
    assert found.taken.copied_ranks
    assert found.taken.copied_spread_ratio is None
    assert "whether it is slower than its source is unknown" in texts(found.notes, NoticeCode.RANKS_COPIED)[0]
    answer, whole = (tt.answer(one, "1f1b") for one in (found, rebuilt("tp2pp2_1f1b_m8", pipeline=number)))
    assert answer.baseline.seen_error_ratio is None
    assert answer.baseline.step_ns == pytest.approx(whole.baseline.step_ns, rel=0.025)


def test_nothing_stands_for_a_stage_of_which_no_rank_was_recorded() -> None:
    run = only(run_of(data("megatron", "1f1b_m8")), 0)
    (stage,) = find_stand_ins(run, survey_run(run, Account()).coordinates)
    assert (stage.stage, stage.recorded, stage.stand_ins, stage.spread_ratio) == (1, (), (StandIn(1, None),), None)
    assert stage.slower_chance is None
    assert stage.text.endswith("nothing can stand for them")
    with pytest.raises(MissingRank):
        reconstruct(run, copy_missing=True)


def test_the_error_of_a_step_grows_by_the_spread_and_that_of_a_change_does_not() -> None:
    known = KnownError(0.04, 0.01, Topology(), 8)
    copied = Taken(copied_ranks={4: 3}, copied_spread_ratio=0.1)
    grown = with_copies(known, copied)
    assert grown is not None
    assert grown.step_ratio == pytest.approx(0.14)
    assert change_error_ratio(grown, grown, 0.0) == change_error_ratio(known, known, 0.0)
    assert with_copies(known, Taken()) == known
    assert with_copies(known, Taken(copied_ranks={4: 3})) is None
