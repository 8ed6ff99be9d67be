"""An estimate as people ask for it: the files of a model, a network and layer timings by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.errors import checked
from tracetool.estimates.estimating import Estimate
from tracetool.estimates.estimating import estimate as replayed
from tracetool.estimates.file import read_model
from tracetool.estimates.layer_overlap import parse_way
from tracetool.estimates.many import estimate_many
from tracetool.estimates.timings import read_layers
from tracetool.network.file import NetworkChoice, read_network
from tracetool.registry import Pictured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.estimates.timings import LayerTimings
    from tracetool.model.notice import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated(Pictured):
    """What a model's job takes, and its measured runs as they are estimated.

    Attributes:
        job: Of the job itself.
        measured: Of each measured run of the file.
        fitted: Names of those that the efficiency was fitted on.
        network: The network; None if messages take no time.
        timings: Layer timings in place of the device's curve, if they were given.
    """

    job: Estimate
    measured: tuple[Estimate, ...]
    fitted: tuple[str, ...]
    network: NetworkChoice | None
    timings: LayerTimings | None

    @property
    def errors(self) -> list[float]:
        """Absolute errors of runs that nothing was fitted on."""
        return [
            abs(row.error_ratio) for row in self.measured if row.error_ratio is not None and not self.is_fitted(row)
        ]

    @property
    def shared_tiers(self) -> list[str]:
        """Tiers that devices of several pipelines share: each message and collective has its part while all send."""
        training = self.job.job.training
        if self.network is None or training.devices == training.stages:
            return []
        tiers = self.network.network.tiers
        last = next((n for n, tier in enumerate(tiers) if tier.size >= training.devices), len(tiers) - 1)
        return [tier.name for tier in tiers[: last + 1] if tier.shared_by != "device" or tier.oversubscription > 1]

    def is_fitted(self, row: Estimate) -> bool:
        """Whether the efficiency was fitted on a run."""
        return row.name in self.fitted


@checked
def estimate(
    model: Path | str,
    network: Path | str | NetworkChoice | None = None,
    *,
    fit: str | Sequence[str] = (),
    layers: Path | str | None = None,
    overlap: str | None = None,
    progress: Progress | None = None,
) -> Estimated:
    """Estimate a job that nobody has run: its step, utilisation and memory, from shapes or layer timings.

    Args:
        model: The file of the model, its training and its device.
        network: The network, or its file; without, messages take no time.
        fit: Names of measured runs of the file to fit the device's efficiency on.
        layers: A file of layer timings, in place of the device's curve of efficiency.
        overlap: How layers run collectives of tensor parallelism beside their products, as ``slice:4``; by default as
            the file says.
        progress: Told how many jobs there are, and how many are estimated.

    Returns:
        The estimate of the job and of the file's measured runs.

    Raises:
        ScenarioError: If a file cannot be read, something does not divide, or nothing tells what layers that overlap
            take.
        UnknownName: If no measured run has a name.
        BadTopology: If the job does not fit on the network.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("model.toml").write_text('''
        ... model = {name = "GPT-22B", layers = 48, hidden = 6144, heads = 64, vocabulary = 51200}
        ... training = {sequence = 2048, batch = 4, tensor = 8, recompute = "selective"}
        ... [device]
        ... name = "A100"
        ... peak_tflops = 312
        ... hbm = "80GB"
        ... hbm_bandwidth = "1631GB/s"
        ... node_bandwidth = "210GB/s"
        ... [[measured]]
        ... name = "as published"
        ... step_s = 1.10
        ... [[measured]]
        ... name = "all recomputed"
        ... step_s = 1.42
        ... training = {recompute = "full"}
        ... ''')
        >>> estimated = tt.estimate("model.toml", fit="as published")
        >>> recomputed = estimated.measured[1]
        >>> f"{estimated.job.mfu_ratio:.1%} MFU; {recomputed.name} is {recomputed.error_ratio:+.1%} off"
        '41.7% MFU; all recomputed is +0.7% off'
    """
    choice = read_network(Path(network)) if isinstance(network, Path | str) else network
    timings = None if layers is None else read_layers(Path(layers))
    names = [fit] if isinstance(fit, str) else list(fit)
    asked = read_model(Path(model), names, choice, timed=timings is not None)
    job = asked.job if overlap is None else asked.job.overlapping(parse_way(overlap))
    jobs = [job, *asked.measured]
    if choice is not None and timings is None:
        done, *rows = estimate_many(jobs, choice, progress)
    else:
        done, *rows = (replayed(job, choice, timings) for job in jobs)
    return Estimated(job=done, measured=tuple(rows), fitted=asked.fitted, network=choice, timings=timings)
