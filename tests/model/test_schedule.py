"""Actions, orders and their checks; expectations are written out by hand, in torch's text form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import InvalidSchedule, UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule, schedule_from_csv
from tracetool.schedules import build_schedule

WITH_MICROBATCH = sorted(set(ActionKind) - {ActionKind.REDUCE_GRAD, ActionKind.OPTIMIZER})


def orders(*rows: str) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(Action.parse(cell) for cell in row.split()) for row in rows)


def schedule(*rows: str, microbatches: int = 2) -> Schedule:
    return Schedule("by-hand", PipelineShape(len(rows), microbatches), orders(*rows))


@given(st.integers(0, 10**6), st.sampled_from(WITH_MICROBATCH), st.integers(0, 10**6))
def test_action_text_reads_back(stage: int, kind: ActionKind, microbatch: int) -> None:
    action = Action(stage, kind, microbatch)
    assert Action.parse(str(action)) == action
    assert Action.parse(f" {action} ") == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("2F0", Action(2, ActionKind.FORWARD, 0)),
        ("0B13", Action(0, ActionKind.BACKWARD, 13)),
        ("7I1", Action(7, ActionKind.BACKWARD_INPUT, 1)),
        ("7W1", Action(7, ActionKind.BACKWARD_WEIGHT, 1)),
        ("1SEND_F3", Action(1, ActionKind.SEND_F, 3)),
        ("1RECV_B3", Action(1, ActionKind.RECV_B, 3)),
    ],
)
def test_actions_are_written_as_torch_writes_them(text: str, action: Action) -> None:
    assert str(action) == text
    assert Action.parse(text) == action


@pytest.mark.parametrize(
    "text", ["", "F0", "2F", "2X0", "2f0", "2F0F1", "-1F0", "2F-1", "2 F 0", "(2F3;5B1)OVERLAP_F_B"]
)
def test_other_text_is_no_action(text: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Action.parse(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint is not None
    assert "2F0" in caught.value.hint


def test_stages_sit_in_a_loop_or_turn_round() -> None:
    loop, turning = PipelineShape(3, 1, chunks=3), PipelineShape(3, 1, chunks=3, placement="v")
    assert [loop.rank_of(s) for s in range(9)] == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert [turning.rank_of(s) for s in range(9)] == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert loop.stages == turning.stages == 9


TWO_LAST_RANKS_OF_1F1B = ("1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3", "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3")


@pytest.mark.parametrize(
    ("name", "extra", "rows"),
    [
        ("1f1b", None, ("0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3", *TWO_LAST_RANKS_OF_1F1B)),
        ("gpipe", None, tuple(f"{s}F0 {s}F1 {s}F2 {s}F3 {s}B0 {s}B1 {s}B2 {s}B3" for s in range(3))),
        ("geopipe", (1, 0, 0), ("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", *TWO_LAST_RANKS_OF_1F1B)),
        ("geopipe", (1, 1, 0), (
            "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3", TWO_LAST_RANKS_OF_1F1B[1]
        )),
    ],
)  # fmt: skip
def test_orders_of_three_ranks_and_four_microbatches(
    name: str, extra: tuple[int, ...] | None, rows: tuple[str, ...]
) -> None:
    built = build_schedule(name, PipelineShape(3, 4), extra_forwards=extra)
    assert built.orders == orders(*rows)
    assert built.extra_forwards == extra
    assert built.validate() is built


@pytest.mark.parametrize("extra", [(1, 0), (0, 1, 0), (0, 0, 1), (-1, -1, -1), (1, 1, 1, 1)])
def test_geopipe_refuses_extra_forwards_it_cannot_feed(extra: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedShape):
        build_schedule("geopipe", PipelineShape(3, 4), extra_forwards=extra)


LONG = [f"{kind}{j}" for j in range(12) for kind in ("F", "B")]
"""A rank's order of 24 actions: longer than what the message shows of it."""


def pointed(message: str, rank: int) -> str:
    """The word of the rank's row in the grid that the arrow below it points at; empty if it points at none."""
    lines = message.splitlines()
    arrow = next(i for i, line in enumerate(lines) if line.strip() == "^")
    row, column = lines[arrow - 1], lines[arrow].index("^")
    assert row.split()[:2] == ["rank", str(rank)]
    if column >= len(row) or row[column] == " ":
        return ""
    first = row.rindex(" ", 0, column) + 1
    return row[first:].split(" ", 1)[0]


