"""Bytes of jobs from shapes: closed forms by hand, and the same bytes that the costs charge time for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from helpers.drawn_jobs import drawn_jobs
from helpers.recorded import ROOT

from tracetool.estimates.estimating import estimate
from tracetool.estimates.file import read_model
from tracetool.estimates.stages import JobCosts
from tracetool.estimates.volumes import job_traffic, volumes
from tracetool.network.file import read_network
from tracetool.network.placement import Degrees, place
from tracetool.network.tiers import Network, Tier
from tracetool.whatif.on_network import shapes_on

if TYPE_CHECKING:
    from tracetool.estimates.estimating import Job
    from tracetool.estimates.training import Group
    from tracetool.network.collectives import Kind

NETWORK = read_network(ROOT / "schemas" / "networks" / "a100.toml")
KORTHIKANTI = read_model(ROOT / "schemas" / "models" / "korthikanti.toml", timed=True)
ROUNDS = {"allreduce": 2, "allgather": 1, "reducescatter": 1, "alltoall": 1}


@dataclass
class ByteCounter:
    """Carries collectives in no time but what one group's take: a ns for each byte of the tensor and round."""

    group: Group
    places: tuple[int, ...] = ()

    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:
        """As many ns as bytes."""
        return ROUNDS[kind] * payload_bytes if group == self.group else 0

    def exchange_ns(self, group: Group, payload_bytes: int) -> int:
        """As many ns as bytes."""
        return payload_bytes if group == self.group else 0

    def collective_blocks(self, group: Group) -> int:  # noqa: ARG002 - nothing overlaps
        """Not known."""
        return 0

    def message_ns(self, payload_bytes: int, rank: int) -> int | None:  # noqa: ARG002 - none takes any time
        """No time."""
        return None

    def link_ns(self, payload_bytes: int, rank: int) -> tuple[int, int] | None:  # noqa: ARG002 - none takes any time
        """All in one place."""
        return None


def charged_bytes(job: Job, group: Group) -> int:
    """Bytes of tensors, times rounds, that a step of the costs charges a rank in the middle of the pipeline for."""
    at_once = replace(job.device, peak_flops=10**30, hbm_bandwidth_bytes_per_s=10**24, kernel_ns=0)
    costs = JobCosts(job.model, at_once, job.training, ByteCounter(group))
    each = [costs.of(stage) for stage in range(job.training.stages - 1, job.training.stages * job.training.chunks)]
    of_rank = each[:: job.training.stages]
    per_step = job.training.microbatches * sum(times.forward_ns + times.backward_ns for times in of_rank)
    return per_step + sum(part.duration_ns for part in costs.tail(job.training.stages - 1))


@pytest.mark.parametrize(("group", "name"), [("tp", "tp"), ("cp", "cp"), ("ep", "ep")])
def test_bytes_are_those_that_costs_charge_time_for(group: Group, name: str) -> None:
    """Of 120 drawn jobs: time of collectives at a ns a byte, everything else at once, is their bytes."""
    seen = 0
    for job in drawn_jobs(7, 120):
        degree = {"tp": job.training.tensor, "cp": job.training.context, "ep": job.training.expert}[name]
        if degree == 1:
            continue
        seen += 1
        moved = volumes(job.model, job.training)[name]
        expected = sum(ROUNDS[volume.kind] * volume.payload_bytes for volume in moved)
        assert charged_bytes(job, group) == pytest.approx(expected, rel=1e-6)
    assert seen >= 10


def test_gradients_are_those_that_costs_charge_time_for() -> None:
    for job in drawn_jobs(8, 40):
        training = replace(job.training, overlap_reduction=False)
        if training.data * training.context == 1:
            continue
        last = training.stages - 1
        moved = [each for each in volumes(job.model, training)["dp"] if each.stage == last]
        for group, along in (("gradients", ("cp", "ep", "dp")), ("expert_gradients", ("cp", "dp"))):
            expected = sum(ROUNDS[each.kind] * each.payload_bytes for each in moved if each.along == along)
            charged = charged_bytes(replace(job, training=training), group)  # type: ignore[arg-type]
            assert charged == pytest.approx(expected, rel=1e-6)


def test_of_a_gpt_530b_by_hand() -> None:
    """GPT-530B of Korthikanti et al.: h 20,480, 105 layers, s 2,048, TP 8, PP 35 with 3 chunks, 280 microbatches.

    A layer and microbatch move s h in 16 bit round the ring of tensor-parallel ranks eight times, 7/8 of it over each
    edge; neighbours exchange it three times (three chunks), the last and the first stage twice, an eighth each rank.
    """
    (job,) = (job for job in KORTHIKANTI.measured if job.name == "530B selective")
    traffic, network, placement = job_traffic(job.model, job.training, NETWORK)
    hidden = 2 * 2048 * 20480
    found = traffic.by_dimension()
    assert found["tp"] == 280 * 105 * 8 * 7 * hidden  # 8 ranks x 7/8 of it, over 35 pipeline ranks with 3 layers each
    assert found["pp"] == 2 * 280 * (34 * 3 + 2) * hidden
    assert found["embedding"] == 2 * 4 * 51200 * 20480
    assert set(found) == {"tp", "pp", "embedding"}
    assert network.devices == 512
    inside = traffic.payload_bytes[traffic.tiers(network, placement.devices) == 0].sum()
    assert inside == found["tp"]


def test_groups_along_several_dimensions() -> None:
    """Ranks that share a parameter: of experts those of one expert-parallel place, of others all of dp and cp."""
    degrees = Degrees(tp=2, cp=2, dp=4, ep=2, pp=2)
    placement = place(degrees, Network("one", (Tier("hb", 32, 1),)))
    # rank = tp + 2 cp + 4 ep + 8 (dp / ep) + 16 pp
    assert placement.groups("cp", "ep", "dp")[0] == tuple(range(0, 16, 2))
    assert placement.groups("cp", "dp")[:2] == [(0, 2, 8, 10), (1, 3, 9, 11)]
    assert placement.groups("dp")[0] == (0, 4, 8, 12)
    for along in (("cp", "ep", "dp"), ("cp", "dp"), ("dp",), ("tp",), ("pp",)):
        assert sorted(rank for group in placement.groups(*along) for rank in group) == list(range(32))


def test_a_single_stage_sends_no_messages() -> None:
    job = next(job for job in KORTHIKANTI.measured if job.name == "22B selective")
    traffic, _, _ = job_traffic(job.model, job.training, NETWORK)
    assert list(traffic.by_dimension()) == ["tp"]
    assert volumes(job.model, job.training)["pp"] == []


def test_hb_domains_that_hold_tensor_parallel_groups_pay() -> None:
    """1T, TP 8: each doubling up to 8 spares the rings the fabric, one to 16 only messages of neighbours."""
    whole = KORTHIKANTI.job.at(0.78)
    job = replace(whole, training=replace(whole.training, microbatches=64))
    free = replace(NETWORK, placement="")
    found = shapes_on(job, free, (2, 4, 16))
    assert [one.devices for one in found.domains] == [2, 4, 8, 16]
    assert found.knee == 8
    steps = {one.devices: one.step_ns for one in found.domains}
    assert steps[8] == estimate(job, NETWORK).step_ns
    assert steps[4] > 1.05 * steps[8]
    assert 0.99 * steps[8] < steps[16] < steps[8]
