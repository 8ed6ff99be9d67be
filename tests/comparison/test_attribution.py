"""What parts contribute: sums that are exact, and closed forms of pipelines that can be worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.comparison.attribution import EVERYTHING, ORDER, Part, attribute
from tracetool.comparison.awaited import Awaited, CollectiveKey, awaited_changes
from tracetool.comparison.causes import causes_of
from tracetool.comparison.comparable import Sides
from tracetool.comparison.values import whole_contributions
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay

if TYPE_CHECKING:
    from tracetool.comparison.awaited import AwaitedBy
    from tracetool.model.pipeline import Pipeline

times = st.lists(st.lists(st.integers(1, 50), min_size=4, max_size=4), min_size=3, max_size=3)
sides = st.builds(
    lambda forward, backward, transfer, tail, schedule, held: synthetic.pipeline(
        3, 4, forward, backward, transfer_ns=transfer, tail_ns=tail, schedule=schedule, p2p="in-order",
        activation_bytes=held, static_bytes=[7, held, 9],
    ),
    times, times, st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(1, 20),
    st.sampled_from(["1f1b", "gpipe"]), st.integers(1, 9),
)  # fmt: skip


REDUCED = CollectiveKey("allreduce", (0, 1))
waits = st.dictionaries(
    st.sampled_from([(0, "F"), (1, "F"), (2, "B")]),
    st.integers(0, 20).map(lambda ns: {REDUCED: Awaited(ns, 1.0, (0, 1))}),
)


@given(sides, sides, waits, waits)
@drawn(40, first=4)
def test_contributions_sum_to_the_change_exactly(
    base: Pipeline, new: Pipeline, base_awaited: AwaitedBy, new_awaited: AwaitedBy
) -> None:
    """Of times, sizes and ratios alike; with the rest they sum to whatever was observed. Replayed here once more."""
    found = attribute(base, new, None, awaited_changes(base_awaited, new_awaited))
    replayed = [measure(replay(each, each.observed, Scenario(interference=False)).timeline) for each in (base, new)]
    assert {"step_ns", "window_ns", "bubble_ratio", "peak_hbm_bytes", "peak_hbm_bytes/rank1"} <= set(found)
    for name in ("step_ns", "window_ns", "compute_ns"):
        assert [found[name].base, found[name].new] == [getattr(each, name) for each in replayed]
    for name, of in found.items():
        assert sum(of.contributions.values()) == of.new - of.base
        observed = of.new - of.base + Fraction(7)
        causes = causes_of(Sides(base, new, {}, {}, base_awaited, new_awaited), of, observed)
        assert sum(cause.value for cause in causes) == observed
        assert (causes[-1].kind, int(causes[-1].value)) == ("not replayed", 7)
        if not name.endswith("ratio"):
            whole = whole_contributions(name, [cause.value for cause in causes])
            assert sum(whole) == observed.__floor__()
            assert all(isinstance(value, int) for value in whole)


def test_on_a_chain_each_part_contributes_what_it_grew_by() -> None:
    """One microbatch on two stages: F0, message, F1, B1, message, B0, optimizer follow each other; each counts once."""
    base = synthetic.pipeline(2, 1, [[10], [20]], [[30], [40]], transfer_ns=5, tail_ns=7, p2p="in-order")
    new = synthetic.pipeline(2, 1, [[11], [22]], [[33], [44]], transfer_ns=[10, 16], tail_ns=9, p2p="in-order")
    assert attribute(base, new)["step_ns"].contributions == {
        Part("compute", 0, "F"): 1, Part("compute", 1, "F"): 2, Part("compute", 0, "B"): 3, Part("compute", 1, "B"): 4,
        Part("link", 0, "F"): 5, Part("link", 1, "B"): 11, Part("tail", rank=0): 2, Part("tail", rank=1): 0,
        Part("link", 0, "B"): 0, Part("link", 1, "F"): 0,
    }  # fmt: skip


def test_on_a_chain_collectives_contribute_what_they_grew_by_and_computes_the_rest() -> None:
    """Forwards of both stages take 1 and 2 ns more: of the first 3 ns more are a collective's, of the second 6 less."""
    base = synthetic.pipeline(2, 1, [[10], [20]], [[30], [40]], p2p="in-order")
    new = synthetic.pipeline(2, 1, [[11], [22]], [[30], [40]], p2p="in-order")
    changes = {(0, "F"): {REDUCED: 3}, (1, "F"): {REDUCED: -6}}
    assert attribute(base, new, None, changes)["step_ns"].contributions == {
        Part("compute", 0, "F"): -2, Part("collective", 0, "F", which=REDUCED): 3,
        Part("compute", 1, "F"): 8, Part("collective", 1, "F", which=REDUCED): -6,
    }  # fmt: skip


