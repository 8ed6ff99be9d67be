"""Tiers of a network, from the inside out, and the way between any two devices over what they share.

A tier joins the groups of the tier inside it; the innermost joins single devices. Its ``size`` is the number of devices
that it joins, so HB domains of 8 in a DC of 256, two of which make the job, are tiers of 8, 256 and 512 devices: of
HB domain, rails, and DCs. Between two devices a message crosses the innermost tier that holds both, and on its way up
and down what every tier between has; the innermost tier is not on the way of what leaves it. Latencies add up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from tracetool.errors import BadTopology, UnknownName
from tracetool.network.link import Link, Path, SizedLink
from tracetool.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.network.link import Sizes

SharedBy = Literal["device", "group", "pair"]
Figure = Literal["bandwidth", "latency", "oversubscription", "size", "connections"]
FIGURES: tuple[Figure, ...] = get_args(Figure)


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier.

    Attributes:
        name: What it is called: hb, rail, dc.
        size: Devices that it joins.
        bandwidth_bytes_per_s: Of what shares it, in one direction.
        latency_ns: What a message that passes it waits for it, one way, over its occupancy.
        shared_by: What has this bandwidth: each ``device`` (its port), all devices of a ``group`` that the tier joins
            together (its uplink), or a ``pair`` of those groups (a link of their own).
        oversubscription: Of ports: what all ports of a group have, over what its uplink has; 1 where nothing is saved.
        connections: How many connections fill it; a pair of devices has one.
        times: Measured message sizes and times, instead of the bandwidth (which is the largest of them then).
        rail_only: Whether it joins devices of the same number in their innermost groups (HB domains) alone: messages
            between others are forwarded through the HB domain of the sender.
        collective_blocks: Thread blocks, each on an SM, that a collective over it holds on a device; 0 if that is not
            known.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: int
    latency_ns: int = 0
    shared_by: SharedBy = "device"
    oversubscription: float = 1.0
    connections: float = 1
    times: Sizes = ()
    rail_only: bool = False
    collective_blocks: int = 0

    def with_figure(self, figure: Figure, value: float) -> Tier:
        """The same with another figure; a bandwidth takes the place of a measured one, too."""
        if figure == "bandwidth":
            return replace(self, bandwidth_bytes_per_s=round(value), times=())
        if figure == "latency":
            return replace(self, latency_ns=round(value))
        if figure == "oversubscription":
            return replace(self, oversubscription=value)
        return replace(self, size=round(value)) if figure == "size" else replace(self, connections=round(value))

    def divided(self, users: int) -> Tier:
        """What each of so many users has of what several devices share; single devices keep theirs, as connections do.

        Args:
            users: Who share it evenly.
        """
        if self.shared_by == "device":
            return replace(self, oversubscription=self.oversubscription * users) if self.oversubscription > 1 else self
        return replace(self.narrowed(users), connections=max(1, self.connections / users))

    def narrowed(self, factor: float) -> Tier:
        """The same with a bandwidth that all messages need so many times as long on."""
        return replace(
            self,
            bandwidth_bytes_per_s=max(1, round(self.bandwidth_bytes_per_s / factor)),
            times=tuple((size, round(ns * factor)) for size, ns in self.times),
        )

    @property
    def text(self) -> str:
        """Its figures in words."""
        shared = {"device": "each device", "group": "each group", "pair": "each pair"}[self.shared_by]
        parts = [
            f"{self.name}: {shared} {'up to ' * bool(self.times)}{format_bandwidth(self.bandwidth_bytes_per_s)}",
            f"{format_duration(self.latency_ns)}",
        ]
        if self.oversubscription > 1:
            parts.append(f"oversubscribed {self.oversubscription:g}:1")
        if self.connections > 1:
            parts.append(f"filled by {self.connections} connections")
        return ", ".join(parts)

    def link(self, src: str, dst: str, latency_ns: int, widened: float = 1.0) -> Link:
        """One direction of what is shared: so many times as wide as the tier's bandwidth."""
        if self.times and widened == 1:
            return SizedLink(src, dst, self.bandwidth_bytes_per_s, latency_ns, self.times)
        return Link(src, dst, max(1, round(self.bandwidth_bytes_per_s * widened)), latency_ns)


