"""Kernels lost at the head of an Ascend capture mark its step; which ones are lost, and how long they ran, is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.notices import texts
from helpers.recorded import SAMPLES, data, run_of

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import Clocks
from tracetool.reconstruction.steps import choose_step, lost_ratios, steps_of

if TYPE_CHECKING:
    from tracetool.store.run import Run


def _without_head(run: Run, kernels: int) -> tuple[Run, float]:
    """The Run without the first kernels of rank 2, and which share of its computing time they were (none overlaps)."""
    rows = run.rows(
        "SELECT start_ns, duration_ns FROM events WHERE rank = 2 AND category = 'kernel' ORDER BY start_ns LIMIT ?",
        [kernels + 1],
    )
    ((whole,),) = run.rows("SELECT vendor_computing_ns FROM steps WHERE rank = 2")
    kept = f"SELECT * FROM {{recorded}} WHERE rank <> 2 OR category <> 'kernel' OR start_ns >= {rows[-1][0]}"
    return run.overlay({"events": kept}), sum(duration for _, duration in rows[:-1]) / whole


@pytest.mark.parametrize("kernels", [9, 30])
def test_kernels_lost_at_the_head_mark_the_step(kernels: int) -> None:
    run, share = _without_head(run_of(SAMPLES / "ascend-1f1b"), kernels)
    assert share > 0.01
    account = Account()
    (step,) = steps_of(run, range(4), account, Clocks())
    assert step.status == "first"
    assert step.lost == {2: pytest.approx(share, abs=1e-4)}
    # It is the only one, and better than none.
    assert choose_step([step], range(4), None, account) == step
    (note,) = texts(account.notes, NoticeCode.STEP_INCOMPLETE)
    assert f"kernels are missing: of the computing time that the vendor tells {share:.0%} on rank 2" in note


def test_whole_captures_lack_nothing() -> None:
    assert lost_ratios(run_of(SAMPLES / "ascend-1f1b"), range(4)) == {}
    found = reconstruct(run_of(SAMPLES / "ascend-1f1b"))
    assert [s.status for s in found.steps] == ["complete"]


@pytest.mark.parametrize(
    "parts", [("msinsight", "test", "st", "level2"), ("msinsight", "test", "data", "pytorch", "text", "level1")]
)
def test_public_captures_lack_nothing(parts: tuple[str, ...]) -> None:
    run = run_of(data("ascend", f"Ascend+{parts[0]}", *parts[1:]))
    assert lost_ratios(run, range(4)) == {}
