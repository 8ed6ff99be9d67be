"""What messages pass: links that are occupied one message at a time, and paths of several of them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.units import DURATION_NS, format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two DCs: a message occupies it for payload/bandwidth, then needs the latency."""

    src_dc: str
    dst_dc: str
    bandwidth_bytes_per_s: int
    latency_ns: int

    @property
    def name(self) -> str:
        """The link's name in tables, as ``dc0-dc1``."""
        return f"{self.src_dc}-{self.dst_dc}"

    @property
    def figures(self) -> str:
        """Bandwidth and latency as :func:`parse_link` reads them, in the largest units that hold them exactly."""
        rate, latency = 8 * self.bandwidth_bytes_per_s, self.latency_ns
        return f"{_exactly(rate, _RATES)},{_exactly(latency, DURATION_NS)}"

    def occupancy_ns(self, payload_bytes: int) -> int:
        """Time a message keeps the link busy, rounded to whole ns."""
        return (2 * payload_bytes * 10**9 + self.bandwidth_bytes_per_s) // (2 * self.bandwidth_bytes_per_s)

    def busy_ns(self, payload_bytes: float, messages: float) -> int:  # noqa: ARG002 - each at the same bandwidth
        """Time that so many messages keep it busy which carry so many bytes together."""
        return self.occupancy_ns(round(payload_bytes))

    def at(self, bandwidth_bytes_per_s: int) -> Link:
        """The same of another bandwidth, at least 1 byte/s."""
        return replace(self, bandwidth_bytes_per_s=max(1, bandwidth_bytes_per_s))

    def widened(self) -> Link:
        """The same of unlimited bandwidth: any number of messages pass it at once, each in its latency alone."""
        return _WideLink(self.src_dc, self.dst_dc, self.bandwidth_bytes_per_s, self.latency_ns)

    def __str__(self) -> str:
        return (
            f"{self.src_dc}→{self.dst_dc} {format_bandwidth(self.bandwidth_bytes_per_s)}, "
            f"{format_duration(self.latency_ns)}"
        )


_RATES = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9}


def _exactly(value: int, units: Mapping[str, int]) -> str:
    unit = max((unit for unit, size in units.items() if value % size == 0), key=lambda unit: units[unit])
    return f"{value // units[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class _WideLink(Link):
    """A link of unlimited bandwidth, whatever its own is."""

    def occupancy_ns(self, payload_bytes: int) -> int:  # noqa: ARG002 - whatever they carry
        """No time."""
        return 0


Sizes = tuple[tuple[int, int], ...]
"""Measured messages: bytes and ns of each, in ascending order."""


@dataclass(frozen=True, slots=True)
class SizedLink(Link):
    """A link whose bandwidth depends on the size of a message, as measured.

    Between two measured sizes the time of a message grows in a straight line, below the smallest on the line through
    the first two (what is left at no bytes is the fixed cost of a message), beyond the largest at its bandwidth.

    Attributes:
        times: What was measured.
    """

    times: Sizes = ()

    def occupancy_ns(self, payload_bytes: int) -> int:
        """Time a message keeps the link busy, rounded to whole ns."""
        sizes = [size for size, _ in self.times]
        at = bisect_right(sizes, payload_bytes)
        if payload_bytes <= 0:
            return 0
        if at == len(sizes):
            last_bytes, last_ns = self.times[-1]
            return (2 * payload_bytes * last_ns + last_bytes) // (2 * last_bytes)
        if len(sizes) == 1:
            return self.times[0][1]
        (low, low_ns), (high, high_ns) = self.times[max(0, at - 1) : max(0, at - 1) + 2]
        run = high - low
        return max(0, low_ns + (2 * (high_ns - low_ns) * (payload_bytes - low) + run) // (2 * run))

    def at(self, bandwidth_bytes_per_s: int) -> Link:
        """The same at another largest bandwidth: messages of every size take as many times as long."""
        wanted = max(1, bandwidth_bytes_per_s)
        times = tuple((size, ns * self.bandwidth_bytes_per_s // wanted) for size, ns in self.times)
        return replace(self, bandwidth_bytes_per_s=wanted, times=times)

    def busy_ns(self, payload_bytes: float, messages: float) -> int:
        """Each of the messages at the bandwidth of its size."""
        return round(messages * self.occupancy_ns(round(payload_bytes / messages))) if messages else 0


class Path(tuple[Link, ...]):
    """The links that a message passes one after another; none where nothing on its way takes time.

    Messages are cut through: RDMA and TCP send packets, so that the head of a message is on the next link while its
    tail is still on this one. Each link is a queue, first come first served, which a message occupies for its own
    o = bytes / bandwidth. With latencies l, link i takes the message at s and lets its last byte go at e:

        s[1] = max(when both sides are ready, when link 1 is free)
        s[i] = max(s[i-1] + l[i-1], when link i is free)            link i is free again at s[i] + o[i]
        e[i] = max(s[i] + o[i], e[i-1] + l[i-1])                    it is there at e[k] + l[k]

    and the sender has let go of it at s[1] + the largest o: it is fed no faster than the slowest link goes on with it.
    On idle links that is the sum of all l and the largest o: the latencies and the bottleneck, as in the flow models of
    SimGrid (without its TCP factors) and the congestion-unaware model of ASTRA-sim, whose congestion-aware one has the
    same queues and stores and forwards chunks: this is its limit for small ones. Behind a slower link a faster one is
    occupied no longer than it needs for the bytes, as other messages go on in the gaps; what one link has let go waits
    at the next without holding it up (no back pressure). A path has a link once.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The names of its links, as ``dc0-dc1`` or ``dc0-dc1+dc1-dc2``."""
        return "+".join(link.name for link in self)

    @property
    def latency_ns(self) -> int:
        """Latencies of all its links."""
        return sum(link.latency_ns for link in self)

    def occupancy_ns(self, payload_bytes: int) -> int:
        """Time a message keeps the link busy that it keeps busy longest."""
        return max((link.occupancy_ns(payload_bytes) for link in self), default=0)
