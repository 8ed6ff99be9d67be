"""Hosts that wait after each blocking batch, in a replay: windows added up by hand for two equal stages.

o is what passes from the end of a batch to the first kernel, l an action's lag behind an idle device, f and b its
kernels. A backward right behind its forward has the lead over the device that the forward left its host.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.synthetic import found, pipeline, replayed, scenario, window_ns

from tracetool.causes import idles_of
from tracetool.causes.cause import Cause
from tracetool.explanation import explain
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import P2P_MODES, Launch, P2PMode, Pipeline
from tracetool.model.timeline import measure

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
FORWARD = Launch(sync_ns=50, turn_ns=5, lag_ns=100, issue_ns=700)
BACKWARD = Launch(sync_ns=80, turn_ns=30, lag_ns=70, issue_ns=900)
f, b = 1000, 2000


def waiting(m: int, forward: Launch = FORWARD, backward: Launch = BACKWARD) -> Pipeline:
    measured = pipeline(2, m, f, b)
    stages = tuple(replace(stage, launches={F: forward, B: backward}) for stage in measured.stages)
    ranks = tuple(replace(rank, gaps_left_out=True) for rank in measured.ranks)
    return replace(measured, stages=stages, ranks=ranks)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("issue", [700, 1060, 1500])
def test_gpipe_pays_for_each_batch(m: int, issue: int) -> None:
    """Each rank has a batch ahead of every action but its first and, on the last rank, the first backward."""
    forward = replace(FORWARD, issue_ns=issue)
    first = forward.lag_ns + f
    cycle, back = forward.sync_ns + forward.lag_ns + f, BACKWARD.sync_ns + BACKWARD.lag_ns + b
    # The host is through with the forward's launches ``issue`` after it began, the device ``lag + f`` after.
    lag = max(0, BACKWARD.turn_ns + BACKWARD.lag_ns - (first - issue))
    expected = first + m * cycle + lag + b + (m - 1) * back + back
    assert window_ns(waiting(m, forward), "gpipe", scenario(p2p="grouped")) == expected


@pytest.mark.parametrize("mode", [mode for mode in P2P_MODES if mode != "grouped"])
def test_hosts_that_do_not_wait_lag_at_the_start_alone(mode: P2PMode) -> None:
    """Equal stages without delays: (m + p - 1)(f + b), and the lag of the first forward, which starts from nothing."""
    for m in (1, 4):
        assert window_ns(waiting(m), "1f1b", scenario(p2p=mode)) == FORWARD.lag_ns + (m + 1) * (f + b)


def test_what_passes_after_a_batch_is_idle_time_of_the_host() -> None:
    """One microbatch: F, batch, F B, batch, B. Both waits are idle time of the rank that waits, lags are compute."""
    done = replayed(waiting(1), "gpipe", scenario(p2p="grouped"))
    host = {(idle.rank, idle.duration_ns) for idle in idles_of(done) if idle.cause is Cause.HOST}
    assert (1, FORWARD.sync_ns) in host
    assert (0, BACKWARD.sync_ns) in host
    lags = FORWARD.lag_ns * 2 + BACKWARD.lag_ns
    assert measure(done.timeline).compute_ns == 2 * (f + b) + lags


def test_hosts_without_waits_change_nothing() -> None:
    nothing = Launch(0, 0, 0, 0)
    for mode in P2P_MODES:
        with_launches = window_ns(waiting(4, nothing, nothing), "1f1b", scenario(p2p=mode))
        assert with_launches == window_ns(pipeline(2, 4, f, b), "1f1b", scenario(p2p=mode))


def test_the_recorded_order_is_replayed_with_what_was_recorded() -> None:
    """Actions as long as they were, with all that held them back in them, and what passes after a batch."""
    measured = waiting(1)
    costs = {
        kind: tuple(replace(cost, uncontended_ns=cost.duration_ns // 2) for cost in of_kind)
        for kind, of_kind in measured.stages[0].costs.items()
    }
    measured = replace(measured, stages=tuple(replace(stage, costs=costs) for stage in measured.stages))
    expected = 2 * (f + b) + FORWARD.sync_ns + BACKWARD.sync_ns
    assert window_ns(measured.as_recorded(), "gpipe", scenario(p2p="grouped")) == expected
    assert pipeline(2, 1, f, b).as_recorded() == pipeline(2, 1, f, b)


def test_hosts_that_need_longer_than_their_devices_set_the_pace() -> None:
    """Launches of 1500 and 2500 against kernels of 1000 and 2000: actions take what launching takes."""
    forward, backward = Launch(50, 0, 100, 1500), Launch(80, 0, 70, 2500)
    for m in (1, 4):
        assert window_ns(waiting(m, forward, backward), "1f1b", scenario(p2p="in-order")) == (m + 1) * 4000


def test_an_explanation_replays_the_step_without_the_waits() -> None:
    """Three microbatches of GPipe: without waits the ideal (m + p - 1)(f + b), with nothing else removed."""
    explained = explain(found(waiting(3)), "gpipe", scenario(p2p="grouped"))
    host = next(each for each in explained.causes if each.cause is Cause.HOST)
    assert host.removal.step_ns == 4 * (f + b)
    assert host.removal.change_ratio is not None
    assert host.removal.change_ratio < 0
