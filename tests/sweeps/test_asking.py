"""What a sweep is asked with: ranges, warm-ups, files of named scenarios, prices; and the front that prices make."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT, looked_at, small
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import BadQuantity, BadTopology, ScenarioError, ScheduleError
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_dc_map
from tracetool.network.link import Link
from tracetool.sweeps import Grid, SweepPoint, sweep
from tracetool.sweeps.asked import (
    grid,
    parse_bandwidths,
    parse_distances,
    parse_latencies,
    parse_numbers,
    parse_sizes,
    parse_warm_ups,
)
from tracetool.sweeps.pareto import Price, link_cost, mark_pareto, parse_price
from tracetool.sweeps.scenario_file import grids_of, read_scenarios

if TYPE_CHECKING:
    from pathlib import Path

GBIT = 125_000_000


@given(st.integers(1, 500), st.integers(2, 100), st.integers(1, 12))
def test_a_range_goes_from_end_to_end_in_equal_ratios(low: int, times: int, count: int) -> None:
    """So many values per doubling as asked for, to rounding: neighbours are 2^(1/count) apart where that divides."""
    values = parse_bandwidths(f"{low}..{low * times}Gbit/s*{count}")
    assert (values[0], values[-1]) == (low * GBIT, low * times * GBIT)
    step = (times) ** (1 / (len(values) - 1))
    assert all(b / a == pytest.approx(step, rel=2e-3) for a, b in pairwise(values))
    assert step == pytest.approx(2 ** (1 / count), rel=0.5)


def test_values_are_lists_and_ranges() -> None:
    assert parse_bandwidths("10Gbit/s, 25Gbit/s") == (10 * GBIT, 25 * GBIT)
    assert len(parse_bandwidths("10..640Gbit/s")) == 6 * 4 + 1
    assert parse_bandwidths("500Mbit/s..8Gbit/s*1") == tuple(GBIT // 2 << octave for octave in range(5))
    assert parse_latencies("0ms,1..4ms*1") == (0, 1_000_000, 2_000_000, 4_000_000)
    assert parse_distances("80km,1000km") == (400_000, 5_000_000)  # 5 us per km
    assert parse_numbers("8..64,12") == (8, 16, 32, 64, 12)
    assert parse_sizes("64GiB,80GiB") == (64 << 30, 80 << 30)
    assert parse_warm_ups("auto;0..2;2,2,0,0;1") == (None, 0, 1, 2, (2, 2, 0, 0))


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_bandwidths, "10..800", "no unit"),
        (parse_bandwidths, "800..10Gbit/s", "does not rise"),
        (parse_bandwidths, "10..", "no range"),
        (parse_bandwidths, "1..2Gbit/s*0", "no values"),
        (parse_bandwidths, "1..1024Gbit/s*1000", "10001 values"),
        (parse_latencies, "0..4ms", "does not rise"),
        (parse_distances, "80", "no distance"),
        (parse_numbers, "0", "whole number"),
        (parse_price, "120", "no currency"),
        (parse_price, "EUR", "no price"),
        (parse_price, "0EUR", "more than 0"),
    ],
)
def test_what_is_no_value_is_told(parse: type, text: str, said: str) -> None:
    with pytest.raises(BadQuantity, match=said):
        parse(text)


def test_what_is_no_warm_up_is_told() -> None:
    for text in ("3..1", "x", "2,,1", ""):
        with pytest.raises(ScenarioError, match="extra forwards"):
            parse_warm_ups(text)


def _grids(path: Path) -> list[Grid]:
    base = Grid(("1f1b",), Scenario(hbm_bytes=7), latencies_ns=(5, 6), bandwidths_bytes_per_s=(8,))
    return grids_of(read_scenarios(path), base, lambda text: Topology(parse_dc_map(text)), str(path))


def test_the_example_of_the_documents_is_read(tmp_path: Path) -> None:
    text = (ROOT / "schemas" / "README.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    path = tmp_path / "wan.toml"
    path.write_text(text, encoding="utf-8")
    metro, leased = _grids(path)
    assert (metro.name, metro.hbm_bytes) == ("metro", (80 << 30,))
    assert metro.dcs == (Topology(("dc0", "dc0", "dc1", "dc1")),)
    assert (metro.bandwidths_bytes_per_s, metro.latencies_ns) == ((400 * GBIT,), (400_000,))
    assert leased.scenario.topology.links == (
        Link("dc0", "dc1", 25 * GBIT, 10_000_000), Link("dc1", "dc0", 25 * GBIT, 10_000_000),
    )  # fmt: skip
    assert (leased.microbatches, leased.p2p, leased.latencies_ns) == ((16,), ("per-edge",), (5, 6))
    assert set(tomllib.loads(text)) == {"scenario"}


GOOD = '[[scenario]]\nname = "a"\nbandwidth = "1Gbit/s"\nlatency = "1ms"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it lacks the field 'scenario'"),
        (GOOD + "latencies = 3", r"scenario\[0\]: .*unknown field 'latencies'; is 'latency' meant"),
        (GOOD + "microbatches = '8'", r"scenario\[0\]\.microbatches: Expected 'int"),
        (GOOD + "microbatches = 0", r"scenario\[0\]\.microbatches: a whole number >= 1 is expected"),
        (GOOD + GOOD, "two scenarios are called 'a'"),
        (GOOD + "hbm = '80'", r"scenario\[0\]\.hbm: '80' has no unit"),
        (GOOD + "dc = '0-x'", r"scenario\[0\]\.dc: .*no range"),
        (GOOD + "links = ['a-b=1Gbit/s']", r"scenario\[0\]\.links\[0\]: link 'a-b=1Gbit/s' needs"),
        (GOOD + "distance = '80km'", r"scenario\[0\] has a latency and a distance"),
        (GOOD + "hbm = 80GiB", "no TOML: .*line 5"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_its_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((ScenarioError, BadTopology), match=said):
        _grids(path)


@pytest.mark.parametrize("text", ["120EUR", "120 EUR", "120.0EUR"])
def test_a_price_is_a_number_and_a_word(text: str) -> None:
    assert parse_price(text) == Price(120.0, "EUR")


def test_links_cost_by_bandwidth_and_pair_of_neighbours() -> None:
    """Two pairs of three DCs, one of them fixed at 40 Gbit/s: 2 a Gbit/s each way together."""
    point = SweepPoint("1f1b", None, 4, "grouped", 100 * GBIT, 1, dcs=("a", "a", "b", "c"))
    assert link_cost(point, (), Price(2.0, "EUR")) == pytest.approx(2 * 200)
    fixed = (Link("a", "b", 40 * GBIT, 1), Link("b", "a", 10 * GBIT, 1))
    assert link_cost(point, fixed, Price(2.0, "EUR")) == pytest.approx(2 * (40 + 100))
    assert link_cost(replace(point, dcs=("a", "a")), (), Price(2.0, "EUR")) == 0


FIGURES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5), st.booleans(), st.sampled_from([1, 2]))


@given(st.lists(FIGURES, max_size=25))
def test_the_front_is_what_no_point_of_its_latency_beats(figures: list[tuple[int, int, int, bool, int]]) -> None:
    """By its definition, pair by pair."""
    points = [
        SweepPoint(
            "1f1b",
            None,
            1,
            "grouped",
            1,
            latency,
            step_ns=step,
            feasible=fits,
            needed_bytes=need,
            link_cost=float(cost),
        )
        for cost, need, step, fits, latency in figures
    ]

    def beats(one: SweepPoint, other: SweepPoint) -> bool:
        pairs = [
            (one.link_cost or 0, other.link_cost or 0), (one.needed_bytes or 0, other.needed_bytes or 0),
            (one.step_ns or 0, other.step_ns or 0),
        ]  # fmt: skip
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    for point in mark_pareto(points):
        rivals = [other for other in points if other.feasible and other.latency_ns == point.latency_ns]
        assert point.is_pareto == (point.feasible and not any(beats(other, point) for other in rivals))


def test_schedules_that_do_not_fit_hint_at_the_recorded_order() -> None:
    interleaved = looked_at(small("interleaved2"))
    asked = grid(interleaved, "1f1b,geopipe", dc="0,1", bandwidth="25Gbit/s", latency="1ms")
    with pytest.raises(ScheduleError, match="none of 2 points") as refused:
        sweep(interleaved, asked)
    assert "schedules='observed'" in (refused.value.hint or "")
    (point,) = sweep(interleaved, replace(asked, schedules=("observed",)), knees=False).points
    assert point.step_ns
