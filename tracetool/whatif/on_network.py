"""A job on a network, recorded or from shapes: where its ranks are, and what they send each other in a step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, checked
from tracetool.model.dc_map import DCMap
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.collectives import kind_of
from tracetool.network.fabric import domain_sizes
from tracetool.network.file import NetworkChoice, read_network
from tracetool.network.placement import DIMENSIONS, Degrees
from tracetool.network.seating import Seating
from tracetool.network.traffic import EMBEDDING, OTHER, Traffic, edges, of_rows
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.steps.crossing import find_crossing
from tracetool.registry import Pictured
from tracetool.replays import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracetool.estimates.estimating import Job
    from tracetool.model.timeline import Timeline
    from tracetool.network.fabric import DomainSize
    from tracetool.network.link import Link
    from tracetool.network.traffic import Row, Used
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.store.run import Run


def seated(choice: NetworkChoice, recording: Reconstruction, *, all_used: bool = True) -> Topology:
    """Where the ranks of the job are on a network, and which pipelines share what this one's messages pass.

    Args:
        choice: The network.
        recording: The recording.
        all_used: Whether each tier is to join something of the job.

    Raises:
        BadTopology: If the job does not fit the network.
    """
    known = {place.rank: place for place in recording.coordinates if place.pipeline is not None}
    own = recording.observed.global_ranks
    widths = {name: 1 + max((getattr(p, name) or 0 for p in known.values()), default=0) for name in ("tp", "cp", "dp")}
    placement = choice.place(Degrees(**widths, pp=len(own)), all_used=all_used)
    devices = {}
    for rank, at in known.items():
        stage = own.index(rank) if rank in own else at.pp or 0
        of_job = placement.rank({"tp": at.tp or 0, "cp": at.cp or 0, "dp": at.dp or 0, "pp": stage})
        devices[rank] = placement.devices[of_job]
    lines: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, place in known.items():
        if place.pipeline is not None and place.pp is not None:
            lines[place.pipeline][place.pp] = devices[rank]
    mine = tuple(devices[rank] for rank in own)
    others = [tuple(line[at] for at in sorted(line)) for line in lines.values() if len(line) == len(own)]
    algorithms = tuple(
        (frozenset(placement.devices[rank] for rank in group), algorithm)
        for dimension, algorithm in choice.algorithms.items()
        for group in placement.groups(dimension)
    )
    seating = Seating(
        choice.network, (mine, *(line for line in others if line != mine)), tuple(sorted(devices.items())), algorithms
    ).sharing()
    return Topology(
        dcs=tuple(map(seating.place_of, mine)),
        links=tuple(seating.resources),
        rank_dcs=tuple((rank, seating.place_of(device)) for rank, device in seating.rank_devices),
        pipelines=len(seating.pipelines),
        seating=seating,
    )


@dataclass(frozen=True, slots=True)
class JobTraffic:
    """What the ranks of a job send each other in a step.

    Attributes:
        traffic: By pair of global ranks.
        step: The step; None of a job from shapes, or if the capture cannot be cut into steps and all of it is counted.
        unsized: Operations whose size is unknown: they are left out.
        unrecorded: Ranks of the job that were not recorded: what only they send is not in it.
        unfamiliar: Operations that move their bytes in ways that are not known: they are left out.
    """

    traffic: Traffic
    step: int | None
    unsized: int
    unrecorded: int
    unfamiliar: tuple[str, ...]


def job_traffic(run: Run, recording: Reconstruction) -> JobTraffic:
    """Who sends how many bytes to whom in the step that was looked at.

    Args:
        run: The Run.
        recording: What was reconstructed of it: along which dimension a group lies.
    """
    places = {place.rank: place for place in recording.coordinates}
    crossing = find_crossing(run, DCMap("each rank alone", by_rank={rank: f"rank{rank}" for rank in places}))
    rows: list[Row] = []
    unsized = 0
    unfamiliar = set()
    for message in crossing.messages:
        if message.payload_bytes is None:
            unsized += message.messages
            continue
        rows.append((message.src_rank, message.dst_rank, "pp", message.payload_bytes))
    for moved in crossing.collectives:
        kind = kind_of(moved.operation)
        if moved.operation == "barrier":
            continue
        if moved.payload_bytes is None:
            unsized += moved.operations
        elif kind is None:
            unfamiliar.add(moved.operation)
        else:
            dimension = _dimension([places[rank] for rank in moved.ranks if rank in places])
            if dimension == "pp":
                dimension = EMBEDDING if moved.operation == "allreduce" else OTHER
            rows += [(a, b, dimension, size) for a, b, size in edges(kind, moved.ranks, moved.payload_bytes)]
    return JobTraffic(
        traffic=of_rows(max(places, default=-1) + 1, rows),
        step=crossing.step,
        unsized=unsized,
        unrecorded=sum(not place.recorded for place in places.values()),
        unfamiliar=tuple(sorted(unfamiliar)),
    )


@dataclass(frozen=True, slots=True)
class When:
    """When a resource is occupied most as the recorded order is replayed: the fullest tenth of the step.

    Attributes:
        step_ns: The replayed step.
        start_ns: Begin of that tenth, from the first forward on; None if the replay does not tell when most of the
            bytes pass it, as those of collectives within computes.
        end_ns: Its end.
        busy_ratio: Share of it that the resource is occupied.
    """

    step_ns: int
    start_ns: int | None = None
    end_ns: int | None = None
    busy_ratio: float | None = None


_PARTS = 10


def busiest_time(recording: Reconstruction, scenario: Scenario, used: Used) -> When:
    """When a resource is busiest as the recorded order runs on a network, by messages and collectives.

    Args:
        recording: The recording.
        scenario: The what-if with the network.
        used: The resource, and what passes it in a step.
    """
    timeline = replay(recording.pipeline, recording.pipeline.observed, scenario).timeline
    step_ns = measure(timeline).step_ns
    end_ns = max([op.end_ns for op in timeline.ops] + [each.left_ns for each in timeline.collectives])
    edges_ns = [end_ns * part // _PARTS for part in range(_PARTS + 1)]
    busy = [0] * _PARTS
    for start, end in _occupied(timeline, scenario, used.link):
        for part, (low, high) in enumerate(pairwise(edges_ns)):
            busy[part] += max(0, min(end, high) - max(start, low))
    # Of pipelines that share the resource, one is replayed.
    if sum(busy) * max(1, scenario.topology.pipelines or 1) < used.busy_ns / 2:
        return When(step_ns)
    part = busy.index(max(busy))
    low, high = edges_ns[part], edges_ns[part + 1]
    return When(step_ns, low, high, busy[part] / (high - low))


def _occupied(timeline: Timeline, scenario: Scenario, link: Link) -> Iterator[tuple[int, int]]:
    """When messages and collectives of a timeline take a resource: begin and end."""
    for sent in timeline.transfers:
        path = scenario.topology.path(sent.src_rank, sent.dst_rank) or ()
        if any(passed.name == link.name for passed in path):
            yield sent.start_ns, sent.start_ns + link.occupancy_ns(sent.payload_bytes or 0)
    taken = {(one.use.group_ranks, one.taken_ns, one.left_ns) for one in timeline.collectives if link.name in one.links}
    for _, start, end in taken:
        yield start, end


def _dimension(members: Sequence[Coordinates]) -> str:
    """The one dimension that the members of a group differ in."""
    varied = [name for name in DIMENSIONS if len({getattr(place, name) for place in members}) > 1]
    return varied[0] if len(varied) == 1 else OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNetwork(Pictured):
    """A job's traffic on a network.

    Attributes:
        job: The traffic.
        seating: Where its ranks are.
        used: Every resource, the one first that is occupied longest.
        when: When that one is occupied most in the replayed step; None of a job from shapes.
        shapes: The job in words, if it is from shapes.
        domains: The step with HB domains of each size that was asked for, and of the network's own.
        knee: The size of those after which twice as much gains less than 1 %; None if none was asked for.
    """

    job: JobTraffic
    seating: Seating
    used: Sequence[Used]
    when: When | None = None
    shapes: str | None = None
    domains: Sequence[DomainSize] = ()
    knee: int | None = None

    def devices(self) -> list[int]:
        """Device of each rank that has traffic; 0 of others."""
        return [self.seating.device_of.get(rank, 0) for rank in range(self.job.traffic.ranks)]

    def tier_bytes(self) -> dict[str, int]:
        """Bytes that pairs exchange which meet at each tier, from the inside out."""
        network = self.seating.network
        names = (tier.name for tier in network.tiers)
        return dict(zip(names, self.job.traffic.met_bytes(network, self.devices()), strict=True))


def recorded_on(run: Run, recording: Reconstruction, choice: NetworkChoice, sizes: Sequence[int] = ()) -> OnNetwork:
    """A recorded job's traffic on a network.

    Args:
        run: The Run.
        recording: What was reconstructed of it.
        choice: The network.
        sizes: Sizes of HB domains to replay the recorded order with.

    Raises:
        BadTopology: If the job does not fit on the network, or the network with such HB domains.
    """
    topology = seated(choice, recording)
    seating = topology.seating
    if seating is None:
        raise BadTopology("the recording has no ranks on the network.")
    job = job_traffic(run, recording)
    devices = [seating.device_of.get(rank, 0) for rank in range(job.traffic.ranks)]
    used = job.traffic.busiest(choice.network, devices)
    when = busiest_time(recording, Scenario(topology=topology), used[0]) if used else None

    def step_ns(choice: NetworkChoice) -> int:
        scenario = Scenario(topology=seated(choice, recording, all_used=False))
        return measure(replay(recording.pipeline, recording.pipeline.observed, scenario).timeline).step_ns

    domains, knee = _domain_sizes(sizes, choice, step_ns)
    return OnNetwork(job=job, seating=seating, used=used, when=when, domains=domains, knee=knee)


def shapes_on(job: Job, choice: NetworkChoice, sizes: Sequence[int] = ()) -> OnNetwork:
    """The traffic on a network of a job from shapes.

    Args:
        job: The job.
        choice: The network.
        sizes: Sizes of HB domains to estimate the step with.

    Raises:
        ScenarioError: If something of the job does not divide, or a figure is not positive.
        BadTopology: If the job does not fit on the network, or the network with such HB domains.
    """
    training = job.training
    training.check(job.model, job.device)
    # What sweeps of recordings have no use for, and takes long to import.
    from tracetool.estimates.many import estimate_many
    from tracetool.estimates.volumes import job_traffic as shapes_traffic

    traffic, network, placement = shapes_traffic(job.model, training, choice)
    seating = Seating(
        network,
        (tuple(placement.devices[rank] for rank in placement.groups("pp")[0]),),
        tuple(enumerate(placement.devices)),
    )
    domains, knee = _domain_sizes(sizes, choice, lambda choice: estimate_many([job], choice)[0].step_ns)
    return OnNetwork(
        job=JobTraffic(traffic, None, 0, 0, ()),
        seating=seating,
        used=traffic.busiest(network, placement.devices),
        shapes=f"{job.model.name}, {training.degrees.text}",
        domains=domains,
        knee=knee,
    )


def _domain_sizes(
    sizes: Sequence[int], choice: NetworkChoice, step_ns: Callable[[NetworkChoice], int]
) -> tuple[Sequence[DomainSize], int | None]:
    """The step with HB domains of each size and of the network's own, and after which more does not pay."""
    if not sizes:
        return (), None
    inner = choice.network.tiers[0]
    return domain_sizes({*sizes, inner.size}, lambda size: step_ns(choice.with_figure(inner.name, "size", size)))