@dataclass(frozen=True)
class Network:
    """Tiers from the inside out.

    Attributes:
        name: What it is called in texts.
        tiers: The innermost first.

    Example:
        >>> hb, rail = Tier("hb", 4, 450 * 10**9), Tier("rail", 8, 50 * 10**9, 5000)
        >>> Network("two nodes", (hb, rail)).path(0, 5).name
        'device0-rail0+rail0-device5'
        >>> Network("two nodes", (hb, rail)).transfer_ns(50_000_000, 0, 5)
        1005000
    """

    name: str
    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        """Refuse tiers that do not fit into each other.

        Raises:
            BadTopology: If there is none, a name is used twice, or a size is no multiple of the one inside.
        """
        if not self.tiers:
            raise BadTopology("a network without tiers joins nothing.", hint="give at least one tier")
        twice = next((name for name, count in Counter(tier.name for tier in self.tiers).items() if count > 1), None)
        if twice is not None:
            raise BadTopology(f"two tiers are called {twice}.", hint="give each a name of its own")
        if self.tiers[0].rail_only:
            raise BadTopology(
                f"tier {self.tiers[0].name} is the innermost, through which rails forward.",
                hint="rail_only is for a tier outside of the HB domain",
            )
        for inner, outer in pairwise(self.tiers):
            if inner.shared_by == "pair" and inner is not self.tiers[0]:
                raise BadTopology(
                    f"tier {inner.name} has a link for each pair of its groups, and none to {outer.name} outside.",
                    hint='only the innermost and the outermost tier can have shared_by = "pair"',
                )
            if outer.size % inner.size or outer.size == inner.size:
                raise BadTopology(
                    f"tier {outer.name} joins {outer.size} devices, which are not several whole groups of "
                    f"{inner.name} ({inner.size}).",
                    hint=f"{_fitting(outer.size, inner.size)} would fit",
                )

    @property
    def devices(self) -> int:
        """How many devices it joins."""
        return self.tiers[-1].size

    def number(self, name: str) -> int:
        """Which tier has a name, counted from the inside.

        Raises:
            UnknownName: If none has.
        """
        names = [tier.name for tier in self.tiers]
        if name not in names:
            raise UnknownName("tier", name, names)
        return names.index(name)

    def inner_size(self, tier: int) -> int:
        """Devices of a group that a tier joins."""
        return self.tiers[tier - 1].size if tier else 1

    def group(self, tier: int, device: int) -> int:
        """Which of the groups that a tier joins a device is in, counted over the whole network."""
        return device // self.inner_size(tier)

    def group_name(self, tier: int, group: int) -> str:
        """The name of such a group, as ``hb3``; of a device ``device3``."""
        return f"{self.tiers[tier - 1].name if tier else 'device'}{group}"

    def crossed(self, one: int, other: int) -> int | None:
        """The tier at which two devices meet; None of one device.

        Raises:
            BadTopology: If a device is none of the network's.
        """
        for device in (one, other):
            if not 0 <= device < self.devices:
                raise BadTopology(f"{self.name} has devices 0..{self.devices - 1}; there is no device {device}.")
        if one == other:
            return None
        return next(number for number, tier in enumerate(self.tiers) if one // tier.size == other // tier.size)

    def path(self, src: int, dst: int) -> Path:
        """What a message between two devices passes; nothing on one device.

        Raises:
            BadTopology: If a device is none of the network's.
        """
        return Path(link for link, _ in self.passed(src, dst))

    def passed(self, src: int, dst: int) -> list[tuple[Link, Tier]]:
        """The same with the tier that each resource is of.

        Raises:
            BadTopology: If a device is none of the network's.
        """
        crossed = self.crossed(src, dst)
        if crossed is None:
            return []
        domain = self.tiers[0].size
        if crossed and src % domain != dst % domain and any(tier.rail_only for tier in self.tiers[1 : crossed + 1]):
            forwarding = src // domain * domain + dst % domain
            return [*self.passed(src, forwarding), *self.passed(forwarding, dst)]
        levels = range(min(1, crossed), crossed + 1)
        one = [(link, tier) for tier in levels for link in self.connection(tier, src, dst)]
        up = [(link, tier) for tier in levels for link in self.up(tier, src, dst)]
        down = [(link, tier) for tier in reversed(levels) for link in self.down(tier, dst)]
        return [(link, self.tiers[tier]) for link, tier in (*one, *up, *down)]

    def up(self, number: int, src: int, dst: int) -> list[Link]:
        """What a message out of a device passes of a tier on its way up; of pairs the link itself."""
        tier, group = self.tiers[number], self.group(number, src)
        above = f"{tier.name}{src // tier.size}"
        here = self.group_name(number, group)
        if tier.shared_by == "pair":
            # The groups that it joins are what it is called by: DCs, whatever they are made of inside.
            other = self.group(number, dst)
            ends = (f"{tier.name}{group}", f"{tier.name}{other}") if number else (f"device{src}", f"device{dst}")
            return [tier.link(*ends, tier.latency_ns)]
        if tier.shared_by == "group":
            return [tier.link(here, above, tier.latency_ns)]
        port = tier.link(f"device{src}", above, tier.latency_ns)
        if tier.oversubscription == 1 or number == 0:
            return [port]
        return [port, tier.link(f"{here}-uplink", above, 0, self._uplink(number))]

    def down(self, number: int, dst: int) -> list[Link]:
        """What it passes on its way down to a device."""
        tier = self.tiers[number]
        above, here = f"{tier.name}{dst // tier.size}", self.group_name(number, self.group(number, dst))
        if tier.shared_by == "pair":
            return []
        if tier.shared_by == "group":
            return [tier.link(above, here, 0)]
        port = tier.link(above, f"device{dst}", 0)
        if tier.oversubscription == 1 or number == 0:
            return [port]
        return [tier.link(above, f"{here}-uplink", 0, self._uplink(number)), port]

    def _uplink(self, number: int) -> float:
        return self.inner_size(number) / self.tiers[number].oversubscription

    def connection(self, number: int, src: int, dst: int) -> list[Link]:
        """What a pair of devices has of a tier that takes several connections to fill."""
        tier = self.tiers[number]
        if tier.connections == 1:
            return []
        return [tier.link(f"device{src}", f"{tier.name}:device{dst}", 0, 1 / tier.connections)]

    def transfer_ns(self, payload_bytes: int, src: int, dst: int) -> int:
        """What a message takes on an idle network: latencies, and its time on what it occupies longest."""
        path = self.path(src, dst)
        return path.occupancy_ns(payload_bytes) + path.latency_ns

    def unused(self, devices: Sequence[int]) -> list[int]:
        """The tiers outside of the innermost one that join nothing of a job, by number.

        Args:
            devices: Those of the job.
        """
        if len(devices) < 2:
            return []
        return [
            number
            for number, tier in list(enumerate(self.tiers))[1:]
            if len({device // self.inner_size(number) for device in devices})
            == len({device // tier.size for device in devices})
        ]

    def without(self, number: int) -> Network:
        """The same without a tier outside of the innermost one; those outside of it join as many groups as before.

        Args:
            number: Which.
        """
        inner, gone = self.tiers[number - 1], self.tiers[number]
        outer = (replace(tier, size=tier.size // gone.size * inner.size) for tier in self.tiers[number + 1 :])
        return replace(self, tiers=(*self.tiers[:number], *outer))

    @cached_property
    def text(self) -> str:
        """The tiers in short, as ``hb 8 · rail 256``."""
        return " · ".join(f"{tier.name} {tier.size}" for tier in self.tiers)


def _fitting(size: int, inner: int) -> str:
    """Multiples of a size that are near another one."""
    below, above = max(2, size // inner) * inner, max(2, -(-size // inner)) * inner
    return str(below) if below == above else f"{below} or {above}"
