"""What links cost, and which points nobody should pass over: the Pareto front of link cost, memory and step time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.errors import BadQuantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.network.link import Link
    from tracetool.sweeps.results import SweepPoint

_BYTES_PER_GBIT = 125_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a link costs.

    Attributes:
        per_gbit: For each 10^9 bit/s of its bandwidth, both directions together.
        currency: In which currency, and for how long: as the user says it.
    """

    per_gbit: float
    currency: str


def parse_price(text: str) -> Price:
    """Read ``120EUR`` or ``1500 USD/month``.

    Raises:
        BadQuantity: If the number or the currency is missing, or the price is no positive number.
    """
    number, word = _split(text.strip())
    try:
        amount = float(number)
    except ValueError:
        raise BadQuantity(f"{text!r} is no price.", hint="write it as in 120EUR or '1500 USD/month'") from None
    if not word:
        raise BadQuantity(f"{text!r} has no currency.", hint=f"write it as in {number}EUR or '{number} USD/month'")
    if amount <= 0:
        raise BadQuantity(f"{text!r}: a price is more than 0.", hint="leave it out where links cost nothing")
    return Price(amount, word)


def _split(text: str) -> tuple[str, str]:
    end = next((i for i, letter in enumerate(text) if letter not in "0123456789."), len(text))
    return text[:end], text[end:].strip()


def link_cost(point: SweepPoint, fixed: Sequence[Link], price: Price) -> float:
    """What the links of a point cost: of each pair of DCs that neighbouring ranks lie in, the faster direction.

    Args:
        point: The point; its bandwidth is that of the links that were swept.
        fixed: The links that were not.
        price: Of each Gbit/s.
    """
    pairs = dict.fromkeys(frozenset(pair) for pair in pairwise(point.dcs) if pair[0] != pair[1])
    total = 0
    for pair in pairs:
        known = [link.bandwidth_bytes_per_s for link in fixed if {link.src_dc, link.dst_dc} == pair]
        swept = [point.bandwidth_bytes_per_s] if point.bandwidth_bytes_per_s is not None and len(known) < 2 else []
        total += max([*known, *swept], default=0)
    return total / _BYTES_PER_GBIT * price.per_gbit


def mark_pareto(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Mark the points that no other one beats in link cost, memory and step time per microbatch.

    A point beats another if it is as good in all three and better in one. Compared are points that fit, of one map of
    DCs and one latency: how far DCs are apart is not for sale. Memory is what the rank that needs most needs; where it
    is unknown, points are compared in the other two.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, point in enumerate(points):
        if point.is_usable and point.link_cost is not None:
            groups.setdefault((point.dcs, point.latency_ns), []).append(number)
    front: set[int] = set()
    for numbers in groups.values():
        known = all(points[number].needed_bytes is not None for number in numbers)
        front.update(_front([(_figures(points[number], memory=known), number) for number in numbers]))
    return tuple(replace(point, is_pareto=number in front) for number, point in enumerate(points))


_Figures = tuple[float, float, float]


def _figures(point: SweepPoint, *, memory: bool) -> _Figures:
    return point.link_cost or 0.0, (point.needed_bytes or 0) if memory else 0, point.step_ns_per_microbatch or 0.0


def _front(rows: list[tuple[_Figures, int]]) -> list[int]:
    """Rows whose figures none beats: in the order of figures only those seen before can."""
    front: list[tuple[_Figures, int]] = []
    for figures, number in sorted(rows):
        if not any(_beats(kept, figures) for kept, _ in front):
            front.append((figures, number))
    return [number for _, number in front]


def _beats(one: _Figures, other: _Figures) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