@checked
def traffic(
    of: Run | Path | str,
    network: Path | str | NetworkChoice,
    *,
    fit: str | Sequence[str] = (),
    sizes: Sequence[int] = (),
) -> OnNetwork:
    """Who sends how many bytes to whom over a network in a step, and which HB domains pay.

    Args:
        of: A Run, or the file of a model whose job is from shapes.
        network: The network, or its file.
        fit: Of a model, names of measured runs of its file to fit the device's efficiency on; the sizes need one.
        sizes: Sizes of HB domains, the innermost tier, to find the step with.

    Raises:
        ScenarioError: If a file cannot be read, or something does not divide.
        BadTopology: If the job does not fit on the network, or the network with such HB domains.

    Example:
        >>> from pathlib import Path
        >>> tier = '[[tier]]\\nname = "{}"\\nsize = {}\\nbandwidth = "{}"\\n'
        >>> _ = Path("n.toml").write_text(tier.format("hb", 2, "450GB/s") + tier.format("dc", 4, "25Gbit/s"))
        >>> found = tt.traffic(run, "n.toml")
        >>> f"{found.job.traffic.silent_ratio:.0%}", found.used[0].link.name, found.tier_bytes()
        ('50%', 'dc0-device1', {'hb': 536870912, 'dc': 268435456})
    """
    choice = network if isinstance(network, NetworkChoice) else read_network(Path(network))
    if isinstance(of, Path | str):
        names = [fit] if isinstance(fit, str) else list(fit)
        from tracetool.estimates.file import read_model

        return shapes_on(read_model(Path(of), names, choice, timed=not sizes).job, choice, sizes)
    return recorded_on(of, reconstruct(of), choice, sizes)