def test_a_part_off_the_critical_path_contributes_nothing() -> None:
    """The last backward is rank 0's: its optimizer ends the step, rank 1's has had 10 ns more."""
    base = synthetic.pipeline(2, 1, [[10], [10]], [[10], [10]], tail_ns=10)
    new = synthetic.pipeline(2, 1, [[10], [10]], [[10], [10]], tail_ns=16)
    assert attribute(base, new)["step_ns"].contributions == {Part("tail", rank=0): 6, Part("tail", rank=1): 0}


def test_another_order_is_one_part() -> None:
    """GPipe keeps all four microbatches where 1F1B keeps two on rank 0 of 2: closed form of the peak."""
    base = synthetic.pipeline(2, 4, 10, 20, activation_bytes=5, static_bytes=100, p2p="in-order")
    new = synthetic.pipeline(2, 4, 10, 20, activation_bytes=5, static_bytes=100, p2p="in-order", schedule="gpipe")
    found = attribute(base, new)
    assert found["peak_hbm_bytes/rank0"].contributions == {ORDER: 2 * 5}
    (cause, rest) = causes_of(Sides(base, new, {}, {}, {}, {}), found["peak_hbm_bytes"], Fraction(10))
    assert (cause.name, cause.detail, int(rest.value)) == ("order", "1f1b → gpipe", 0)


def test_more_microbatches_are_part_of_the_order() -> None:
    base = synthetic.pipeline(2, 4, 10, 20, p2p="in-order")
    new = synthetic.pipeline(2, 8, 10, 20, p2p="in-order")
    contributions = attribute(base, new)["window_ns"].contributions
    # (m + p - 1) (F + B): 4 microbatches more.
    assert contributions[ORDER] == 4 * 30
    assert sum(contributions.values()) == 4 * 30
    detail = causes_of(Sides(base, new, {}, {}, {}, {}), attribute(base, new)["window_ns"], None)[0].detail
    assert "microbatches 4 → 8" in detail


def test_pipelines_of_other_ranks_have_no_parts_in_common() -> None:
    base, new = (synthetic.pipeline(p, 4, 10, 20) for p in (2, 3))
    found = attribute(base, new)["window_ns"]
    assert found.contributions == {EVERYTHING: (4 + 3 - 1) * 30 - (4 + 2 - 1) * 30}
    assert "ranks 2 → 3" in causes_of(Sides(base, new, {}, {}, {}, {}), found, None)[0].detail


@pytest.mark.parametrize("moved", [[2], [1, 2]])
def test_microbatches_that_moved_are_named(moved: list[int]) -> None:
    base = synthetic.pipeline(2, 8, 10_000_000, 20_000_000)
    later = [30_000_000 if j in moved else 20_000_000 for j in range(8)]
    new = synthetic.pipeline(2, 8, 10_000_000, [[20_000_000] * 8, later])
    (cause, _) = causes_of(Sides(base, new, {}, {}, {}, {}), attribute(base, new)["step_ns"], Fraction(0))
    assert cause.name == "stage 1 B"
    named = "microbatch 2" if len(moved) == 1 else "microbatches 1-2"
    assert cause.detail.endswith(f"{named} by +10.0 ms")
