"""Collectives as measured: figures of a tier that are known, or taken from some, predict the others.

Four H100 over NVLink, ``h100-tp/measured.json``: an all-gather alone, of two sizes, gives bandwidth and fixed cost of
the tier. From these the reduce-scatters of both sizes, and the tensor parallel all-reduces of another recording
(h100-pp4, pairs, 16 MiB). Two H200 as several hosts behind links of a known rate, ``h200-tiers`` beside these tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data, rebuilt

from tracetool.model.action import ActionKind
from tracetool.network.collectives import Algorithm, Kind, collective_ns, fastest
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[1] / "data"

Shape = tuple[int, int]


def measured_ns() -> dict[tuple[str, int], float]:
    """By variant and bytes of the gathered tensor, bf16."""
    rows = json.loads(data("h100-tp", "measured.json").read_text(encoding="utf-8"))["results"]
    return {
        (row["variant"], row["shape"]["tokens"] * row["shape"]["hidden"] * 2): row["measured_ms"] * 1e6
        for row in rows
        if row["variant"] in ("ag_only", "rs_only")
    }


def fitted(ranks: int = 4) -> Network:
    """Three quarters of V over the bandwidth, and three latencies: two sizes of one collective give both."""
    small, large = ((size, ns) for (variant, size), ns in sorted(measured_ns().items()) if variant == "ag_only")
    bandwidth = 3 / 4 * (large[0] - small[0]) / (large[1] - small[1]) * 1e9
    latency = (small[1] - 3 / 4 * small[0] / bandwidth * 1e9) / 3
    return Network("four H100", (Tier("hb", ranks, round(bandwidth), round(latency)),))


def test_reduce_scatters_take_what_all_gathers_tell() -> None:
    network = fitted()
    for (variant, size), ns in measured_ns().items():
        kind: Kind = "allgather" if variant == "ag_only" else "reducescatter"
        assert collective_ns(network, kind, "ring", range(4), size) == pytest.approx(ns, rel=0.02), (variant, size)


def test_all_reduces_of_another_recording_are_near() -> None:
    """Pairs instead of fours: 77 us seen of 16 MiB, without the launch that a call by itself has."""
    found = rebuilt("tp2pp2_1f1b_m8")
    uses = [use for stage in found.pipeline.stages for uses in stage.collectives.values() for use in uses]
    assert {(use.operation, use.payload_bytes) for use in uses} == {("allreduce", 16_777_216)}
    predicted = collective_ns(fitted(), "allreduce", "ring", range(2), 16_777_216)
    for use in uses:
        assert predicted == pytest.approx(use.own_ns, rel=0.2)
    assert ActionKind.FORWARD in found.pipeline.stages[0].collectives


FIXED_NS = 200_000
"""Of a call by itself, as 64 KiB inside a host take: its launch, and barriers of processes before it."""
HOP_NS = 50_000
"""Of a socket, rounded: 64 KiB among hosts take that much longer for each hop."""
NARROW: list[dict[str, Any]] = json.loads((HERE / "h200-tiers" / "measured.json").read_text(encoding="utf-8"))["runs"]


def named(run: dict[str, Any]) -> str:
    """Hosts, and whose sends have a rate."""
    limits = [limit for limit in ("uplink", "port") if run[f"{limit}_bytes_per_s"]]
    return "-".join((str(run["hosts"]), *limits, *(["threads"] if run["socket_threads"] else [])))


def narrow(run: dict[str, Any]) -> Network:
    """Hosts of two H200 behind links of a known rate; nothing is fitted on a collective between hosts."""
    hosts, port, uplink = run["hosts"], run["port_bytes_per_s"], run["uplink_bytes_per_s"]
    inside = Tier("host", 2, 100_000_000_000, 3_000)  # 16 MiB in 0.15 ms
    if port is None:
        return Network("hosts", (inside, Tier("fabric", 2 * hosts, uplink, HOP_NS, shared_by="group")))
    over = 2 * port / uplink if uplink else 1
    return Network("hosts", (inside, Tier("fabric", 2 * hosts, port, HOP_NS, oversubscription=over)))


def ways(run: dict[str, Any]) -> Iterator[tuple[str, Kind, Algorithm, range]]:
    """Rows that are one collective on an otherwise idle network."""
    everyone = range(2 * run["hosts"])
    reducing: tuple[Kind, ...] = ("allgather", "reducescatter", "allreduce")
    algorithm: Algorithm = run["algorithm"]
    for kind in reducing if algorithm == "ring" else reducing[-1:]:
        yield f"{kind} all", kind, algorithm, everyone
        yield f"{kind} one rail", kind, algorithm, everyone[::2]
        if algorithm == "ring":
            yield f"{kind} hierarchical", kind, "hierarchical", everyone
    if algorithm == "ring":
        yield "alltoall direct", "alltoall", "direct", everyone
        yield "alltoall forwarded", "alltoall", "forwarded", everyone


@pytest.mark.parametrize("run", [run for run in NARROW if run["algorithm"] == "ring"], ids=named)
def test_collectives_over_two_tiers_take_what_was_measured(run: dict[str, Any]) -> None:
    """Eight or six ranks on hosts of two, links of 0.5 GB/s, NCCL's rings and all-to-alls: 32 MiB 2 %, 8 MiB 4 %."""
    for what, kind, algorithm, devices in ways(run):
        for size, within in ((33_554_432, 0.02), (8_388_608, 0.04)):
            ns = collective_ns(narrow(run), kind, algorithm, devices, size) + FIXED_NS
            assert ns == pytest.approx(run["ms"][what][str(size)] * 1e6, rel=within), (what, size)


@pytest.mark.parametrize("run", [run for run in NARROW if run["algorithm"] == "tree"], ids=named)
def test_trees_over_two_tiers_are_never_longer_than_measured(run: dict[str, Any]) -> None:
    """Each link is as busy as the trees say: 3 % with a thread for each socket.

    Where one thread serves all sockets of a process, what goes up and what comes down wait for each other (6 to 26 %).
    """
    for what, kind, algorithm, devices in ways(run):
        for size in (size for size in run["ms"][what] if int(size) >= 8_388_608):
            ns = collective_ns(narrow(run), kind, algorithm, devices, int(size)) + FIXED_NS
            measured = run["ms"][what][size] * 1e6
            assert ns <= measured * 1.02, (what, size)
            if run["socket_threads"]:
                assert ns == pytest.approx(measured, rel=0.03), (what, size)


@pytest.mark.parametrize("run", [run for run in NARROW if run["algorithm"] == "ring"], ids=named)
def test_the_faster_way_over_two_tiers_is_the_measured_one(run: dict[str, Any]) -> None:
    """Whole tensors around one ring, or reduced in hosts first: hierarchical wins, by most with a port per device."""
    for kind in ("allgather", "reducescatter", "allreduce"):
        measured = {way: run["ms"][f"{kind} {way}"]["33554432"] for way in ("all", "hierarchical")}
        assert measured["hierarchical"] < measured["all"]
        assert fastest(narrow(run), kind, tuple(range(2 * run["hosts"])), 33_554_432)[0] == "hierarchical"
