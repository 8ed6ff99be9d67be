"""Causes of recorded steps, observed and replayed: they cover the bubble to the ns, and agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.idle_checks import check, sums
from helpers.recorded import SAMPLES, data, looked_at, rebuilt, run_of, small
from helpers.thorough import spread

from tracetool.causes import critical_path, idle_intervals, idles_of
from tracetool.causes.cause import Cause
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.replays import replay

if TYPE_CHECKING:
    from tracetool.causes.cause import Idle
    from tracetool.reconstruction import Reconstruction
    from tracetool.replays import Replayed


def both(found: Reconstruction) -> tuple[tuple[Idle, ...], Replayed]:
    """Idle intervals of the observed step, and its order replayed as measured; what must hold of both."""
    observed = idle_intervals(found.observed, Topology(), blocking=found.pipeline.p2p == "grouped")
    check(found.observed, observed)
    done = replay(found.pipeline, found.pipeline.observed, Scenario())
    check(done.timeline, idles_of(done))
    assert not any(idle.cause is Cause.HOST for idle in idles_of(done))
    path = critical_path(found.observed, Topology())
    assert sum(piece.end_ns - piece.start_ns for piece in path) == measure(found.observed).window_ns
    return observed, done


# Each was recorded of another runtime or order: what replay misses of that alone shows in it.
@spread("name", ["1f1b_m8", "rt1f1b_m8", "interleaved_m8"], ["rt1f1b_m8"])
def test_the_recorded_step_and_its_replay_have_the_same_causes(name: str) -> None:
    """Per rank and cause within 2 % of the window, as replay is of the recorded step; the host within 4 %."""
    found = rebuilt(name)
    observed, done = both(found)
    window = measure(found.observed).window_ns
    for before, after in zip(sums(observed, 4), sums(idles_of(done), 4), strict=True):
        for cause in Cause:
            limit = 0.04 if cause is Cause.HOST else 0.02
            assert abs(before.get(cause, 0) - after.get(cause, 0)) < limit * window, cause


OTHERS = {
    "sample": lambda: run_of(SAMPLES / "h100-1f1b"),
    "ascend sample": lambda: run_of(SAMPLES / "ascend-1f1b"),
    "ascend": lambda: run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")),
    "straggler analysis": lambda: run_of(data("torch", "ByteDance-Seed+StragglerAnalysis", "trace-ST.parquet")),
    "gloo, interleaved": lambda: run_of(data("cpu-gloo-pp4", "ScheduleInterleaved1F1B")),
    "gloo, zb-v": lambda: run_of(data("cpu-gloo-pp4", "ScheduleZBVZeroBubble")),
    "dualpipev": lambda: small("dualpipev"),
    "zb-v": lambda: small("zbv"),
    "looped-bfs": lambda: small("loopedbfs"),
}


# Each has idle time of its own kinds; a case of the chain that only one of them meets is found by all.
@spread("name", OTHERS, ["sample", "ascend sample"])
def test_causes_cover_the_bubble_of_every_recording(name: str) -> None:
    both(looked_at(OTHERS[name]()))
