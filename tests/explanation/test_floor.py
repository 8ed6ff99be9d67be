"""What is left when all causes are removed is a floor: below the step and below it without any single cause."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from helpers.recorded import SAMPLES, looked_at, rebuilt, run_of
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import drawn, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.explanation import explain
from tracetool.model.pipeline import P2P_MODES
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_link

if TYPE_CHECKING:
    from tracetool.explanation import Explanation
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.reconstruction import Reconstruction

DCS = ("dc0", "dc0", "dc1", "dc1")


def check_floor(explained: Explanation) -> None:
    """Neither the step nor one without a single cause is below the floor; one that got longer says why."""
    floor = explained.without_any.step_ns
    assert floor is not None
    assert floor <= min(explained.metrics.step_ns, explained.replayed_step_ns)
    for cause in explained.causes:
        removal = cause.removal
        if removal.microbatches == explained.microbatches:
            assert floor <= (removal.step_ns or 0), cause.cause
        is_longer = round(1000 * (removal.change_ratio or 0)) > 0
        assert ("longer, as " in removal.how) == is_longer, removal.how


@cache
def recorded(name: str) -> Reconstruction:
    return looked_at(run_of(SAMPLES / name)) if name == "h100-1f1b" else rebuilt(name)


# Either recording with each schedule: which removal makes a step longer depends on both.
@spread(
    ("name", "schedule"),
    [(name, each) for name in ("h100-1f1b", "1f1b_m8") for each in (None, "1f1b", "geopipe", "zb-h1")],
    [("h100-1f1b", "geopipe"), ("1f1b_m8", "1f1b")],
)
def test_all_removed_is_a_floor_of_recordings(name: str, schedule: str | None) -> None:
    """A channel per edge makes the recorded 1f1b_m8 longer: kernels that wait slow its computes down."""
    measured = recorded(name)
    what_ifs = [Scenario()]
    if schedule is not None:
        links = ("dc0-dc1=400Gbit/s,1ms", "dc0-dc1=25Gbit/s,10ms")
        what_ifs += [Scenario(topology=Topology(DCS, parse_link(link))) for link in links]
    if schedule == "geopipe":
        # Its ranks need some 12 GiB at depth 0 and 16 GiB at the depth that the link wants.
        what_ifs.append(replace(what_ifs[-1], hbm_bytes=14 << 30))
    explained = [explain(measured, schedule, what_if) for what_if in what_ifs]
    for one in explained:
        check_floor(one)
    if (name, schedule) == ("1f1b_m8", "1f1b"):
        assert any("beside more communication" in cause.removal.how for cause in explained[0].causes)


def contended(measured: Pipeline, ratio: float) -> Pipeline:
    """Every action takes so much longer beside a communication kernel."""
    stages = tuple(
        replace(
            stage,
            costs={
                kind: tuple(
                    replace(c, uncontended_ns=c.duration_ns, contended_ns=round(c.duration_ns * ratio)) for c in costs
                )
                for kind, costs in stage.costs.items()
            },
        )
        for stage in measured.stages
    )
    return replace(measured, stages=stages)


times = st.integers(100, 3000)


@drawn(40, first=5)
@given(
    forwards=st.lists(st.lists(times, min_size=6, max_size=6), min_size=4, max_size=4),
    backwards=st.lists(times, min_size=4, max_size=4),
    ratio=st.sampled_from([1.0, 1.3, 1.9]),
    latency=st.sampled_from([0, 300, 5000]),
    mode=st.sampled_from(P2P_MODES),
    limited=st.booleans(),
)
def test_all_removed_is_a_floor_of_any_pipeline(
    forwards: list[list[int]], backwards: list[int], ratio: float, latency: int, mode: P2PMode, *, limited: bool
) -> None:
    measured = pipeline(
        4, 6, forwards, [[b] * 6 for b in backwards],
        payload_bytes=200, transfer_ns=50, tail_ns=70, activation_bytes=10, static_bytes=500,
    )  # fmt: skip
    over = scenario(places([2, 2], latency_ns=latency), mode, hbm_bytes=550 if limited else None)
    check_floor(explain(found(contended(measured, ratio)), "geopipe" if limited else "1f1b", over))
