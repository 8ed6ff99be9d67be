"""Knee, hidden latency and what it costs against closed forms (derived model of this tool, no paper's).

Equal stages, receives posted ahead, one boundary after stage s, k = p - s, c = latency + occupancy, n extra forwards:
T = (m + p - 1)(f + B) + 2c + r max(0, 2c - n (f + B)), r = floor((m - 1 - k - n) / (n + 2)) + 1.
"""

from __future__ import annotations

import pytest
from helpers.notices import codes
from helpers.synthetic import pipeline
from helpers.thorough import spread

from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.sweeps import Grid, Knee, sweep
from tracetool.sweeps.bend import KNEE_RATIO, MOST_LATENCY_NS, TOLERANCE_RATIO

US = 1_000
FORWARD, BACKWARD = 10_000 * US, 20_000 * US
CYCLE = FORWARD + BACKWARD
PAYLOAD = 4_000_000
ACTIVATION = 1 << 30
FAST = 10**11


def knees(p: int, m: int, boundary: int, schedule: str, **how: object) -> tuple[Knee, ...]:
    pipe = pipeline(p, m, FORWARD, BACKWARD, payload_bytes=PAYLOAD, activation_bytes=ACTIVATION, static_bytes=0)
    dcs = tuple("dc0" if rank <= boundary else "dc1" for rank in range(p))
    grid = Grid((schedule,), dcs=(Topology(dcs),), p2p=("posted-ahead",), **how)  # type: ignore[arg-type]
    return sweep(pipe, grid).knees


def repeats(p: int, m: int, boundary: int, n: int) -> int:
    k = p - boundary
    return (m - 1 - k - n) // (n + 2) + 1 if m - 1 >= k + n else 0


def hidden_ns(p: int, m: int, boundary: int, n: int) -> float:
    """The latency at which r (2c - n (f + B)) is 1 % of (m + p - 1)(f + B) + 2c, messages taking no time."""
    r = repeats(p, m, boundary, n)
    return (KNEE_RATIO * (m + p - 1) * CYCLE + r * n * CYCLE) / (2 * r - 2 * KNEE_RATIO)


@spread(("p", "m", "boundary"), [(4, 16, 1), (8, 32, 3), (8, 64, 5)], 2)
@spread("latency_us", [500, 3_000], [3_000])
def test_the_knee_of_1f1b(p: int, m: int, boundary: int, latency_us: int) -> None:
    """T(b) = A + K S / b, K = 2 (r + 1): doubling b gains K S / 2b, which is 1 % of T(b) at b = 49 K S / A."""
    latency = latency_us * US
    found, *_ = knees(p, m, boundary, "1f1b", bandwidths_bytes_per_s=(10**9, 10**11), latencies_ns=(latency,))
    weight = 2 * (repeats(p, m, boundary, 0) + 1)
    expected = 49 * weight * PAYLOAD * 1e9 / ((m + p - 1) * CYCLE + weight * latency)
    assert found.bandwidth_bytes_per_s == pytest.approx(expected, rel=2 * TOLERANCE_RATIO)
    assert found.at_latency_ns == latency


@spread("swept", [(10**6, 10**7), (10**13, 10**14), (2 * 10**9,)], 1)
def test_the_knee_is_found_wherever_the_grid_lies(swept: tuple[int, ...]) -> None:
    """Where the delay is hidden, T = (m + p - 1)(f + B) + 2c: K = 2."""
    latency = 10_000 * US
    found, *_ = knees(8, 32, 3, "geopipe", extra_forwards=(3,), bandwidths_bytes_per_s=swept, latencies_ns=(latency,))
    expected = 49 * 2 * PAYLOAD * 1e9 / (39 * CYCLE + 2 * latency)
    assert found.bandwidth_bytes_per_s == pytest.approx(expected, rel=2 * TOLERANCE_RATIO)
    assert found.extra_forwards == (3, 3, 3, 3, 0, 0, 0, 0)


# A boundary further down is another number of crossings.
@spread(("p", "m", "boundary"), [(4, 16, 1), (8, 32, 3)], 1)
@spread("n", [0, 1, 3], 2)
def test_the_latency_that_a_warm_up_hides_and_what_more_costs(p: int, m: int, boundary: int, n: int) -> None:
    """2c <= n (f + B), and as much beyond as 1 % of the floor is."""
    found, *_ = knees(
        p, m, boundary, "geopipe", extra_forwards=(n,), bandwidths_bytes_per_s=(FAST,), latencies_ns=(US,)
    )
    here, there = (hidden_ns(p, m, boundary, depth) for depth in (n, n + 1))
    assert found.hidden_latency_ns == pytest.approx(here, rel=2 * TOLERANCE_RATIO, abs=2 * US)
    assert found.hbm_bytes_per_hidden_ms == pytest.approx(ACTIVATION * 10**6 / (there - here), rel=0.01)


