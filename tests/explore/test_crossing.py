"""Bytes over tiers as plans count them, sort by sort, against those of every pair of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.drawn_jobs import drawn_jobs

from tracetool.estimates.volumes import volumes
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.plan import JobPlan, Workload
from tracetool.network.file import NetworkChoice
from tracetool.network.placement import place
from tracetool.network.tiers import Network, Tier
from tracetool.network.traffic import of_job

GB = 10**9
NETWORK = Network(
    "three", (Tier("hb", 8, 400 * GB), Tier("dc", 64, 50 * GB), Tier("wan", 1024, 10 * GB, shared_by="pair"))
)
RULES = ("", "tp,cp,ep,pp,dp", "pp,tp,dp", "tp,pp,ep,dp")


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)])
def test_bytes_over_tiers_are_those_of_all_pairs(schedule: str, chunks: int) -> None:
    seen: set[str] = set()
    for number, job in enumerate(drawn_jobs(11, 24)):
        training = replace(job.training, schedule=schedule, chunks=chunks, stages=4, microbatches=8)
        rule = RULES[number % len(RULES)]
        traffic = of_job(placed := place(training.degrees, NETWORK, rule, all_used=False), volumes(job.model, training))
        expected = np.zeros(len(NETWORK.tiers))
        np.add.at(expected, traffic.tiers(NETWORK, placed.devices), traffic.payload_bytes)
        workload = Workload(job.model, job.device, NetworkChoice(NETWORK), 1 << 60)
        # Pairs are rounded one by one.
        assert tier_bytes(workload, JobPlan(training, rule)) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e4)
        seen |= set(traffic.by_dimension())
    assert seen == {"tp", "cp", "ep", "dp", "pp", "embedding"}
