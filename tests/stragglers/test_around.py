"""Cutting what ranks do around their pipeline: intervals laid out by hand, in ns."""

from __future__ import annotations

from dataclasses import astuple

from tracetool.stragglers.around import RankCollective, parts_between


def collective(start: int, end: int, transfer: int, pair: int | None = 1) -> RankCollective:
    return RankCollective(0, start, end, start, transfer, pair, upper_bound=False, name="allreduce dp")


def cut(
    start: int, end: int, collectives: list[RankCollective], kernels: list[tuple[int, int]] | None
) -> list[tuple[str, int, str | None]]:
    parts = parts_between(start, end, collectives, kernels, "optimizer")
    return [(name, duration, meet) for name, _, duration, meet, _ in map(astuple, parts)]


def test_gaps_compute_and_collectives_without_their_waits() -> None:
    """0 gap 10 collective (waits 25, moves 5) 40 gap 45 kernels with a launch gap 80 gap 90."""
    parts = cut(0, 90, [collective(10, 40, 5, pair=3)], [(45, 60), (62, 80)])
    assert parts == [
        ("host gap", 10, None),
        ("allreduce dp", 5, "3"),
        ("host gap", 5, None),
        ("optimizer", 35, None),
        ("host gap", 10, None),
    ]


def test_a_collective_beside_the_last_backward_counts_with_what_is_left_of_it() -> None:
    """It began at -30 and ended at 20; only its last 35 ns moved bytes, 20 of them after the backward."""
    assert cut(0, 20, [collective(-30, 20, 35)], []) == [("allreduce dp", 20, None)]
    assert cut(0, 20, [collective(-30, 20, 8)], []) == [("allreduce dp", 8, None)]
    assert cut(0, 20, [collective(-30, 0, 30)], []) == [("host gap", 20, None)]


def test_a_collective_that_begins_beside_another_is_met_at_all_the_same() -> None:
    parts = cut(0, 50, [collective(0, 30, 30, 1), collective(29, 50, 21, 2)], [])
    assert parts == [("allreduce dp", 30, "1"), ("allreduce dp", 20, "2")]


def test_an_unmatched_collective_is_no_meeting() -> None:
    assert cut(0, 30, [collective(0, 30, 30, pair=None)], []) == [("allreduce dp", 30, None)]


def test_without_a_device_the_host_computes() -> None:
    assert cut(0, 30, [], None) == [("optimizer", 30, None)]
    assert cut(0, 30, [], []) == [("host gap", 30, None)]
    assert cut(30, 30, [], None) == []
