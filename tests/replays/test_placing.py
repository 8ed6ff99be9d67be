"""Where sends and receives are posted, against the rules worked out action by action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.engine_cases import schedules
from helpers.programs import Post, build_program
from helpers.thorough import drawn
from hypothesis import HealthCheck, given

from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape, schedule_from_csv
from tracetool.replays.flow import Dataflow, trace_flow
from tracetool.replays.placing import other_turns
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.programs import Program

    from tracetool.model.schedule import Schedule
    from tracetool.replays.flow import Message, Unit

quick = drawn(150, suppress_health_check=[HealthCheck.too_slow])


def by_rounds(schedule: Schedule) -> Program:
    """Round after round over all ranks: each takes a unit whose inputs were sent, or one of its other turns."""
    flow = Dataflow(schedule)
    turns = iter(other_turns(trace_flow(schedule)))
    left = [[(unit, sum(next(turns) for _ in unit)) for unit in schedule.units(r)] for r in range(len(schedule.orders))]
    program: Program = [[] for _ in left]
    sent: set[Message] = set()
    while any(left):
        for rank, units in enumerate(left):
            if not units:
                continue
            unit, pauses = units[0]
            if pauses:
                units[0] = (unit, pauses - 1)
                continue
            if any(message is not None and message not in sent for message in map(flow.needs, unit)):
                continue
            program[rank] += units.pop(0)[0]
            sent |= {message for action in unit if (message := flow.makes(action)) is not None}
            for message in flow.sent(unit):
                program[rank].append(Post((message,), ()))
                program[schedule.shape.rank_of(message.dst_stage)].append(Post((), (message,)))
    return program


def in_batches(units: list[Unit], flow: Dataflow) -> list[object]:
    """The send of one unit and the receive for the next are one batch where one is a forward's, one a backward's."""
    program: list[object] = []
    for before, after in zip([(), *units], [*units, ()], strict=True):
        sends, recvs = flow.sent(before), flow.received(after)
        if sends and recvs and (sends[0].kind is not recvs[0].kind or len(before) > 1 or len(after) > 1):
            program.append(Post(sends, recvs))
        else:
            program += [*(Post((m,), ()) for m in sends), *(Post((), (m,)) for m in recvs)]
        program += after
    return program


@quick
@given(schedules())
def test_one_by_one(schedule: Schedule) -> None:
    expected = by_rounds(schedule)
    assert build_program(schedule, "in-order") == expected
    assert build_program(schedule, "per-edge") == expected
    assert build_program(schedule, "posted-ahead") == expected


def in_megatrons_batches(units: list[Unit], flow: Dataflow, warm_up: int) -> list[object]:
    """``forward_backward_pipelining_with_interleaving`` of megatron-core 0.19 without ``overlap_p2p_comm``.

    One call exchanges all between two forwards of the warm-up, around each forward and backward, and between two
    backwards of the cool-down; ``recv_backward`` alone opens the last where all forwards were warm-up.
    """
    actions = [action for unit in units for action in unit]
    forwards = len(actions) // 2
    warm_up = min(warm_up, forwards)
    steady = 2 * (forwards - warm_up)
    turns = [[a] for a in actions[:warm_up]]
    turns += [actions[at : at + 2] for at in range(warm_up, warm_up + steady, 2)]
    turns += [[a] for a in actions[warm_up + steady :]]
    program: list[object] = []
    for number, (before, after) in enumerate(zip([[], *turns], [*turns, []], strict=True)):
        sends = tuple(m for a in before if (m := flow.makes(a)) is not None and m in flow.sent((a,)))
        recvs = tuple(m for a in after if (m := flow.needs(a)) is not None and m in flow.received((a,)))
        if not after or (not steady and number == warm_up):
            program += [*(Post((m,), ()) for m in sends), *(Post((), (m,)) for m in recvs)]
        elif sends or recvs:
            program.append(Post(sends, recvs))
        program += after
    return program


def _as_sets(programs: Sequence[Sequence[object]]) -> list[list[object]]:
    """What a batch holds has no order."""
    return [[(set(i.sends), set(i.recvs)) if isinstance(i, Post) else i for i in program] for program in programs]


def _group_of(schedule: Schedule) -> int | None:
    """Which groups of microbatches interleaved stages take in turn, if the order is that of interleaved stages."""
    shape = schedule.shape
    if shape.chunks == 1 or shape.placement != "loop":
        return None
    leading = next((at for at, a in enumerate(schedule.orders[0]) if a.stage), shape.microbatches)
    warm_ups = [2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * leading for rank in range(shape.ranks)]
    forwards = shape.microbatches * shape.chunks
    for order, warm_up in zip(schedule.orders, warm_ups, strict=True):
        kinds = "".join(action.kind.value for action in order)
        ahead = min(warm_up, forwards)
        if kinds != "F" * ahead + "FB" * (forwards - ahead) + "B" * ahead:
            return None
    return leading


@quick
@given(schedules())
def test_in_batches(schedule: Schedule) -> None:
    flow, shape, group = Dataflow(schedule), schedule.shape, _group_of(schedule)
    expected = [in_batches(schedule.units(rank), flow) for rank in range(len(schedule.orders))]
    if group is not None:
        expected = [
            in_megatrons_batches(schedule.units(r), flow, 2 * (shape.ranks - r - 1) + (shape.chunks - 1) * group)
            for r in range(shape.ranks)
        ]
    assert _as_sets(build_program(schedule, "grouped")) == _as_sets(expected)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 4), (4, 2, 8), (4, 3, 8), (3, 2, 9)])
def test_interleaved_stages_are_batched_as_in_megatron(p: int, v: int, m: int) -> None:
    schedule = build_schedule("interleaved", PipelineShape(p, m, v))
    group = _group_of(schedule)
    assert group is not None
    flow = Dataflow(schedule)
    expected = [in_megatrons_batches(schedule.units(r), flow, 2 * (p - r - 1) + (v - 1) * group) for r in range(p)]
    assert _as_sets(build_program(schedule, "grouped")) == _as_sets(expected)


def one_at_a_time(
    units: list[Unit], flow: Dataflow, made: dict[Message, int], used: dict[Message, int]
) -> list[object]:
    """Sends of one unit, then receives of the next; a gradient that needs no such send is received ahead of them."""
    program: list[object] = []
    for before, after in zip([(), *units], [*units, ()], strict=True):
        sends, recvs = flow.sent(before), flow.received(after)
        early = [
            r for r in recvs
            if r.kind is ActionKind.BACKWARD
            and any(s.kind is ActionKind.FORWARD and made[r] < used[s] for s in sends)
        ]  # fmt: skip
        program += [Post((), (m,)) for m in early] + [Post((m,), ()) for m in sends]
        program += [Post((), (m,)) for m in recvs if m not in early]
        program += after
    return program


@quick
@given(schedules())
def test_one_at_a_time(schedule: Schedule) -> None:
    flow = Dataflow(schedule)
    actions = [action for order in schedule.orders for action in order]
    made = {message: at for at, action in enumerate(actions) if (message := flow.makes(action)) is not None}
    used = {message: at for at, action in enumerate(actions) if (message := flow.needs(action)) is not None}
    expected = [one_at_a_time(schedule.units(rank), flow, made, used) for rank in range(len(schedule.orders))]
    assert build_program(schedule, "blocking") == expected


def test_as_deepspeed_exchanges() -> None:
    """Instructions of DeepSpeed's TrainSchedule for stage 1 of 3 and 3 microbatches, written down by hand."""
    order = build_schedule("1f1b", PipelineShape(3, 3))
    words = [
        "send " + str(step.sends[0]) if isinstance(step, Post) and step.sends
        else "recv " + str(step.recvs[0]) if isinstance(step, Post) else f"{step.kind.value}{step.microbatch}"
        for step in build_program(order, "blocking")[1]
    ]  # fmt: skip
    kinds = [word.split()[0] for word in words]
    assert kinds == [
        "recv", "F0", "send", "recv", "F1", "recv", "send", "B0", "send", "recv", "F2", "recv", "send", "B1",
        "send", "recv", "B2", "send",
    ]  # fmt: skip


