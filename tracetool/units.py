"""Quantities with units: text to integers (ns, bytes, bytes/s) and back.

A bare number is refused: Gbit/s taken for GB/s is the classic error of this field.
Decimal prefixes are powers of 1000, binary ones (KiB, MiB ...) powers of 1024.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.errors import BadQuantity

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES = {**_DECIMAL, "K": 10**3, **_BINARY}

DURATION_NS = {"ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": 10**9}
SIZE_BYTES = {f"{prefix}B": Fraction(factor) for prefix, factor in _PREFIXES.items()}
BANDWIDTH_BYTES_PER_S = {
    **{f"{prefix}B/s": Fraction(factor) for prefix, factor in _PREFIXES.items()},
    **{f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _PREFIXES.items()},
    **{f"{prefix}bps": Fraction(factor, 8) for prefix, factor in _DECIMAL.items() if prefix},
}

NS_PER_KM = 5_000
"""One way through fibre: about 5 us per km, light at c / 1.47."""

_QUANTITY = re.compile(r"^\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[^\d\s]\S*)?\s*$")


def _parse(text: str, units: dict[str, Fraction] | dict[str, int], what: str, example: str) -> int:
    return int(_exact(text, units, what, example) + Fraction(1, 2))


def _exact(text: str, units: dict[str, Fraction] | dict[str, int], what: str, example: str) -> Fraction:
    match = _QUANTITY.match(text)
    if match is None:
        raise BadQuantity(f"{text!r} is not {what}.", hint=f"write a number with a unit, as in {example}")
    unit = match["unit"]
    if unit is None:
        raise BadQuantity(f"{text!r} has no unit; {what} needs one.", hint=f"write it with a unit, as in {example}")
    if unit not in units:
        raise BadQuantity(
            f"{unit!r} in {text!r} is not a unit of {what} (case matters).", hint=f"write it as in {example}"
        )
    return Fraction(match["number"]) * units[unit]


def parse_duration_ns(text: str) -> int:
    """Parse a duration such as ``10ms`` into whole nanoseconds.

    Raises:
        BadQuantity: If the unit is missing or not one of ns, us, ms, s.
    """
    return _parse(text, DURATION_NS, "a duration", "10ms, 250us or 1.5s")


def parse_distance_ns(text: str) -> int:
    """Parse a distance such as ``80km`` into what light takes through fibre one way, at ``NS_PER_KM``, in ns.

    Raises:
        BadQuantity: If it is not in km.
    """
    match = _QUANTITY.match(text)
    if match is None or match["unit"] != "km":
        raise BadQuantity(f"{text.strip()!r} is no distance in km.", hint="write it with its unit, as in 80km")
    return _parse(text, {"km": NS_PER_KM}, "a distance", "80km")


def parse_latency_ns(text: str) -> int:
    """Parse a one-way latency such as ``10ms``, or the distance that brings it such as ``800km``, into ns.

    Raises:
        BadQuantity: If the unit is missing or none of a duration or distance.
    """
    match = _QUANTITY.match(text)
    if match is not None and match["unit"] == "km":
        return parse_distance_ns(text)
    return _parse(text, DURATION_NS, "a latency", "10ms, 250us or 800km")


def parse_size_bytes(text: str) -> int:
    """Parse a size such as ``80GiB`` into whole bytes.

    Raises:
        BadQuantity: If the unit is missing or not a size.
    """
    return _parse(text, SIZE_BYTES, "a size", "80GiB, 64GB or 512MiB")


def parse_bandwidth_bytes_per_s(text: str) -> int:
    """Parse a bandwidth such as ``25Gbit/s`` into whole bytes per second.

    Raises:
        BadQuantity: If the unit is missing, not a bandwidth, or the bandwidth is zero.
    """
    value = _parse(text, BANDWIDTH_BYTES_PER_S, "a bandwidth", "25Gbit/s or 12.5GB/s")
    if value == 0:
        raise BadQuantity(f"{text!r} is no bandwidth: nothing would ever arrive.", hint="give more than 0")
    return value


def parse_share_ratio(text: str) -> float:
    """Parse a share such as ``2%`` into a ratio.

    Raises:
        BadQuantity: If it is no number with a per cent sign.
    """
    return float(_exact(text, {"%": Fraction(1, 100)}, "a share", "2% or 0.5%"))


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}f} {unit}"
    return f"{value:.0f} {steps[-1][1]}"


def format_duration(value_ns: float) -> str:
    """Format nanoseconds for people, as ``312.4 ms``."""
    return _scaled(value_ns, [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")], 3 if abs(value_ns) >= 1e9 else 1)


def format_size(value_bytes: float) -> str:
    """Format bytes for people, as ``12.15 GiB``."""
    steps = [(2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1, "B")]
    return _scaled(value_bytes, steps, 2)


def format_bandwidth(value_bytes_per_s: float) -> str:
    """Format a bandwidth in both spellings, as ``25 Gbit/s (3.125 GB/s)``."""
    return f"{format_bits(value_bytes_per_s)} ({value_bytes_per_s / 1e9:g} GB/s)"


def format_bits(value_bytes_per_s: float) -> str:
    """Format a bandwidth in the first of them alone, as ``25 Gbit/s``."""
    return f"{value_bytes_per_s * 8 / 1e9:g} Gbit/s"


def format_ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in short: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks in short: ``rank 3``, ``ranks 0-3, 7``."""
    listed = list(ranks)
    return f"rank{'' if len(listed) == 1 else 's'} {format_ranges(listed)}"


def format_count(count: int, noun: str) -> str:
    """A number of things: ``1 record``, ``1,200 records``, ``8 microbatches``."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"
