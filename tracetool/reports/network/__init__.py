"""Traffic on a network and what networks are built of, as text, JSON and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.network.fabric import most_devices
from tracetool.reports import as_json
from tracetool.reports.answer.text import table
from tracetool.reports.lines import wrapped
from tracetool.tables.fields import Head, SchemaId, as_struct, doc
from tracetool.units import format_bits, format_duration, format_size
from tracetool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracetool.network.fabric import DomainSize, Fabric, PriceFile
    from tracetool.reports import RunFacts
    from tracetool.whatif.on_network import OnNetwork

_RESOURCES = 3
"""So many resources are listed; JSON has all."""


class ResourceInfo(msgspec.Struct, kw_only=True):
    """What passes a resource in a step."""

    name: Annotated[str, doc("From where to where.")]
    tier: Annotated[str, doc("Of which tier it is.")]
    payload_bytes: Annotated[int, doc("Bytes of a step.")]
    busy_ns: Annotated[int, doc("What its whole bandwidth needs for them.")]
    by_dimension_bytes: Annotated[
        dict[str, int], doc("Bytes by what makes them: dimensions of parallelism, shared weights (embedding).")
    ]


class WhenInfo(msgspec.Struct, kw_only=True):
    """The tenth of the replayed step in which a resource is occupied most."""

    step_ns: Annotated[int, doc("The step of the recorded order on the network.")]
    start_ns: Annotated[
        int | None, doc("Its begin, from the first forward on; null if most bytes are of collectives within computes.")
    ]
    end_ns: Annotated[int | None, doc("Its end.")]
    busy_ratio: Annotated[float | None, doc("Share of it that the resource is occupied.")]


class DomainSizeInfo(msgspec.Struct, kw_only=True):
    """The step with HB domains of one size."""

    devices: Annotated[int, doc("Their size, K.")]
    step_ns: Annotated[int, doc("The step of the recorded order, or of the job from shapes.")]


class TrafficInfo(Head, kw_only=True):
    """Result of tracetool network on a recording, or on a model."""

    schema: SchemaId = "urn:tracetool:schema:1:traffic"
    run: Annotated[str, doc("What the user named.")]
    network: Annotated[str, doc("The network's name.")]
    step: Annotated[int | None, doc("Step that is counted; null: the whole capture, or a step from shapes.")]
    ranks: Annotated[int, doc("Ranks of the job.")]
    silent_ratio: Annotated[float, doc("Share of ordered pairs of ranks that exchange nothing.")]
    by_dimension_bytes: Annotated[dict[str, int], doc("Bytes that ranks hand each other, by what makes them.")]
    by_tier_bytes: Annotated[dict[str, int], doc("The same by the tier at which both ranks meet.")]
    resources: Annotated[list[ResourceInfo], doc("What passes each resource, the one first that is occupied longest.")]
    busiest_when: Annotated[WhenInfo | None, doc("When the first of them is busiest; null if nothing passes any.")]
    unsized: Annotated[int, doc("Operations of unknown size, which are left out.")]
    unrecorded_ranks: Annotated[int, doc("Ranks that were not recorded: what only they send is not in it.")]
    unfamiliar: Annotated[list[str], doc("Operations that move their bytes in unknown ways, which are left out.")]
    shapes: Annotated[str | None, doc("The job, if it is from shapes; null of a recording.")]
    hb_domains: Annotated[
        list[DomainSizeInfo], doc("The step against the size of HB domains, if sizes were asked for.")
    ]
    hb_domain_knee: Annotated[
        int | None, doc("The size of those after which twice as much gains less than 1 %; null if none was asked for.")
    ]


class FabricInfo(msgspec.Struct, kw_only=True):
    """What a network is built of."""

    kind: Annotated[str, doc("How it joins devices: clos, clos1 to clos3, rail-optimised or rail-only.")]
    devices: Annotated[int, doc("How many it joins, N.")]
    tiers: Annotated[int, doc("Tiers of switches, t.")]
    switches: Annotated[int, doc("(2t - 1) N/R of them.")]
    switch_ports: Annotated[int, doc("Their ports in use.")]
    links: Annotated[int, doc("t N of them.")]
    transceivers: Annotated[int, doc("Two for each link.")]
    power_w: Annotated[float | None, doc("Power; null without prices.")]
    cost: Annotated[float | None, doc("Money in the currency of the price file; null without prices.")]
    alltoall_ratio: Annotated[float, doc("Time of an all-to-all of all devices over that of any-to-any, minus one.")]
    saved_switches_ratio: Annotated[float, doc("Switches saved against the first of the compared ones.")]
    saved_links_ratio: Annotated[float, doc("Links saved against it.")]
    saved_cost_ratio: Annotated[float | None, doc("Money saved against it; null without prices.")]


class FabricsInfo(Head, kw_only=True):
    """Result of tracetool network --compare."""

    schema: SchemaId = "urn:tracetool:schema:1:fabrics"
    devices: Annotated[int, doc("Devices that are joined, N.")]
    radix: Annotated[int, doc("Ports of a switch, R.")]
    hb_domain: Annotated[int, doc("Devices of an HB domain, K.")]
    currency: Annotated[str | None, doc("What money is in; null without prices.")]
    hb_domain_for_tiers: Annotated[
        dict[str, int],
        doc("By tiers of switches, the smallest HB domains whose rails need no more: N over what they join."),
    ]
    fabrics: Annotated[list[FabricInfo], doc("One per network, as asked for.")]


def traffic_info(carried: OnNetwork, facts: RunFacts) -> TrafficInfo:
    """The traffic as the structs of the schema."""
    traffic = carried.job.traffic
    return as_struct(
        TrafficInfo,
        carried.job,
        facts,
        run=facts.name,
        network=carried.seating.network.name,
        ranks=traffic.ranks,
        silent_ratio=traffic.silent_ratio,
        by_dimension_bytes=traffic.by_dimension(),
        by_tier_bytes=carried.tier_bytes(),
        resources=[
            ResourceInfo(
                name=used.link.name,
                tier=used.tier,
                payload_bytes=used.payload_bytes,
                busy_ns=used.busy_ns,
                by_dimension_bytes={name: size for name, size in used.by_dimension.items() if size},
            )
            for used in carried.used
        ],
        busiest_when=None if carried.when is None else as_struct(WhenInfo, carried.when),
        unrecorded_ranks=carried.job.unrecorded,
        unfamiliar=list(carried.job.unfamiliar),
        shapes=carried.shapes,
        hb_domains=[as_struct(DomainSizeInfo, one) for one in carried.domains],
        hb_domain_knee=carried.knee,
    )


def traffic_json(carried: OnNetwork, facts: RunFacts) -> bytes:
    """The traffic as JSON."""
    return as_json(traffic_info(carried, facts))


def traffic_rows(carried: OnNetwork) -> pl.DataFrame:
    """A row per pair of ranks, dimension and tier."""
    import polars as pl

    traffic = carried.job.traffic
    network = carried.seating.network
    names = [tier.name for tier in network.tiers]
    return pl.DataFrame(
        {
            "src_rank": traffic.src,
            "dst_rank": traffic.dst,
            "dimension": [traffic.names[number] for number in traffic.dimension.tolist()],
            "tier": [names[number] for number in traffic.tiers(network, carried.devices()).tolist()],
            "payload_bytes": traffic.payload_bytes,
        }
    )


def traffic_text(carried: OnNetwork, facts: RunFacts, *, verbose: bool = False) -> bytes:
    """One screen: what is silent, which tier carries how much, and what is busiest when.

    Args:
        carried: The traffic.
        facts: Of which job.
        verbose: Whether all of that also stands below HB domains, where it was asked which of them pay.
    """
    traffic = carried.job.traffic
    tiers, total = carried.tier_bytes(), max(1, int(traffic.payload_bytes.sum()))
    sizes = [] if carried.knee is None else [*sizes_text(carried.domains, carried.knee), ""]
    lines = [*sizes, *wrapped([first_sentence(carried)])]
    if sizes and not verbose:
        return ("\n".join([*lines, "  what each tier carries, and what is busiest: -v"]) + "\n").encode()
    step = "the whole capture" if carried.job.step is None else f"step {carried.job.step}"
    of = f"{step}, {traffic.ranks} ranks" if carried.shapes is None else f"a step from shapes, {carried.shapes}"
    lines += ["", *wrapped([f"  {facts.name}: {of} on {carried.seating.network.name}"]), ""]
    by_tier = [(name, format_size(size), f"{size / total:.1%}") for name, size in tiers.items()]
    lines += table([("tier", "bytes", "share"), *by_tier])
    by_dimension = [(name, format_size(size), f"{size / total:.1%}") for name, size in traffic.by_dimension().items()]
    lines += ["", *table([("made by", "bytes", "share"), *by_dimension])]
    busy = [
        (used.link.name, used.tier, format_size(used.payload_bytes), format_duration(used.busy_ns), used.mostly)
        for used in carried.used[:_RESOURCES]
    ]
    lines += ["", *table([("busiest", "tier", "bytes", "occupied", "mostly"), *busy])]
    lines += wrapped(_notes(carried))
    return ("\n".join(lines) + "\n").encode()


def first_sentence(carried: OnNetwork) -> str:
    """What is busiest, and how many pairs of ranks exchange nothing."""
    silent = f"{carried.job.traffic.silent_ratio:.1%} of pairs of ranks exchange nothing."
    if not carried.used:
        return silent
    busiest, when = carried.used[0], carried.when
    sentence = (
        f"Busiest is {busiest.link.name} of tier {busiest.tier} ({format_bits(busiest.link.bandwidth_bytes_per_s)}): "
        f"{format_duration(busiest.busy_ns)} of a step"
    )
    if when is not None:
        sentence += f" of {format_duration(when.step_ns)}"
    sentence += f", mostly {busiest.mostly}"
    if when is not None and when.start_ns is not None and when.end_ns is not None and when.busy_ratio is not None:
        start, end = (format_duration(at) for at in (when.start_ns, when.end_ns))
        sentence += f", most from {start} to {end} ({when.busy_ratio:.0%} of that time)"
    return f"{sentence}. {silent}"


def _notes(carried: OnNetwork) -> list[str]:
    notes = [
        "Bytes that ranks hand each other: of collectives what rings carry, of all-to-alls straight sends. Occupied is "
        "by these; hierarchical collectives and trees pass outer tiers with fewer."
    ]
    if carried.job.unrecorded:
        notes.append(f"note: {carried.job.unrecorded} ranks were not recorded: what only they send is not in it")
    if carried.job.unsized:
        notes.append(f"note: {carried.job.unsized} operations are of unknown size and left out")
    if carried.job.unfamiliar:
        notes.append(f"note: left out, as it is not known how they move bytes: {', '.join(carried.job.unfamiliar)}")
    return notes


def fabrics_info(
    fabrics: Sequence[Fabric], radix: int, hb_domain: int, prices: PriceFile | None, command: str
) -> FabricsInfo:
    """Networks as the structs of the schema, each against the first."""
    first = fabrics[0]
    return FabricsInfo(
        tool_version=__version__,
        command=command,
        devices=first.devices,
        radix=radix,
        hb_domain=hb_domain,
        currency=None if prices is None else prices.currency,
        hb_domain_for_tiers={
            str(tiers): -(-first.devices // most_devices(radix, tiers))
            for tiers in range(max(one.tiers for one in fabrics), 0, -1)
        },
        fabrics=[
            as_struct(
                FabricInfo,
                fabric,
                saved_switches_ratio=1 - fabric.switches / first.switches,
                saved_links_ratio=1 - fabric.links / first.links,
                saved_cost_ratio=1 - fabric.cost / first.cost if fabric.cost is not None and first.cost else None,
            )
            for fabric in fabrics
        ],
    )


def fabrics_json(info: FabricsInfo) -> bytes:
    """Networks as JSON."""
    return as_json(info)


def fabrics_text(info: FabricsInfo) -> bytes:
    """One screen: what saves most, and what each is built of."""
    first = info.fabrics[0]
    lines = wrapped([_cheapest(info)])
    lines += ["", f"  {info.devices:,} devices, switches of {info.radix} ports, HB domains of {info.hb_domain}", ""]
    rows = [
        (
            "network",
            "tiers",
            "switches",
            "links",
            "optics",
            *_priced(info, ("MW", f"{info.currency} m", "saved")),
            "all-to-all",
        )
    ]
    for one in info.fabrics:
        saved = "" if one.saved_cost_ratio is None or one is first else f"{one.saved_cost_ratio:.1%}"
        money = (f"{(one.power_w or 0) / 1e6:,.2f}", f"{(one.cost or 0) / 1e6:,.1f}", saved)
        slower = f"{one.alltoall_ratio:+.1%}" if one.alltoall_ratio else ""
        parts = (one.tiers, one.switches, one.links, one.transceivers)
        rows.append((one.kind, *(f"{count:,}" for count in parts), *_priced(info, money), slower))
    lines += table(rows)
    formulas = [
        "t tiers: (2t - 1) N/R switches, whole ones per level, t N links, two transceivers each; a rail: N/K devices."
    ]
    formulas += [
        f"{one.kind} saves {one.saved_switches_ratio:.0%} of switches and {one.saved_links_ratio:.0%} of links: of "
        "what these two cost, with any prices, it saves a share between (devices' ports stay)."
        for one in info.fabrics
        if one.saved_switches_ratio
    ]
    if any(one.alltoall_ratio for one in info.fabrics):
        formulas.append("all-to-all: forwarded through the HB domain, (K - 1)/K of the bytes pass it first.")
    return ("\n".join([*lines, "", *wrapped(formulas)]) + "\n").encode()


def _priced(info: FabricsInfo, cells: tuple[str, ...]) -> tuple[str, ...]:
    return cells if info.currency is not None else ()


def _cheapest(info: FabricsInfo) -> str:
    first = info.fabrics[0]
    best = min(info.fabrics, key=lambda one: (one.cost or 0, one.switches, one.links))
    if best.switches >= first.switches and best.links >= first.links:
        return f"None of these takes fewer switches or links than {first.kind}.{_fewer_tiers(info)}"
    slower = f"; an all-to-all takes {best.alltoall_ratio:.1%} longer" if best.alltoall_ratio else ""
    money = "" if best.saved_cost_ratio is None else f", {best.saved_cost_ratio:.1%} of the cost"
    return (
        f"Against {first.kind} {best.kind} saves {best.saved_switches_ratio:.0%} of the switches, "
        f"{best.saved_links_ratio:.0%} of the links{money}{slower}.{_fewer_tiers(info)}"
    )


def _fewer_tiers(info: FabricsInfo) -> str:
    """From which HB domains on rails need fewer tiers than they do."""
    rails = next((one for one in info.fabrics if one.kind == "rail-only"), None)
    fewer = {tiers: domain for tiers, domain in info.hb_domain_for_tiers.items() if rails and int(tiers) < rails.tiers}
    if not fewer:
        return ""
    words = (
        f"{tiers} tier{'s' if tiers != '1' else ''} with HB domains of {domain}" for tiers, domain in fewer.items()
    )
    return f" Rails would need {', '.join(words)}."


def sizes_text(sizes: Sequence[DomainSize], knee: int) -> list[str]:
    """The step against the size of HB domains, the knee first."""
    rows = [(str(one.devices), format_duration(one.step_ns)) for one in sizes]
    tried = ", ".join(str(one.devices) for one in sizes)
    sentence = f"HB domains larger than {knee} do not pay: twice as many devices gain less than 1 % of a step"
    if knee == sizes[-1].devices:
        sentence = f"HB domains up to {knee} pay; larger ones may, too"
    if len(sizes) == 1:
        sentence = "Which HB domains pay is not known of one size: name several"
    return [
        *wrapped([f"{sentence} (tried {tried})."]),
        "",
        *table([("HB domain", "step"), *rows]),
    ]
