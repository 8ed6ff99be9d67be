"""What each stream of a rank does in one call of a layer, and which communication is left as a tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracetool.overlap.program import Stream
from tracetool.overlap.simulation import Physics, Simulation
from tracetool.overlap.variants import issue_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.overlap.machine import Machine
    from tracetool.overlap.program import StreamWork
    from tracetool.overlap.variants import LayerShape

_CALLS = 3
"""So many in a row, of which the last one is looked at: what the first one takes to get going is not in it."""

WorkKind = Literal["product", "communication", "other"]


@dataclass(frozen=True, slots=True)
class DrawnWork:
    """One kernel or copy of a call.

    Attributes:
        stream: Where it runs.
        kind: What it does.
        part: Which one of its kind, from 0 on.
        start_ns: Its start, from the end of the call before.
        end_ns: Its end.
        tail_ns: Of communication, what is left at its end when all products that began before are done.
    """

    stream: Stream
    kind: WorkKind
    part: int
    start_ns: float
    end_ns: float
    tail_ns: float


def streams_of(
    variant: str, shape: LayerShape, machine: Machine, physics: Physics | None = None
) -> tuple[DrawnWork, ...]:
    """What the streams of one rank do in one of several calls in a row, in order of start.

    Args:
        variant: The way, as ``issue_calls`` takes it.
        shape: The layer.
        machine: What runs it.
        physics: What gets in the way of what; by default all that is known.

    Raises:
        BadQuery: As ``issue_calls``.
    """
    program = issue_calls(variant, shape, machine, calls=_CALLS, ahead_ns=0.0)
    # Where either of two works may come first, they do on another rank: it is waited for here.
    spans = Simulation(program, physics or Physics(), [False, True]).run()[0]
    each = len(program.works) // _CALLS
    last = range(each * (_CALLS - 1), len(program.works))
    began = max(end for number, (_, end) in spans.items() if number < last[0])
    works = [(program.works[number], *spans[number]) for number in last]
    products = [(start, end) for work, start, end in works if work.product is not None]
    counts: dict[WorkKind, int] = {"product": 0, "communication": 0, "other": 0}
    streams = []
    for work, start, end in sorted(works, key=lambda each: each[1]):
        kind = _kind(work)
        tail = _tail_ns(start, end, products) if kind == "communication" else 0.0
        streams.append(DrawnWork(work.stream, kind, counts[kind], start - began, end - began, tail))
        counts[kind] += 1
    return tuple(streams)


def _kind(work: StreamWork) -> WorkKind:
    if work.product is not None:
        return "product"
    return "communication" if work.blocks or work.stream is Stream.COPY else "other"


def _tail_ns(start: float, end: float, products: Sequence[tuple[float, float]]) -> float:
    """What is left of a communication once all products are done that began before its end."""
    done = max((done for began, done in products if began < end), default=start)
    return max(0.0, end - max(start, done))
