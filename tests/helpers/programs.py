"""What every rank does, message by message, as the rules of posting say it: to be read beside what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import Action
from tracetool.replays.flow import trace_flow
from tracetool.replays.placing import place

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.replays.flow import Message


class Post(NamedTuple):
    """Sends and receives that a rank issues as one."""

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]

    def __str__(self) -> str:
        parts = [f"send {m}" for m in self.sends] + [f"receive {m}" for m in self.recvs]
        return " + ".join(parts)


Instruction = Action | Post
Program = list[list[Instruction]]


def build_program(schedule: Schedule, mode: P2PMode) -> Program:
    """The programs of all ranks, to read.

    Raises:
        ScheduleDeadlock: If no order of messages lets every rank finish.
    """
    flow = trace_flow(schedule)
    placed = place(flow, mode)
    sends: dict[int, list[Message]] = {}
    recvs: dict[int, list[Message]] = {}
    for at, posts in ((placed.send_at, sends), (placed.recv_at, recvs)):
        for number, instruction in enumerate(at.tolist()):
            posts.setdefault(instruction, []).append(flow.message(number))
    program: Program = [[] for _ in schedule.orders]
    for instruction, (rank, action) in enumerate(zip(placed.rank.tolist(), placed.action.tolist(), strict=True)):
        post = Post(tuple(sends.get(instruction, ())), tuple(recvs.get(instruction, ())))
        program[rank].append(flow.actions[action] if action >= 0 else post)
    return program
