"""What a network is built of: switches, links, transceivers, power and money, from a number of devices and a radix.

Folded Clos networks (fat trees) of t tiers of switches with R ports, none of them oversubscribed, join up to
2 (R/2)^t devices (R of one tier); for N devices they take (2t - 1) N/R switches and t N links (each tier above the
devices has as many links below as above it): N/R and N, 3N/R and 2N, 5N/R and 3N. Al-Fares, Loukissas and Vahdat,
"A scalable, commodity data center network architecture", 2008, has those of three tiers.

* ``clos1``, ``clos2``, ``clos3``: any-to-any with that many tiers; ``clos`` with as few as join all.
* ``rail-optimised``: the devices of the same number in their HB domains on the same leaves, and a spine that joins the
  rails: what a Clos network takes, with fewer hops for traffic along rails.
* ``rail-only`` (arXiv 2307.12169): a network for each rail, of N/K devices with HB domains of K, and no spine. Traffic
  between rails is forwarded through the HB domain. Rails of which several fit on one switch share it.

That holds where switches are full; each level of each network takes whole ones, 2n/R below the top and n/R at the top
for n devices, rounded up.

From three tiers to two saves 40 % of switches and 33 % of links, to one 80 % and 67 %: with any prices of these two
what is saved lies between.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec

from tracetool.errors import ScenarioError
from tracetool.tables.fields import doc, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Kind = Literal["clos", "clos1", "clos2", "clos3", "rail-optimised", "rail-only"]
FABRICS: tuple[Kind, ...] = get_args(Kind)

_MOST_TIERS = 6

_Money = Annotated[float, msgspec.Meta(ge=0)]


class PriceFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the parts of a network cost and draw; what is left out costs nothing."""

    currency: Annotated[str, doc("What money is in: USD, EUR.")]
    switch: Annotated[_Money, doc("One switch with all its ports.")] = 0.0
    link: Annotated[_Money, doc("One cable or fibre.")] = 0.0
    transceiver: Annotated[_Money, doc("One transceiver; a link has one at either end.")] = 0.0
    device_port: Annotated[_Money, doc("One port of a device (network card).")] = 0.0
    switch_w: Annotated[_Money, doc("Power of one switch in W.")] = 0.0
    transceiver_w: Annotated[_Money, doc("Power of one transceiver in W.")] = 0.0
    device_port_w: Annotated[_Money, doc("Power of one port of a device in W.")] = 0.0


