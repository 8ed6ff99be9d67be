"""Korthikanti et al., arXiv 2205.05198, table 5: eight measured iterations, an efficiency fitted on one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT
from helpers.thorough import some

from tracetool.estimates.estimating import estimate, fit_efficiency
from tracetool.estimates.file import AskedJobs, read_model
from tracetool.estimates.many import estimate_many
from tracetool.estimates.stages import analytical_pipeline
from tracetool.model.scenario import Scenario
from tracetool.network.file import NetworkChoice, read_network
from tracetool.replays.scenarios import replay_many

if TYPE_CHECKING:
    from tracetool.estimates.estimating import Estimate
    from tracetool.model.pipeline import P2PMode

MODEL, NETWORK = ROOT / "schemas" / "models" / "korthikanti.toml", ROOT / "schemas" / "networks" / "a100.toml"
FITTED = "22B selective"
SECONDS = {
    "22B selective": 1.10, "22B full": 1.42, "175B selective": 13.75, "175B full": 18.13,
    "530B selective": 37.83, "530B full": 49.05, "1T selective": 71.49, "1T full": 94.42,
}  # fmt: skip
"""Table 5 as published."""
MFU = {"22B selective": 0.415, "175B selective": 0.514, "530B selective": 0.560, "1T selective": 0.563}
"""The same table's model FLOPS utilisation."""


@pytest.fixture(scope="module")
def network() -> NetworkChoice:
    return read_network(NETWORK)


@pytest.fixture(scope="module")
def asked(network: NetworkChoice) -> AskedJobs:
    return read_model(MODEL, [FITTED], network)


@pytest.fixture(scope="module")
def estimates(asked: AskedJobs, network: NetworkChoice) -> dict[str, Estimate]:
    return {done.name: done for done in estimate_many(asked.measured, network)}


def test_the_file_has_the_published_table(estimates: dict[str, Estimate]) -> None:
    assert {name: done.measured_s for name, done in estimates.items()} == SECONDS
    shares = {
        name: done.mfu_ratio * done.predicted_s / SECONDS[name] for name, done in estimates.items() if name in MFU
    }
    assert shares == pytest.approx(MFU, abs=0.003)  # the model's operations over the measured time


def test_every_other_row_is_within_three_per_cent(estimates: dict[str, Estimate]) -> None:
    errors = {name: done.error_ratio for name, done in estimates.items()}
    assert errors.pop(FITTED) == pytest.approx(0, abs=2e-5)
    assert len(errors) == 7
    assert {name: error for name, error in errors.items() if error is None or abs(error) > 0.03} == {}


def test_utilisation(estimates: dict[str, Estimate]) -> None:
    """Within 1.5 points: of 530B 1.3 too high, of 1T 1.4 too low. Half a point was aimed at and is not reached.

    It is the step that is off, not the definition: over the measured steps it gives what is published to the digit
    printed. Half a point is 0.9 % of a step. Both rows at once would need layers of 25,600 to run at a share of the
    peak 8 % above those of 20,480: published, without filling and draining (p - 1)/(v m), are 58.3 and 63.2 %. The
    curve, messages of interleaved stages included, has 5 %.
    """
    assert {name: estimates[name].mfu_ratio for name in MFU} == pytest.approx(MFU, abs=0.015)
    wide = ("530B selective", "1T selective")
    measured = {name: estimates[name].mfu_ratio * estimates[name].predicted_s / SECONDS[name] for name in wide}
    assert {name: round(ratio, 3) for name, ratio in measured.items()} == {name: MFU[name] for name in wide}
    training = {name: estimates[name].job.training for name in wide}
    filled = {name: MFU[name] * (1 + (of.stages - 1) / (of.chunks * of.microbatches)) for name, of in training.items()}
    assert filled == pytest.approx({"530B selective": 0.583, "1T selective": 0.632}, abs=5e-4)
    computing = [estimates[name].mfu_ratio * estimates[name].step_ns / estimates[name].compute_ns for name in wide]
    assert filled["1T selective"] / filled["530B selective"] == pytest.approx(1.085, abs=0.001)
    assert computing[1] / computing[0] == pytest.approx(1.053, abs=0.001)


def test_interleaved_stages_wait_for_no_order(asked: AskedJobs) -> None:
    """With free messages Megatron's blocking batches take what messages do that wait for nothing, to the ns."""
    # Jobs of other sizes are longer pipelines of the same kind.
    for job in some([job for job in asked.measured if job.training.chunks > 1], 1):
        device = replace(job.device, tensor_bandwidth_bytes_per_s=210 * 10**9)
        made = analytical_pipeline(job.model, device, job.training)
        modes: tuple[P2PMode, ...] = ("grouped", "posted-ahead")
        steps = [replay_many(made, made.observed, [Scenario(p2p=p2p)])[0].step_ns for p2p in modes]
        assert steps[0] == steps[1]


def test_memory_is_below_the_devices(estimates: dict[str, Estimate]) -> None:
    """All of them ran on 80 GB."""
    assert max(max(done.peak_hbm_bytes) for done in estimates.values()) < 80e9


def test_fitting_on_more_rows_balances_them(asked: AskedJobs, network: NetworkChoice) -> None:
    both = [job for job in asked.measured if job.name.startswith("22B")]
    ratio = fit_efficiency(both, network)
    first, second = (estimate(job.at(ratio), network).error_ratio or 0 for job in both)
    assert first == pytest.approx(-second, abs=3e-5)
    assert first > 0.001
