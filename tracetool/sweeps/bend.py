"""Searches over figures of links, whatever the grid: where a replayed condition holds for the last time.

Of one order the replayed step is convex in the latency and in 1 / bandwidth (the latest of many sums), so a gain, or a
delay that is hidden, ends once. A warm-up that is chosen for every link is another order here than there, and the step
jumps by what the choice does not mind: there a condition may hold again, and again. So the figures are sought octave by
octave from the top; from the first octave on in which the order changes or the condition holds, in steps of 1/32
octave, and where it does so within such a step, in 1/16 of it.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tracetool.whatif.depth import Depth

KNEE_RATIO = 0.01
"""A gain below this share of the step counts as none."""

TOLERANCE_RATIO = 0.002
"""Bandwidths and latencies are found to this share of themselves."""

MOST_LATENCY_NS = 1000 << 18
"""No latency above it (0.26 s; once round the earth is 0.2 s) is sought."""

UNLIMITED_BYTES_PER_S = 1 << 50
"""A bandwidth that costs no step anything (9 Pbit/s). No knee is sought above it."""

_LEAST_LATENCY_NS = 1000
_SLOWEST_BYTES_PER_S = 1 << 10
_PARTS = 32, 16
_OCTAVES = 19
_BLOCK = 5

Figures = tuple[int, int]
"""Latency in ns, bandwidth in bytes/s."""


class Took(NamedTuple):
    """What a step took over a link, and the warm-up it had."""

    step_ns: int
    warm_up: Depth | None


_Key = TypeVar("_Key", bound="Hashable")
Seek = Generator[list[Figures], list[Took], int | None]
"""Yields links to replay, takes what the step took over each, returns what was sought; None if there is none."""

_Bracket = Generator[list[Figures], list[Took], tuple[int, int] | None]


class _Condition(NamedTuple):
    """A condition on one figure of the links.

    Attributes:
        over: The links to replay for a value of the figure.
        holds: Whether it holds at a value, by what was replayed over them.
    """

    over: Callable[[int], list[Figures]]
    holds: Callable[[int, list[Took]], bool]


class _Held(NamedTuple):
    """Whether a condition holds at a value, and by which orders."""

    value: int
    holds: bool
    warm_ups: tuple[Depth | None, ...]


def bandwidth_knee(latency_ns: int) -> Seek:
    """Seek the bandwidth in bytes/s from which on twice as much gains less than ``KNEE_RATIO``, at one latency.

    Returns:
        The bandwidth; None if no bandwidth gains anything.
    """

    def gains(_bandwidth: int, took: list[Took]) -> bool:
        step_ns, faster_ns = (one.step_ns for one in took)
        return step_ns - faster_ns >= KNEE_RATIO * step_ns

    paid = _Condition(lambda bandwidth: [(latency_ns, bandwidth), (latency_ns, 2 * bandwidth)], gains)
    above = UNLIMITED_BYTES_PER_S
    while above > _SLOWEST_BYTES_PER_S:
        below = max(_SLOWEST_BYTES_PER_S, above >> _BLOCK)
        octaves = [below << n for n in range((above // below).bit_length())]
        knee = yield from _highest(paid, (yield from _held(paid, octaves)))
        if knee is not None:
            return knee[1]
        above = below
    return None


def hidden_latency(floor_ns: Callable[[int], int]) -> Seek:
    """Seek the largest latency at which a step is within ``KNEE_RATIO`` of its floor, bandwidth costing nothing.

    Args:
        floor_ns: What the step takes at least at a latency.

    Returns:
        The latency; ``MOST_LATENCY_NS`` if even that is hidden, 0 if not even a microsecond is.
    """

    def hides(latency_ns: int, took: list[Took]) -> bool:
        floor = floor_ns(latency_ns)
        return took[0].step_ns - floor <= KNEE_RATIO * floor

    hidden = _Condition(lambda latency_ns: [(latency_ns, UNLIMITED_BYTES_PER_S)], hides)
    held = yield from _held(hidden, [_LEAST_LATENCY_NS << n for n in range(_OCTAVES)])
    knee = yield from _highest(hidden, held)
    return 0 if knee is None else knee[0]


def _held(condition: _Condition, values: Sequence[int]) -> Generator[list[Figures], list[Took], list[_Held]]:
    over = [condition.over(value) for value in values]
    took = iter((yield [link for links in over for link in links]))
    each = [[next(took) for _ in links] for links in over]
    return [
        _Held(value, condition.holds(value, of_value), tuple(one.warm_up for one in of_value))
        for value, of_value in zip(values, each, strict=True)
    ]


def _highest(condition: _Condition, held: Sequence[_Held], parts: Sequence[int] = _PARTS) -> _Bracket:
    """The highest value at which a condition holds, and the next above it that was tried; None if it holds at none.

    Args:
        condition: What to hold.
        held: Values, lowest first.
        parts: Into how many parts the cells between them are cut, and those between the parts.
    """
    if held[-1].holds:
        return held[-1].value, held[-1].value
    is_sought = False
    for low, high in reversed([*pairwise(held)]):
        is_octave = len(parts) == len(_PARTS)
        is_sought = (is_sought and is_octave) or low.holds or low.warm_ups != high.warm_ups
        width = high.value - low.value
        if is_sought and parts and width > 1:
            inner = [low.value + width * n // parts[0] for n in range(1, parts[0])]
            tried = yield from _held(condition, [value for value in dict.fromkeys(inner) if value > low.value])
            highest = yield from _highest(condition, [low, *tried, high], parts[1:])
            if highest is not None:
                return highest
        elif low.holds:
            return low.value, high.value
    return None


def drive(seeks: Mapping[_Key, Seek], replay: Callable[[list[Figures]], list[Took]]) -> dict[_Key, int | None]:
    """Run searches side by side, so that what all of them ask for is replayed at once.

    Args:
        seeks: The searches.
        replay: What the step takes over each of some links.
    """
    values: dict[_Key, int | None] = {}
    asked: dict[_Key, list[Figures]] = {}
    known: dict[Figures, Took] = {}
    answers: dict[_Key, list[Took] | None] = dict.fromkeys(seeks)
    while answers:
        for key, answer in list(answers.items()):
            try:
                asked[key] = next(seeks[key]) if answer is None else seeks[key].send(answer)
            except StopIteration as done:
                values[key] = done.value
                del answers[key]
        links = [link for link in dict.fromkeys(p for key in answers for p in asked[key]) if link not in known]
        known.update(zip(links, replay(links) if links else [], strict=True))
        answers = {key: [known[link] for link in asked[key]] for key in answers}
    return values