def read_prices(path: Path) -> PriceFile:
    """Read a file of prices.

    Raises:
        ScenarioError: If it cannot be read, is no TOML, or a key is unknown, missing or of another type.
    """
    return read_toml(path, PriceFile, hint="schemas/prices/example.toml is an example (tracetool help network)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A network that is to be built.

    Attributes:
        kind: How it joins devices.
        devices: How many it joins, N.
        tiers: Tiers of switches, t.
        switches: Switches.
        switch_ports: Their ports in use.
        links: Links, those to devices among them.
        transceivers: Two for each link.
        power_w: What all of it draws; None without prices.
        cost: What all of it costs; None without prices.
        alltoall_ratio: Time of an all-to-all of all devices over that of any-to-any, minus one.
    """

    kind: str
    devices: int
    tiers: int
    switches: int
    switch_ports: int
    links: int
    transceivers: int
    power_w: float | None
    cost: float | None
    alltoall_ratio: float


def most_devices(radix: int, tiers: int) -> int:
    """Devices that a Clos network of so many tiers joins at most."""
    return radix if tiers == 1 else 2 * (radix // 2) ** tiers


def tiers_for(devices: int, radix: int) -> int:
    """As few tiers as join so many devices.

    Raises:
        ScenarioError: If more would be needed than anybody builds.
    """
    tiers_needed = next((tiers for tiers in range(1, _MOST_TIERS + 1) if most_devices(radix, tiers) >= devices), None)
    if tiers_needed is None:
        raise ScenarioError(f"{devices:,} devices need more than {_MOST_TIERS} tiers of switches with {radix} ports.")
    return tiers_needed


def build(
    kind: Kind,
    devices: int,
    radix: int,
    hb_domain: int,
    *,
    prices: PriceFile | None = None,
    hb_bytes_per_s: int = 450 * 10**9,
    port_bytes_per_s: int = 50 * 10**9,
) -> Fabric:
    """Count the parts of a network.

    Args:
        kind: How it joins devices.
        devices: How many, N.
        radix: Ports of a switch, R.
        hb_domain: Devices of an HB domain, K.
        prices: What parts cost.
        hb_bytes_per_s: Bandwidth of a device within its HB domain, in one direction.
        port_bytes_per_s: That of its port.

    Raises:
        ScenarioError: If HB domains do not divide the devices, or a Clos network of so many tiers is too small.
    """
    if radix < 2 or radix % 2:
        raise ScenarioError(f"a switch of {radix} ports has no halves up and down.", hint="give an even radix")
    if hb_domain < 1 or devices % hb_domain:
        raise ScenarioError(
            f"{devices:,} devices are not whole HB domains of {hb_domain}.",
            hint=f"{devices - devices % max(1, hb_domain) or hb_domain:,} devices would fit",
        )
    joined = devices // hb_domain if kind == "rail-only" else devices
    tiers = int(kind[4:]) if kind in ("clos1", "clos2", "clos3") else tiers_for(joined, radix)
    if most_devices(radix, tiers) < joined:
        raise ScenarioError(
            f"{kind} of switches with {radix} ports joins {most_devices(radix, tiers):,} devices, not {joined:,}.",
            hint=f"{tiers_for(joined, radix)} tiers would fit, or a larger radix",
        )
    if tiers == 1:
        switches = ceil(devices // joined / (radix // joined))
    else:
        switches = devices // joined * ((tiers - 1) * ceil(joined / (radix // 2)) + ceil(joined / radix))
    links = tiers * devices
    return Fabric(
        kind=kind,
        devices=devices,
        tiers=tiers,
        switches=switches,
        switch_ports=(2 * tiers - 1) * devices,
        links=links,
        transceivers=2 * links,
        power_w=None if prices is None else _sum(prices, switches, links, devices, power=True),
        cost=None if prices is None else _sum(prices, switches, links, devices, power=False),
        alltoall_ratio=_forwarding_ratio(devices, hb_domain, hb_bytes_per_s, port_bytes_per_s)
        if kind == "rail-only" and hb_domain < devices
        else 0.0,
    )


def _sum(prices: PriceFile, switches: int, links: int, devices: int, *, power: bool) -> float:
    if power:
        return switches * prices.switch_w + 2 * links * prices.transceiver_w + devices * prices.device_port_w
    parts = switches * prices.switch + links * (prices.link + 2 * prices.transceiver)
    return parts + devices * prices.device_port


def _forwarding_ratio(devices: int, hb_domain: int, hb_bytes_per_s: int, port_bytes_per_s: int) -> float:
    """How much longer an all-to-all takes that is forwarded through HB domains, by the formulas of ``collectives``.

    Through ports goes (N - K)/N of each rank's bytes either way; forwarded, (K - 1)/K passes the HB domain first, and
    straight (K - 1)/N does at the same time: about B_port / B_HB longer.
    """
    across = (devices - hb_domain) / devices / port_bytes_per_s
    forwarded = (hb_domain - 1) / hb_domain / hb_bytes_per_s + across
    return forwarded / max(across, (hb_domain - 1) / devices / hb_bytes_per_s) - 1


@dataclass(frozen=True, slots=True)
class DomainSize:
    """How long a step takes with HB domains of one size.

    Attributes:
        devices: Their size, K.
        step_ns: The step.
    """

    devices: int
    step_ns: int


WORTH_RATIO = 0.01
"""Twice as large HB domains that gain less are not worth it."""


def domain_sizes(sizes: Iterable[int], step_ns_of: Callable[[int], int]) -> tuple[list[DomainSize], int]:
    """The step against the size of HB domains, and the size after which twice as much gains less than 1 %.

    Args:
        sizes: Sizes to try; of those that are more than twice the one before, each doubling is to gain as much.
        step_ns_of: How long a step takes with one.
    """
    tried = [DomainSize(size, step_ns_of(size)) for size in sorted(sizes)]
    worth = [
        b.devices
        for a, b in pairwise(tried)
        if b.step_ns <= a.step_ns * (1 - WORTH_RATIO) ** log2(b.devices / a.devices)
    ]
    return tried, max(worth, default=tried[0].devices)
