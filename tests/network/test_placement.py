"""Jobs on devices: rules against devices written down by hand, and what is said of those that do not fit."""

from __future__ import annotations

import pytest

from tracetool.errors import BadTopology, UnknownName
from tracetool.network.placement import Degrees, narrowed_rule, place, read_placement
from tracetool.network.tiers import Network, Tier

TWO = Network("two", (Tier("hb", 4, 1), Tier("rail", 16, 1), Tier("dc", 32, 1)))


def test_by_default_neighbours_are_as_ranks_are_counted() -> None:
    placed = place(Degrees(tp=4, dp=4, pp=2), TWO)
    assert placed.devices == tuple(range(32))
    assert placed.groups("tp")[:2] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert placed.groups("dp")[0] == (0, 4, 8, 12)
    assert placed.groups("pp")[:2] == [(0, 16), (1, 17)]


def test_an_order_puts_another_dimension_first() -> None:
    placed = place(Degrees(tp=4, dp=4, pp=2), TWO, "pp,tp,dp")
    # rank = tp + 4 dp + 16 pp; device = pp + 2 tp + 8 dp
    assert [placed.devices[rank] for rank in (0, 16, 1, 4)] == [0, 1, 2, 8]
    assert sorted(placed.devices) == list(range(32))


def test_a_spread_dimension_is_cut_into_equal_runs_of_neighbours() -> None:
    placed = place(Degrees(tp=4, pp=4), TWO, "tp in hb, pp across dc")
    assert [placed.devices[rank] for rank in (0, 4, 8, 12)] == [0, 4, 16, 20]
    spread = place(Degrees(tp=4, dp=2, pp=2), TWO, "tp in hb, dp across dc")
    assert [spread.devices[rank] for rank in (0, 4, 8, 12)] == [0, 16, 4, 20]


def test_expert_groups_are_runs_of_data_parallel_ranks() -> None:
    placed = place(Degrees(tp=2, dp=8, ep=4, pp=2), TWO)
    assert placed.groups("ep")[0] == (0, 2, 4, 6)
    assert placed.groups("dp")[0] == (0, 2, 4, 6, 8, 10, 12, 14)
    assert placed.rank({"dp": 5}) == 10
    assert sorted(rank for group in placed.groups("dp") for rank in group) == list(range(32))


@pytest.mark.parametrize(
    ("degrees", "rule", "fault", "hint"),
    [
        (Degrees(tp=8, dp=8), "", "32 ranks are left over", "make dc larger"),
        (Degrees(tp=8, dp=4), "tp in hb", "tp 8 is to stay in hb (4 devices)", "tp 1, 2, 4 would fit"),
        (Degrees(tp=4, pp=3), "pp across dc", "joins 2 groups", "pp 2 or 4 would fit"),
        (Degrees(tp=4, pp=2, dp=2), "", "nothing uses tier dc", "pp across dc"),
        (Degrees(tp=8, dp=3), "dp across dc", "joins 2 groups", "dp 2 or 4 would fit"),
        (Degrees(tp=4, pp=2), "tp in hb, tp in dc", "says two things of tp", "once"),
    ],
)
def test_what_does_not_fit_says_what_would(degrees: Degrees, rule: str, fault: str, hint: str) -> None:
    with pytest.raises(BadTopology) as caught:
        place(degrees, TWO, rule)
    assert fault in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("tp in hb, pp across dc", "tp in hb"),
        ("cp across dc, tp in hb,dp", "tp in hb"),
        ("dp, pp across dc", ""),
        ("pp,tp", "pp,tp"),
        ("tp in hb, dp across dc", None),
    ],
)
def test_a_rule_without_tiers_that_a_job_does_not_reach_places_it_alike(rule: str, kept: str | None) -> None:
    """On devices that have the whole rule; of a wider dimension the rule stays."""
    degrees = Degrees(tp=2, dp=2)
    assert narrowed_rule(rule, degrees, {"dc"}) == kept
    if kept is not None:
        assert place(degrees, TWO, kept, all_used=False) == place(degrees, TWO, rule, all_used=False)


def test_names_that_are_none() -> None:
    with pytest.raises(UnknownName, match="xp"):
        place(Degrees(), TWO, "xp,tp")
    with pytest.raises(UnknownName, match="hbm"):
        place(Degrees(tp=4), TWO, "tp in hbm")
    with pytest.raises(BadTopology, match="do not fit into 4 data parallel"):
        Degrees(dp=4, ep=3)


def test_a_file_places_each_rank() -> None:
    placed = read_placement("rank,device\n1,0\n0,31\n", "p.csv", Degrees(dp=2), Network("n", (Tier("dc", 32, 1),)))
    assert placed.devices == (31, 0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rank\n0\n", "needs the columns"),
        ("rank,device\n0,0\n", "has no device for rank 1"),
        ("rank,device\n0,0\n1,0\n", "two ranks on device 0"),
        ("rank,device\n0,0\n1,1\n2,2\n", "names rank 2"),
        ("rank,device\n0,0\n1,32\n", "names device 32"),
        ("rank,device\n0,0\n1,x\n", "no rank and device"),
    ],
)
def test_files_that_do_not_fit(text: str, fault: str) -> None:
    with pytest.raises(BadTopology, match=fault):
        read_placement(text, "p.csv", Degrees(dp=2), Network("n", (Tier("dc", 32, 1),)))
