"""One more unit of each resource: the scenarios that say what it would buy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tracetool.costs.rescaled import with_faster_compute
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.topology import Link, Topology

Resource = Literal["bandwidth", "latency", "hbm", "compute", "microbatches"]

FASTER_COMPUTE = 1.1
MORE_HBM_BYTES = 8 * 2**30
_LESS_LATENCY_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class More:
    """One more unit of a resource.

    Attributes:
        resource: What there is more of.
        text: How much, for people.
        scenario: The what-if with it.
        pipeline: What was measured, faster where compute is.
        link: The pair of DCs whose link alone is better, as ``dc0-dc1``; None if all are.
    """

    resource: Resource
    text: str
    scenario: Scenario
    pipeline: Pipeline
    link: str | None = None


def more_of_each(pipeline: Pipeline, scenario: Scenario, *, memory_known: bool) -> list[More]:
    """Each resource in the units that it is bought in.

    Args:
        pipeline: What was measured.
        scenario: What there is now.
        memory_known: Whether it is known that what runs now fits; more memory buys nothing that could be told
            otherwise.
    """
    found = list(_better_links(pipeline, scenario, None))
    pairs = _pairs(scenario.topology)
    if len(pairs) > 1:
        found += [more for pair in pairs for more in _better_links(pipeline, scenario, pair)]
    if scenario.hbm_bytes is not None and memory_known:
        found += _more_memory(pipeline, scenario, scenario.hbm_bytes)
    microbatches = scenario.microbatches or pipeline.observed.shape.microbatches
    return [
        *found,
        More(
            "compute",
            f"compute {FASTER_COMPUTE - 1:.0%} faster",
            scenario,
            with_faster_compute(pipeline, FASTER_COMPUTE),
        ),
        More("microbatches", "1 microbatch more", replace(scenario, microbatches=microbatches + 1), pipeline),
    ]


def _pairs(topology: Topology) -> list[str]:
    return list(dict.fromkeys("-".join(sorted((link.src_dc, link.dst_dc))) for link in topology.links))


def _better_links(pipeline: Pipeline, scenario: Scenario, pair: str | None) -> Iterator[More]:
    def better(resource: Resource, text: str, change: Callable[[Link], Link]) -> More:
        links = tuple(
            change(link) if pair in {None, "-".join(sorted((link.src_dc, link.dst_dc)))} else link
            for link in scenario.topology.links
        )
        topology = replace(scenario.topology, links=links)
        where = text if pair is None else f"{text}, {pair} alone"
        return More(resource, where, replace(scenario, topology=topology), pipeline, pair)

    def wider(link: Link, percent: int) -> Link:
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * percent // 100)

    yield better("bandwidth", "bandwidth × 2", lambda link: wider(link, 200))
    if pair is None:
        yield better("bandwidth", "bandwidth + 10%", lambda link: wider(link, 110))
    affected = [k for k in scenario.topology.links if pair in {None, "-".join(sorted((k.src_dc, k.dst_dc)))}]
    if not any(link.latency_ns for link in affected):
        return
    yield better("latency", "latency / 2", lambda link: replace(link, latency_ns=link.latency_ns // 2))
    if pair is None and min(link.latency_ns for link in affected) >= _LESS_LATENCY_NS:
        yield better(
            "latency",
            "latency - 1 ms",
            lambda link: replace(link, latency_ns=link.latency_ns - _LESS_LATENCY_NS),
        )


def _more_memory(pipeline: Pipeline, scenario: Scenario, hbm_bytes: int) -> Iterator[More]:
    kept = [stage.activation_bytes() for stage in pipeline.memory_source.stages]
    activation = scenario.activation_bytes or max((size for size in kept if size is not None), default=None)
    if activation:
        yield More(
            "hbm",
            f"HBM + 1 activation ({format_size(activation)})",
            replace(scenario, hbm_bytes=hbm_bytes + activation),
            pipeline,
        )
    yield More(
        "hbm", f"HBM + {MORE_HBM_BYTES >> 30} GiB", replace(scenario, hbm_bytes=hbm_bytes + MORE_HBM_BYTES), pipeline
    )
