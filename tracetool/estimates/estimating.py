"""What a job takes from its shapes: one that is replayed, its efficiency fitted on measured rows, and very many."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, ScenarioError
from tracetool.estimates.memory import peaks_bytes
from tracetool.estimates.stages import JobCosts, pipeline_of, transports_of
from tracetool.estimates.transport import links_between
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.replays.scenarios import replay_many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.timings import LayerTimings
    from tracetool.estimates.training import Training, Transport
    from tracetool.estimates.transformer import Transformer
    from tracetool.network.file import NetworkChoice

_CLOSE = 1e-5
"""Within which share of it a fitted step is what was measured."""
_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Job:
    """A model, devices, and how it is trained on them.

    Attributes:
        name: What it is called in results.
        model: The model.
        device: The device.
        training: How it is trained.
        measured_s: What its step took; None if it was not measured.
        network: What it ran over, if that is another network than the one asked about.
    """

    name: str
    model: Transformer
    device: Accelerator
    training: Training
    measured_s: float | None = None
    network: NetworkChoice | None = None

    def at(self, efficiency_ratio: float) -> Job:
        """The same at another efficiency."""
        return replace(self, training=replace(self.training, efficiency_ratio=efficiency_ratio))

    def overlapping(self, way: str) -> Job:
        """The same with layers that run so."""
        return replace(self, training=replace(self.training, overlap=way))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a job takes.

    Attributes:
        job: The job.
        step_ns: First forward to the end of gradient reduction and optimizer.
        window_ns: First forward to last backward.
        peak_hbm_bytes: Highest allocation of each pipeline rank.
        compute_ns: Of each rank in the window, mean over ranks.
        reduction_ns: Of gradients, after the last backward; the longest of a rank.
        optimizer_ns: The longest of a rank.
    """

    job: Job
    step_ns: int
    window_ns: int
    peak_hbm_bytes: tuple[int, ...]
    compute_ns: int
    reduction_ns: int
    optimizer_ns: int

    @property
    def name(self) -> str:
        """Its name."""
        return self.job.name

    @property
    def _peak_operations(self) -> float:
        return self.step_ns / 1e9 * self.job.training.devices * self.job.device.peak_flops

    @property
    def mfu_ratio(self) -> float:
        """Operations that the model needs over those of all devices at their peak (arXiv 2205.05198, section 6.3)."""
        training = self.job.training
        return self.job.model.model_flops(training.sequences, training.sequence) / self._peak_operations

    @property
    def hfu_ratio(self) -> float:
        """The same with what is computed anew."""
        training = self.job.training
        flops = self.job.model.hardware_flops(training.sequences, training.sequence, training.recompute)
        return flops / self._peak_operations

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all sequences over the step."""
        training = self.job.training
        return training.sequences * training.sequence / (self.step_ns / 1e9)

    @property
    def measured_s(self) -> float | None:
        """What was measured, if it was."""
        return self.job.measured_s

    @property
    def predicted_s(self) -> float:
        """The step."""
        return self.step_ns / 1e9

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured step, minus one."""
        return None if self.measured_s is None else self.predicted_s / self.measured_s - 1


def estimate(job: Job, choice: NetworkChoice | None = None, timings: LayerTimings | None = None) -> Estimate:
    """Replay a job that is made from shapes: of unlike pipelines the slowest counts, as gradients meet.

    Args:
        job: What to estimate.
        choice: The network, of jobs that have none of their own; without, messages take no time.
        timings: Layer timings, in place of the device's curve.

    Raises:
        ScenarioError: If something does not divide, or a figure is not positive.
        BadTopology: If the job does not fit on the network.
    """
    job.training.check(job.model, job.device)
    with naming(job):
        transports = transports_of(job.device, job.training, job.network or choice)
    lines = [_replayed(job, over, timings, messages=(job.network or choice) is not None) for over in transports]
    return max(lines, key=lambda line: line.step_ns)


def _replayed(job: Job, over: Transport, timings: LayerTimings | None, *, messages: bool) -> Estimate:
    """One pipeline of a job."""
    training = job.training
    costs = JobCosts(job.model, job.device, training, over, timings)
    pipeline = pipeline_of(training, costs, messages=messages)
    scenario = Scenario()
    if over.places and not training.messages_hold_up:
        links = links_between(over, costs.payload, training.tensor)
        scenario = Scenario(links, pipelines=1, link_sharing="temporal")
    (times,) = replay_many(pipeline, pipeline.observed, [scenario])
    after = {
        kind: max(sum(part.duration_ns for part in rank.tail if part.kind is kind) for rank in pipeline.ranks)
        for kind in (ActionKind.REDUCE_GRAD, ActionKind.OPTIMIZER)
    }
    return Estimate(
        job=job, step_ns=times.step_ns, window_ns=times.window_ns, peak_hbm_bytes=peaks_bytes(pipeline),
        compute_ns=times.compute_ns // len(pipeline.ranks), reduction_ns=after[ActionKind.REDUCE_GRAD],
        optimizer_ns=after[ActionKind.OPTIMIZER],
    )  # fmt: skip


@contextmanager
def naming(job: Job) -> Iterator[None]:
    """Name the job, of several, that does not fit on a network.

    Raises:
        BadTopology: In place of one that does not name it.
    """
    try:
        yield
    except BadTopology as error:
        hint = error.hint
        if job.measured_s is not None:
            hint = f'say what {job.name} ran over: network = "FILE.toml" of its own, a file beside the model\'s'
        raise BadTopology(f"{job.name}: {error.message}", hint=hint) from error


def fit_efficiency(jobs: Sequence[Job], choice: NetworkChoice | None = None) -> float:
    """The efficiency at which predicted steps are the measured ones, on the mean of their relative errors.

    Args:
        jobs: Measured ones.
        choice: The network.

    Raises:
        ScenarioError: If one was not measured, or no efficiency up to 100 % makes them so fast.
    """
    unmeasured = next((job.name for job in jobs if job.measured_s is None), None)
    if not jobs or unmeasured is not None:
        raise ScenarioError(f"{unmeasured or 'nothing'} has no measured step to fit on.", hint="give step_s")

    def error(efficiency_ratio: float) -> float:
        return fmean(estimate(job.at(efficiency_ratio), choice).error_ratio or 0.0 for job in jobs)

    slow, fast = 100.0, 1.0  # inverse of the efficiency: steps grow with it in a straight line, or nearly
    above, below = error(1 / slow), error(1 / fast)
    if below > 0:
        raise ScenarioError(
            f"even at the peak {', '.join(job.name for job in jobs)} would take {below:.1%} longer than measured.",
            hint="a figure of the device or of the network is too small",
        )
    if above < 0:
        raise ScenarioError(f"{jobs[0].name} took longer than at 1 % of the peak.", hint="check step_s and the sizes")
    middle = fast
    for _ in range(_ROUNDS):
        middle = fast + (slow - fast) * below / (below - above)
        here = error(1 / middle)
        if abs(here) < _CLOSE:
            break
        if here > 0:
            slow, above = middle, here
        else:
            fast, below = middle, here
    return 1 / middle
