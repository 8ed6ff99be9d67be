"""Gaps between the kernels of an action, and what they say about steps without a profiler."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from helpers.notices import codes
from helpers.recorded import data, derived, looked_at, rebuilt
from helpers.thorough import spread

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.closeup.slowdown import HOST_BOUND, gap_shares, gaps_of, notes_on_gaps
from tracetool.reports.recording.summary import run_summary


def _shares(name: str) -> dict[tuple[int, str], float]:
    return gaps_of(chain.from_iterable(rebuilt(name).segments.values()))


def test_the_share_is_of_the_time_of_all_actions_of_a_kind() -> None:
    shares = gap_shares([(0, "F", 100, 60), (0, "F", 300, 300), (0, "B", 50, 50), (1, "F", 10, 4)])
    assert shares == {(0, "B"): 0.0, (0, "F"): pytest.approx(0.1), (1, "F"): pytest.approx(0.6)}


# Of one that a profiler made slower, and one that it did not.
@spread(
    "name", ["1f1b_m8", "rt1f1b_m8", "gpipe_m8", "interleaved_m8", "zbh1_m8", "tp2pp2_1f1b_m8"], ["1f1b_m8", "zbh1_m8"]
)
def test_it_warns_of_the_recordings_that_a_profiler_made_slower_and_of_no_others(name: str) -> None:
    """measured.json has steps with and without the profiler: 5 % apart or less, or 6 % and more."""
    rows = json.loads(data("h100-pp4", "measured.json").read_text(encoding="utf-8"))["results"]
    row = next(r for r in rows if r["name"] == name)
    slower = min(row["profiled_step_ms"]) / row["step_ms"] - 1
    warned = NoticeCode.HOST_BOUND in codes(notes_on_gaps(_shares(name)))
    assert warned == (slower > 0.05)
    assert warned == (max(_shares(name).values()) >= HOST_BOUND)


def test_the_tables_of_a_run_tell_what_its_kernels_do() -> None:
    """Two tensor-parallel pipelines: collectives on a stream of their own, whose waits are no gaps.

    From costs and exposed collectives in SQL, and from the spans of single kernels.
    """
    run = derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8"))
    listed = {(gap["stage"], gap["kind"]): gap["gap_ratio"] for gap in run_summary(run)["host_gaps"]}
    assert listed == pytest.approx(gaps_of(chain.from_iterable(looked_at(run).segments.values())))
