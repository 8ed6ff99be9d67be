"""The file of a fleet of two places with two devices each, on which recordings of four ranks run as they are."""

from __future__ import annotations


def fleet_text(*, placement: str, bandwidth: str = "1GB/s", latency: str = "5ms", name: str = "two places") -> str:
    """As TOML; what joins the places is called ``wan``."""
    return f"""
name = "{name}"
placement = "{placement}"
[[tier]]
name = "hb"
size = 2
bandwidth = "450GB/s"
[[tier]]
name = "wan"
size = 4
shared_by = "pair"
bandwidth = "{bandwidth}"
latency = "{latency}"
"""
