"""Quantities with units; expected numbers are the definitions of the SI and IEC prefixes, written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import BadQuantity
from tracetool.units import (
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth_bytes_per_s,
    parse_duration_ns,
    parse_share_ratio,
    parse_size_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PARSERS = [parse_duration_ns, parse_size_bytes, parse_bandwidth_bytes_per_s]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("10ms", 10_000_000),
        ("1.5s", 1_500_000_000),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("7ns", 7),
        ("0ms", 0),
        (" 3 ms ", 3_000_000),
        (".5us", 500),
        ("0.1s", 100_000_000),
        ("1234567.890123456s", 1_234_567_890_123_456),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 * 1024**3),
        ("64GB", 64_000_000_000),
        ("512MiB", 536_870_912),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5KiB", 1536),
        ("2TB", 2_000_000_000_000),
        ("17B", 17),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(("text", "ratio"), [("2%", 0.02), ("0.5 %", 0.005), ("100%", 1.0), ("0%", 0.0)])
def test_shares(text: str, ratio: float) -> None:
    assert parse_share_ratio(text) == ratio


@pytest.mark.parametrize("text", ["0.02", "2", "", "%", "-1%", "2 ms", "2%%"])
def test_shares_without_per_cent_are_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_share_ratio(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("25Gbit/s", 3_125_000_000),
        ("25GB/s", 25_000_000_000),
        ("12.5GB/s", 12_500_000_000),
        ("25Gbps", 3_125_000_000),
        ("400Gbit/s", 50_000_000_000),
        ("8bit/s", 1),
        ("1GiB/s", 1024**3),
        ("1Gibit/s", 1024**3 // 8),
        ("100Mbit/s", 12_500_000),
        ("1kB/s", 1000),
    ],
)
def test_bandwidths(text: str, bytes_per_s: int) -> None:
    assert parse_bandwidth_bytes_per_s(text) == bytes_per_s


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["25", "0", "1.5", " 80 "])
def test_a_bare_number_is_refused_with_a_hint(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(BadQuantity, match="has no unit") as caught:
        parse(text)
    assert text in caught.value.message
    assert caught.value.hint is not None
    # The hint shows a spelling that the same parser accepts.
    example = caught.value.hint.split("as in ")[1].split(",")[0].split(" or ")[0]
    assert parse(example) > 0


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bandwidth_bytes_per_s, "25Gbit"),
        (parse_bandwidth_bytes_per_s, "25Gb/s"),  # bits or bytes?
        (parse_bandwidth_bytes_per_s, "25GBps"),
        (parse_bandwidth_bytes_per_s, "25GB"),
        (parse_bandwidth_bytes_per_s, "10ms"),
        (parse_size_bytes, "80G"),
        (parse_size_bytes, "80Gbit"),
        (parse_size_bytes, "80GB/s"),
        (parse_size_bytes, "80gib"),
        (parse_duration_ns, "10"),
        (parse_duration_ns, "10m"),
        (parse_duration_ns, "10MS"),
        (parse_duration_ns, "1e3ms"),
        (parse_duration_ns, "-5ms"),
        (parse_duration_ns, "ms"),
        (parse_duration_ns, ""),
        (parse_duration_ns, "1 ms 2 us"),
        (parse_duration_ns, "nan ms"),
        (parse_duration_ns, "1,5ms"),
    ],
)
def test_other_units_and_other_text_are_refused_with_a_hint(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        parse(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint is not None
    assert "as in" in caught.value.hint


@pytest.mark.parametrize("text", ["0Gbit/s", "0.0B/s", "0bps", "0kbps"])
def test_no_bandwidth_at_all_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_bandwidth_bytes_per_s(text)


@given(st.integers(0, 10**18))
def test_whole_numbers_are_exact(number: int) -> None:
    # Above 2**53 a detour through float would lose digits.
    assert parse_duration_ns(f"{number}ns") == number
    assert parse_size_bytes(f"{number}B") == number
    assert parse_bandwidth_bytes_per_s(f"{number + 1}GB/s") == (number + 1) * 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_duration(312_400_000), "312.4 ms"),
        (format_duration(1_500_000_000), "1.500 s"),
        (format_duration(2_500), "2.5 us"),
        (format_duration(0), "0 ns"),
        (format_duration(-12_000_000), "-12.0 ms"),
        (format_size(358_400 * 2**30), "350.00 TiB"),
        (format_size(3 * 2**50), "3.00 PiB"),
        (format_size(12.15 * 2**30), "12.15 GiB"),
        (format_size(3 * 2**19), "1.50 MiB"),
        (format_size(0), "0 B"),
        (format_bandwidth(3_125_000_000), "25 Gbit/s (3.125 GB/s)"),
    ],
)
def test_quantities_for_people(text: str, expected: str) -> None:
    assert text == expected