@pytest.mark.parametrize(
    ("rows", "microbatches", "rank", "said", "at"),
    [
        (["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1F0 1B1"], 2, 1, "it ran before", "1F0"),
        (["0F0 0F1 0B0 0B1 0B0", "1F0 1B0 1F1 1B1"], 2, 0, "it ran before", "0B0"),
        (["0F0 0F1 0B0 0B1", "1B0 1F0 1F1 1B1"], 2, 1, "1F0 has not run yet", "1B0"),
        (["0F0 0B1 0F1 0B0", "1F0 1B0 1F1 1B1"], 2, 0, "0F1 has not run yet", "0B1"),
        (["0F0 0F1 1F0 0B0 0B1", "1B0 1F1 1B1"], 2, 0, "stage 1 sits on rank 1", "1F0"),
        (["0F0 0F1 0F2 0B0 0B1", "1F0 1B0 1F1 1B1"], 2, 0, "no such stage or microbatch", "0F2"),
        (["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 9B1"], 2, 1, "no such stage or microbatch", "9B1"),
        (["0F0 0F1 0SEND_F0 0B0 0B1", "1F0 1B0 1F1 1B1"], 2, 0, "computes only", "0SEND_F0"),
        (["0F0 0I0 0B0 0W0", "1F0 1B0"], 1, 0, "0I0 already ran", "0B0"),
        (["0F0 0B0 0W0", "1F0 1B0"], 1, 0, "0B0 already ran", "0W0"),
        (["0F0 0B0", "1F0 1W0 1I0"], 1, 1, "1I0 has not run yet", "1W0"),
        ([" ".join(f"0{a}" for a in [*LONG[:21], "B3", *LONG[21:]])], 12, 0, "it ran before", "0B3"),
        ([" ".join(f"0{a}" for a in [*LONG[:9], "B11", *LONG[9:]])], 12, 0, "0F11 has not run yet", "0B11"),
    ],
)
def test_the_arrow_points_at_the_action_at_fault(
    rows: list[str], microbatches: int, rank: int, said: str, at: str
) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        schedule(*rows, microbatches=microbatches).validate()
    message = caught.value.message
    assert f"rank {rank}, " in message
    assert said in message
    assert pointed(message, rank) == at
    # The grid shows every rank.
    assert [line.split()[1] for line in message.splitlines() if line.startswith("  rank")] == [
        str(r) for r in range(len(rows))
    ]


@pytest.mark.parametrize(
    ("rows", "rank", "missing"),
    [
        (["0F0 0F1 0B0 0B1", "1F0 1B0 1F1"], 1, "1B1"),
        (["0F0 0B0", "1F0 1B0 1F1 1B1"], 0, "0F1"),
        (["0F0 0F1 0B0 0B1", ""], 1, "1F0"),
        (["0F0 0F1 0B0 0I1", "1F0 1B0 1F1 1B1"], 0, "0B1"),
    ],
)
def test_a_missing_action_is_named_and_the_arrow_is_past_the_end(rows: list[str], rank: int, missing: str) -> None:
    with pytest.raises(InvalidSchedule, match=rf"rank {rank}: {missing} is missing") as caught:
        schedule(*rows).validate()
    lines = caught.value.message.splitlines()
    arrow = next(i for i, line in enumerate(lines) if line.strip() == "^")
    assert lines[arrow].index("^") >= len(lines[arrow - 1])
    assert pointed(caught.value.message, rank) == ""
    assert caught.value.hint is not None
    assert "microbatches 0..1" in caught.value.hint


def test_a_schedule_for_other_ranks_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="has 1 ranks, the pipeline has 2"):
        Schedule("by-hand", PipelineShape(2, 1), orders("0F0 0B0")).validate()


def test_a_split_backward_is_complete_with_its_weight_part() -> None:
    schedule("0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1").validate()
    # torch runs the whole backward of the first stage as W.
    schedule("0F0 0F1 0W0 0W1", "1F0 1I0 1W0 1F1 1I1 1W1").validate()


@given(st.sampled_from(["1f1b", "gpipe", "geopipe"]), st.integers(1, 6), st.integers(1, 9), st.integers(0, 3))
def test_csv_reads_back(name: str, p: int, m: int, extra: int) -> None:
    extras = (extra,) * p if name == "geopipe" else None
    built = build_schedule(name, PipelineShape(p, m), extra_forwards=extras)
    back = schedule_from_csv(built.to_csv())
    assert back.orders == built.orders
    assert back.shape == built.shape


def test_csv_is_one_row_of_actions_per_rank() -> None:
    assert schedule("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1").to_csv() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_csv_with_transfers_sharding_and_gaps_keeps_the_computes() -> None:
    """As torch prints a lowered schedule."""
    text = (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0, 1F0 ,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD,\n"
    )
    assert schedule_from_csv(text).orders == orders("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")


def test_csv_tells_how_stages_sit() -> None:
    loop = schedule_from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n")
    turning = schedule_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert loop.shape == PipelineShape(2, 1, chunks=2, placement="loop")
    assert turning.shape == PipelineShape(2, 1, chunks=2, placement="v")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no compute actions"),
        ("\n\n", "no compute actions"),
        ("0UNSHARD,0SEND_F0\n", "no compute actions"),
        ("0F0,0B0\n0F0,what,0B0\n", "line 2: 'what' is not an action"),
        ("0F0,0B0\n999999999F999999999\n", "1,000,000,000 stages and 1,000,000,000 microbatches are named, with 3"),
        ("0F0," + "9" * 5000 + "F0\n", "is not an action"),
        ("0F0\r0B0\n", "line 1 is no CSV"),
        ("0F0\n1F0,1B0\n", "0B0 is missing"),
        ("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n", "neither looped nor V placement"),
    ],
)
def test_csv_that_is_no_schedule(text: str, said: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        schedule_from_csv(text)
    assert said in caught.value.message


@given(p=st.integers(1, 6), m=st.integers(1, 20), width=st.integers(20, 90))
def test_a_grid_is_cut_into_parts_that_fit_and_hold_every_action_once(p: int, m: int, width: int) -> None:
    schedule = build_schedule("1f1b", PipelineShape(p, m))
    lines = schedule.grid(width).splitlines()
    assert max(map(len, lines)) <= width
    for rank in range(p):
        mine = [line.removeprefix(f"rank {rank:>2}").split() for line in lines if line.startswith(f"rank {rank:>2}")]
        assert [cell for part in mine for cell in part] == schedule.cells(rank)
    assert schedule.grid(10_000) == schedule.grid()
