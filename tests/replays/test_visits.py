"""What ranks do after their computes: those that wait for nobody go on by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracetool.replays.tail import Span, Visit, run_visits

VISITS = st.lists(st.builds(Visit, st.integers(0, 50), earliest_ns=st.none() | st.integers(0, 200)), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 100), VISITS), max_size=4))
def test_a_meeting_of_one_rank_is_none(drawn: list[tuple[int, list[Visit]]]) -> None:
    """Who meets only itself waits for nobody: the loop that serves meetings gives the same times."""
    starts, visits = [start for start, _ in drawn], [of_rank for _, of_rank in drawn]
    alone = [[visit._replace(meet=f"{rank}") for visit in of_rank] for rank, of_rank in enumerate(visits)]
    assert run_visits(starts, visits) == run_visits(starts, alone)


def test_visits_follow_one_another_and_wait_for_their_earliest_time() -> None:
    visits = [[Visit(5), Visit(3, earliest_ns=20), Visit(2, earliest_ns=1)], [], [Visit(7)]]
    assert run_visits([10, 0, 4], visits) == [[Span(10, 15), Span(20, 23), Span(23, 25)], [], [Span(4, 11)]]