@quick
@given(schedules())
def test_messages_are_those_of_the_dataflow(schedule: Schedule) -> None:
    flow, numbered = Dataflow(schedule), trace_flow(schedule)
    for number, action in enumerate(numbered.actions):
        for messages, expected in ((numbered.made, flow.makes(action)), (numbered.needed, flow.needs(action))):
            assert (None if messages[number] < 0 else numbered.message(int(messages[number]))) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # One stage: UNSHARD ahead of all. Its last backward is the end: REDUCE_GRAD has no compute after it.
        (["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"], [[1, 0, 0, 0], [1, 0, 0, 0]]),
        # Two stages: both are gathered at the start. Stage 2 (3) is done with its B: RESHARD and REDUCE_GRAD follow.
        (["0F0,2F0,2B0,0B0", "1F0,3F0,3B0,1B0"], [[2, 0, 0, 2], [2, 0, 0, 2]]),
        # The W of the first stage is a whole backward, whose I took a turn; stage 1 has one of its own.
        (["0F0,0W0", "1F0,1I0,1W0"], [[1, 1], [1, 0, 0]]),
    ],
)
def test_other_turns(rows: list[str], expected: list[list[int]]) -> None:
    """Worked out by hand after torch 2.11's lowering to its action runtime."""
    flow = trace_flow(schedule_from_csv("\n".join(rows)))
    turns = other_turns(flow)
    assert [turns[a:b] for a, b in zip(flow.first[:-1], flow.first[1:], strict=True)] == expected
    assert all(action.kind is not ActionKind.RECOMPUTE for action in flow.actions)