def test_hbm_per_hidden_millisecond_is_an_activation_per_half_a_cycle() -> None:
    """A forward more holds M_a more and hides (f + B) / 2 more: to 1.5 %, which are the 1 % of the floor."""
    found, *_ = knees(8, 128, 3, "geopipe", extra_forwards=(2,), bandwidths_bytes_per_s=(FAST,), latencies_ns=(US,))
    assert found.hbm_bytes_per_hidden_ms == pytest.approx(ACTIVATION * 10**6 / (CYCLE / 2), rel=0.02)


def test_memory_limits_what_a_chosen_warm_up_hides() -> None:
    """HBM for p + n microbatches on the first stage: n is the deepest, as 1F1B holds p there; without a limit, all."""
    p, m, n = 4, 16, 3
    swept = {"bandwidths_bytes_per_s": (FAST,), "latencies_ns": (40_000 * US,)}
    limits = (p * ACTIVATION - 1, (p + n) * ACTIVATION, 1000 * ACTIVATION)
    none, limited, free = knees(p, m, 1, "geopipe", hbm_bytes=limits, **swept)
    assert [knee.hbm_bytes for knee in (none, limited, free)] == [*limits]
    assert limited.hidden_latency_ns == pytest.approx(hidden_ns(p, m, 1, n), rel=2 * TOLERANCE_RATIO)
    assert free.hidden_latency_ns == MOST_LATENCY_NS
    assert "does not fit" in (none.remark or "")
    assert NoticeCode.HBM_LACKS in codes(none.remarks)
    assert NoticeCode.HIDES_ALL in codes(free.remarks)


def test_gpipe_hides_every_latency() -> None:
    """All forwards are ahead of all backwards: T = (m + p - 1)(f + B) + 2c at any delay."""
    found, *_ = knees(4, 8, 1, "gpipe", bandwidths_bytes_per_s=(FAST,), latencies_ns=(US,))
    assert found.hidden_latency_ns == MOST_LATENCY_NS


def test_a_few_latencies_stand_for_many() -> None:
    latencies = tuple(range(US, 100 * US, US))
    found = knees(4, 8, 1, "1f1b", bandwidths_bytes_per_s=(FAST,), latencies_ns=latencies)
    assert [knee.at_latency_ns for knee in found] == [1 * US, 25 * US, 50 * US, 74 * US, 99 * US]
    assert not knees(4, 8, 3, "1f1b"), "no link was swept"


def test_a_fixed_link_that_is_in_the_way_hides_nothing_of_the_others() -> None:
    """Two messages of half a cycle each in all 1F1B's round trips (2c each): far above 1 % without latency."""
    slow = round(PAYLOAD * 1e9 / (CYCLE / 2))
    fixed = tuple(Link(src, dst, slow, US) for src, dst in (("dc0", "dc1"), ("dc1", "dc0")))
    pipe = pipeline(4, 16, FORWARD, BACKWARD, payload_bytes=PAYLOAD, activation_bytes=ACTIVATION, static_bytes=0)
    places = (Topology(("dc0", "dc0", "dc1", "dc2")),)
    for schedule, asked in (("1f1b", (None,)), ("geopipe", (0,))):
        grid = Grid(
            (schedule,), Scenario(topology=Topology(links=fixed)), dcs=places, extra_forwards=asked,
            bandwidths_bytes_per_s=(FAST,), latencies_ns=(US,), p2p=("per-edge",),
        )  # fmt: skip
        found, *_ = sweep(pipe, grid).knees
        assert found.hidden_latency_ns is None
        assert "links that stay as given keep the step more than 1%" in (found.remark or "")
        assert "hides no" not in (found.remark or "")


# The depth of geopipe follows the limit; 1f1b has none.
@spread("schedule", ["1f1b", "geopipe"], ["geopipe"])
def test_the_bandwidth_alone_is_that_of_the_whole_knee(schedule: str) -> None:
    """With a memory limit that lets the warm-up of geopipe grow, and one that does not."""
    pipe = pipeline(4, 8, FORWARD, BACKWARD, payload_bytes=PAYLOAD, activation_bytes=ACTIVATION, static_bytes=0)
    grid = Grid(
        (schedule,), dcs=(Topology(("a", "a", "b", "b")),), p2p=("posted-ahead",), bandwidths_bytes_per_s=(10**9,),
        latencies_ns=(3_000 * US, 20_000 * US), hbm_bytes=(5 * ACTIVATION, 80 * ACTIVATION),
    )  # fmt: skip
    whole, alone = sweep(pipe, grid).knees, sweep(pipe, grid, knees="bandwidth").knees
    assert [each.bandwidth_bytes_per_s for each in alone] == [each.bandwidth_bytes_per_s for each in whole]
    assert len({each.bandwidth_bytes_per_s for each in whole}) > 1
    assert {each.hidden_latency_ns for each in alone} == {None}
    assert all(each.hidden_latency_ns for each in whole)
