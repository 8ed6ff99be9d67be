"""The ranks of a pipeline and of its job on a network's devices: which resources messages and collectives pass.

What stays inside the innermost tier takes what was measured: the recording calibrates it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.network.link import SizedLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracetool.network.collectives import Algorithm
    from tracetool.network.link import Link, Path
    from tracetool.network.tiers import Network, Tier

FREE_BYTES_PER_S = 10**24
"""At this bandwidth nothing takes a ns."""


@dataclass(frozen=True)
class Seating:
    """A job on a network.

    Attributes:
        network: The network.
        pipelines: Device of each pipeline rank: of the pipeline that is replayed, then of those that share with it.
        rank_devices: (global rank, device) of all ranks of the job.
        algorithms: How the collectives of groups of devices run; those that are not here by the fastest way.
    """

    network: Network
    pipelines: tuple[tuple[int, ...], ...]
    rank_devices: tuple[tuple[int, int], ...] = ()
    algorithms: tuple[tuple[frozenset[int], Algorithm], ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """Device of each pipeline rank."""
        return self.pipelines[0]

    @cached_property
    def device_of(self) -> Mapping[int, int]:
        """Device of each global rank."""
        return dict(self.rank_devices)

    def place_of(self, device: int) -> str:
        """The innermost group that a device is in, by name."""
        inner = self.network.tiers[0]
        return f"{inner.name}{device // inner.size}"

    def path(self, src_rank: int, dst_rank: int) -> Path | None:
        """What a message between two pipeline ranks passes; None inside the innermost tier."""
        src, dst = self.devices[src_rank], self.devices[dst_rank]
        return self.network.path(src, dst) if self.network.crossed(src, dst) else None

    @cached_property
    def resources(self) -> Mapping[Link, Tier]:
        """What messages between neighbours of the pipelines pass, and the tier that it is of."""
        return {link: tier for devices in self.pipelines for link, tier in self._passed(devices)}

    @cached_property
    def tier_names(self) -> Mapping[str, str]:
        """The tier of each by their names."""
        return {link.name: tier.name for link, tier in self.resources.items()}

    def lines(self) -> list[str]:
        """The network and its tiers in words."""
        names = {tier.name for tier in self.resources.values()}
        return [f"network {self.network.name}"] + [
            f"tier {tier.text}{'' if tier.name in names else ', which no message of the pipeline passes'}"
            for tier in self.network.tiers[1:]
        ]

    def sharing(self) -> Seating:
        """The same with those pipelines alone that pass something which the first one passes as well."""
        mine, *others = self.pipelines
        passed = {link for link, _ in self._passed(mine)}
        kept = [devices for devices in others if any(link in passed for link, _ in self._passed(devices))]
        return replace(self, pipelines=(mine, *kept))

    def _passed(self, devices: Sequence[int]) -> Iterator[tuple[Link, Tier]]:
        for pair in (*pairwise(devices), (devices[-1], devices[0])):
            for src, dst in (pair, pair[::-1]):
                if self.network.crossed(src, dst):
                    yield from self.network.passed(src, dst)

    def algorithm(self, devices: Sequence[int]) -> Algorithm:
        """How a group's collectives run."""
        return self._algorithms.get(frozenset(devices), "auto")

    @cached_property
    def _algorithms(self) -> Mapping[frozenset[int], Algorithm]:
        return dict(self.algorithms)

    @cached_property
    def outside(self) -> Network:
        """The network as it is around innermost tiers that take no time."""
        inner = replace(self.network.tiers[0], bandwidth_bytes_per_s=FREE_BYTES_PER_S, latency_ns=0, times=())
        return replace(self.network, tiers=(inner, *self.network.tiers[1:]))

    def beside(self, count: int) -> Seating:
        """So many of the pipelines as one, one after another."""
        joined = tuple(device for devices in self.pipelines[:count] for device in devices)
        return replace(self, pipelines=(joined,))

    def changed(self, change: Callable[[Link], Link], part: str | None = None) -> Seating:
        """The same over other tiers outside of the innermost one.

        Args:
            change: What a link with a tier's figures becomes.
            part: The tier that is changed; None for all.
        """
        inner, *outer = self.network.tiers
        tiers = [
            _as(tier, change(tier.link("", "", tier.latency_ns))) if part in {None, tier.name} else tier
            for tier in outer
        ]
        return replace(self, network=replace(self.network, tiers=(inner, *tiers)))

    def divided(self, pipelines: int) -> Seating:
        """The same with a share, for each of so many pipelines, of what is not one device's own."""
        tiers = [
            replace(tier, oversubscription=tier.oversubscription * pipelines if tier.oversubscription > 1 else 1.0)
            if tier.shared_by == "device"
            else _as(tier, (whole := tier.link("", "", tier.latency_ns)).at(whole.bandwidth_bytes_per_s // pipelines))
            for tier in self.network.tiers[1:]
        ]
        return replace(self, network=replace(self.network, tiers=(self.network.tiers[0], *tiers)))

    def bare(self) -> Seating:
        """The same places and routes, without figures."""
        tiers = tuple(
            replace(
                tier, bandwidth_bytes_per_s=1, latency_ns=0, times=(), oversubscription=min(2, tier.oversubscription)
            )
            for tier in self.network.tiers
        )
        return replace(self, network=replace(self.network, tiers=tiers))


def _as(tier: Tier, link: Link) -> Tier:
    """A tier with the figures of a link."""
    is_wide = link.occupancy_ns(1 << 40) == 0
    return replace(
        tier,
        bandwidth_bytes_per_s=FREE_BYTES_PER_S if is_wide else link.bandwidth_bytes_per_s,
        latency_ns=link.latency_ns,
        times=link.times if isinstance(link, SizedLink) else (),
    )
