"""What follows the window: whose doing each moment of it is, and the step without each cause, by closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.recorded import data, looked_at, run_of
from helpers.synthetic import found, pipeline, places, scenario

from tracetool.causes import idle_after_window, idle_by_cause
from tracetool.causes.cause import AFTER_WINDOW, Cause
from tracetool.explanation import Explanation, explain
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.pipeline import Pipeline, TailPart
from tracetool.model.timeline import measure

F, B, P, M = 100, 200, 4, 8
REDUCE, OWN, OPTIMIZER = 250, 30, 70
LATENCY, PAYLOAD = 1000, 5000
CLOSED = (M + P - 1) * (F + B)


def _tied(*, reduce_ns: tuple[int, ...] = (REDUCE,) * P) -> Pipeline:
    """Equal stages, the first and the last of which hold one embedding: each rank's tail in order."""
    measured = pipeline(P, M, F, B)
    profiles = []
    for profile, own_ns in zip(measured.ranks, reduce_ns, strict=True):
        use = CollectiveUse("allreduce", (0, P - 1), PAYLOAD, OWN, meeting="embedding")
        tied = (TailPart(ActionKind.REDUCE_GRAD, OWN, "embedding", (use,)),) if profile.rank in {0, P - 1} else ()
        tail = (TailPart(ActionKind.REDUCE_GRAD, own_ns), *tied, TailPart(ActionKind.OPTIMIZER, OPTIMIZER))
        profiles.append(replace(profile, tail=tail))
    return replace(measured, ranks=tuple(profiles))


def _idle(explained: Explanation, cause: Cause) -> tuple[int, ...]:
    return next(one.rank_ns for one in explained.causes if one.cause is cause)


def test_each_cause_of_the_tail_is_what_the_step_is_shorter_without_it() -> None:
    """Rank 0 ends the window, and the step: its reduction, a ring of two ranks over the link and back, its optimizer.

    Each link carries 2 (n-1)/n of the tensor, for two ranks all of it, and a part makes two hops over links.
    """
    over = PAYLOAD + 2 * LATENCY
    topology = places([2, 2], latency_ns=LATENCY)
    explained = explain(found(_tied()), "1f1b", scenario(topology, "posted-ahead"))
    window = explained.metrics.window_ns
    assert explained.metrics.step_ns == window + REDUCE + over + OPTIMIZER
    (result,) = explained.answer.results
    free = CLOSED + REDUCE + OWN + OPTIMIZER
    assert result.cross_dc_step_ns == explained.metrics.step_ns - free
    assert result.cross_dc_bubble_ns == window - CLOSED
    told = {one.cause: one for one in explained.causes if one.cause in AFTER_WINDOW}
    for rank in (0, P - 1):
        assert {cause: one.rank_ns[rank] for cause, one in told.items()} == {
            Cause.GRADIENT_REDUCTION: REDUCE,
            Cause.EMBEDDING_ALLREDUCE: over,
            Cause.OPTIMIZER: OPTIMIZER,
        }
    without = {cause: one.removal for cause, one in told.items()}
    assert without[Cause.GRADIENT_REDUCTION].step_ns == window + over + OPTIMIZER
    assert without[Cause.EMBEDDING_ALLREDUCE].step_ns == window + REDUCE + OPTIMIZER
    assert without[Cause.OPTIMIZER].step_ns == window + REDUCE + over
    for cause, one in told.items():
        assert without[cause].change_ratio == pytest.approx(-one.rank_ns[0] / explained.metrics.step_ns)


def test_ranks_that_are_through_or_wait_have_the_cause_of_whom_they_wait_for() -> None:
    """Without a link. Rank 1's last backward ends one backward before rank 0's: 50 of its 250 ns of reduction are
    beyond the window, then its own optimizer, then what rank 0 still does: 130 of reduction, 30 of embedding, 70."""
    explained = explain(found(_tied()), "1f1b")
    assert explained.metrics.step_ns == CLOSED + REDUCE + OWN + OPTIMIZER
    assert {cause: _idle(explained, cause)[1] for cause in AFTER_WINDOW} == {
        Cause.GRADIENT_REDUCTION: 50 + 130,
        Cause.EMBEDDING_ALLREDUCE: OWN,
        Cause.OPTIMIZER: 2 * OPTIMIZER,
    }
    # The last rank, whose gradients are ready late, holds up the first one at the collective.
    slow = REDUCE + 3 * B + 111
    late = explain(found(_tied(reduce_ns=(REDUCE, REDUCE, REDUCE, slow))), "1f1b")
    assert late.metrics.step_ns == CLOSED + REDUCE + 111 + OWN + OPTIMIZER
    assert _idle(late, Cause.GRADIENT_REDUCTION)[0] == REDUCE + 111
    assert _idle(late, Cause.EMBEDDING_ALLREDUCE)[0] == OWN


def test_norms_are_no_embedding() -> None:
    """Stages agree on the norm of their gradients: eight bytes, which hop over the link and back."""
    measured = pipeline(2, 4, F, B)
    norm = CollectiveUse("allreduce", (0, 1), 8, OWN, meeting="norm")
    tail = (TailPart(ActionKind.REDUCE_GRAD, OWN, "norm", (norm,)),)
    measured = replace(measured, ranks=tuple(replace(profile, tail=tail) for profile in measured.ranks))
    explained = explain(found(measured), "1f1b", scenario(places([1, 1], latency_ns=LATENCY)))
    assert _idle(explained, Cause.GRADIENT_REDUCTION) == (OWN + 2 * LATENCY,) * 2
    assert all(one.cause is not Cause.EMBEDDING_ALLREDUCE for one in explained.causes)


# Made tails are by default (above); here a recorded embedding reduces.
@pytest.mark.thorough
def test_a_recording_with_a_tied_embedding() -> None:
    """Two stages on Ascend: the transfer of its all-reduce takes 34.6 ms, as its README says, and its wait is other
    ranks' doing. What follows the window is all of the step beyond it, on every rank."""
    recorded = looked_at(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")))
    metrics = measure(recorded.observed)
    sums = idle_by_cause(idle_after_window(recorded.observed), 2, AFTER_WINDOW)
    for rank in range(2):
        assert sum(of_cause[rank] for of_cause in sums.values()) == metrics.step_ns - metrics.window_ns
    assert sums[Cause.EMBEDDING_ALLREDUCE] == pytest.approx((34.6e6,) * 2, rel=0.002)
