"""Values to sweep, as text: lists (``10Gbit/s,25Gbit/s``) and ranges (``10..800Gbit/s``, ``10..800Gbit/s*8``)."""

from __future__ import annotations

import re
from math import log2
from typing import TYPE_CHECKING

from tracetool.errors import BadQuantity, ScenarioError
from tracetool.units import parse_bandwidth_bytes_per_s, parse_distance_ns, parse_duration_ns, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.sweeps.column import WarmUp

_PER_OCTAVE = 4
_MOST_VALUES = 1_000
_DIGITS = 4
_RANGE = re.compile(r"^(?P<low>.+?)\.\.(?P<high>[^*]+)(?:\*(?P<count>\d+))?$")
_UNIT = re.compile(r"[^\d.\s].*$")


def parse_bandwidths(text: str) -> tuple[int, ...]:
    """Read bandwidths in bytes/s.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_bandwidth_bytes_per_s, _PER_OCTAVE)


def parse_latencies(text: str) -> tuple[int, ...]:
    """Read latencies in ns.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_duration_ns, _PER_OCTAVE)


def parse_distances(text: str) -> tuple[int, ...]:
    """Read distances such as ``80km`` or ``10..2000km`` as one-way latencies in ns, at 5 us per km.

    Raises:
        BadQuantity: If one is not in km or a range is none.
    """
    return _values(text, parse_distance_ns, _PER_OCTAVE)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes in bytes.

    Raises:
        BadQuantity: If one has no unit or a range is none.
    """
    return _values(text, parse_size_bytes, _PER_OCTAVE)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers from 1 to 65536; a range doubles from one to the next.

    Raises:
        BadQuantity: If one is none, or a range is none.
    """
    return _values(text, _whole, 1)


def parse_warm_ups(text: str) -> tuple[WarmUp, ...]:
    """Read warm-ups of tuned schedules, separated by ``;``.

    ``auto`` chooses for every link, ``2`` is two forwards per boundary, ``0..4`` none to four of them, and ``2,2,0,0``
    is told per pipeline rank.

    Raises:
        ScenarioError: If one is none of these.
    """
    found: list[WarmUp] = []
    for part in (part.strip() for part in text.split(";")):
        span = re.fullmatch(r"(\d+)\.\.(\d+)", part)
        if part == "auto":
            found.append(None)
        elif span is not None and int(span[1]) <= int(span[2]) < _MOST_VALUES:
            found += range(int(span[1]), int(span[2]) + 1)
        elif re.fullmatch(r"\d+", part):
            found.append(int(part))
        elif re.fullmatch(r"\d+(,\d+)+", part):
            found.append(tuple(map(int, part.split(","))))
        else:
            raise ScenarioError(
                f"{part!r} is no number of extra forwards.",
                hint="auto, 0..4 (per boundary) or 2,2,0,0;3,3,0,0 (per rank)",
            )
    return tuple(dict.fromkeys(found))


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*\d+\s*", text) or not 1 <= int(text) <= 65_536:
        raise BadQuantity(f"{text.strip()!r} is no whole number from 1 to 65536.", hint="as in 8,16,32 or 8..64")
    return int(text)


def _values(text: str, parse: Callable[[str], int], per_octave: int) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None and ".." in part:
            raise BadQuantity(f"{part.strip()!r} is no range.", hint="name both ends, as in 10..800Gbit/s or 1..40ms*8")
        found += [parse(part)] if match is None else _range(part.strip(), match, parse, per_octave)
    return tuple(dict.fromkeys(found))


def _range(text: str, match: re.Match[str], parse: Callable[[str], int], per_octave: int) -> list[int]:
    """Values at equal ratios, both ends with them; those between are rounded to four digits."""
    unit = _UNIT.search(match["high"].strip())
    own = _UNIT.search(match["low"].strip())
    low = parse(match["low"] if own or unit is None else match["low"] + unit[0])
    high = parse(match["high"])
    if not 0 < low < high:
        raise BadQuantity(
            f"the range {text!r} does not rise from above 0.", hint="write the smaller end first, as in 10..800Gbit/s"
        )
    count = max(1, round(log2(high / low) * int(match["count"] or per_octave)))
    if match["count"] == "0" or count >= _MOST_VALUES:
        raise BadQuantity(
            f"the range {text!r} holds {count + 1 if count >= _MOST_VALUES else 'no'} values.",
            hint=f"'*N' says how many per doubling; at most {_MOST_VALUES} values make a range",
        )
    between = (low * (high / low) ** (step / count) for step in range(1, count))
    return [low, *(int(float(f"{value:.{_DIGITS - 1}e}")) for value in between), high]
