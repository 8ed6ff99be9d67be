"""One measured configuration, what was predicted of it, and whether it is of the same model on the same ranks.

Kendall's rank correlation: do predictions put configurations in the measured order?

What the process of a measured row still held of configurations that it ran before.

Torch's stages have a receive buffer per microbatch, and keep those of the most microbatches they ever ran: a row of 8
microbatches that was measured after one of 16 in the same process has the buffers of 16. What a row says was allocated
between steps tells.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import TYPE_CHECKING, Any

from tracetool.costs.borrowed import hop_bytes, known_layers
from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScenarioError
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.notice import Notice
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Metrics
    from tracetool.reconstruction import Reconstruction
    from tracetool.validation.measured import MeasuredStep


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one row's configuration would take.

    Attributes:
        schedule: The order that was replayed.
        global_ranks: Ranks of the pipeline that it is of: of several, the one that sets the step.
        p2p: How its transfers were issued.
        metrics: Metrics of the replay.
        outside_ns: Host time around the device's work, as the Run's own step had it: measured steps include theirs.
        remarks: How costs or memory came about.
        left_over_microbatches: For how many more microbatches the row's process had receive buffers.
        left_over_bytes: What these take on each pipeline rank; empty if there are none.
    """

    schedule: Schedule
    global_ranks: tuple[int, ...]
    p2p: P2PMode
    metrics: Metrics
    outside_ns: int = 0
    remarks: tuple[Notice, ...] = ()
    left_over_microbatches: int = 0
    left_over_bytes: tuple[int, ...] = ()

    @property
    def step_ns(self) -> int:
        """Wall time of the whole step."""
        return self.metrics.step_ns + self.outside_ns

    @property
    def peak_bytes(self) -> tuple[int | None, ...]:
        """Peak of each pipeline rank in a process that holds what the row's did."""
        more = self.left_over_bytes or (0,) * len(self.metrics.peak_hbm_bytes)
        return tuple(
            None if peak is None else peak + left for peak, left in zip(self.metrics.peak_hbm_bytes, more, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One measured configuration and its prediction.

    Attributes:
        measured: The row of the file.
        prediction: What was predicted; None if it could not be.
        peak_bytes: Predicted peaks, in the order of the row's own peaks where it has some.
        reason: Why nothing was predicted.
    """

    measured: MeasuredStep
    prediction: Prediction | None = None
    peak_bytes: tuple[int | None, ...] = ()
    reason: str | None = None

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured step time, minus one; None without either."""
        if self.prediction is None or self.measured.step_ms is None:
            return None
        return self.prediction.step_ns / (self.measured.step_ms * 1e6) - 1

    @property
    def peak_error_ratios(self) -> tuple[float | None, ...]:
        """Predicted over measured peak, minus one, of each rank; None where one of them is unknown.

        Empty if the row has peaks of another number of ranks than was predicted for.
        """
        if len(self.measured.peak_bytes) != len(self.peak_bytes):
            return ()
        pairs = zip(self.measured.peak_bytes, self.peak_bytes, strict=True)
        return tuple(None if a is None or b is None else b / a - 1 for a, b in pairs)


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things.

    tau_b = (C - D) / sqrt((n0 - n1)(n0 - n2)), with C and D the pairs both rank alike and the other way round, n0 all
    pairs, n1 and n2 those tied in the first and in the second (Kendall, Biometrika 33, 1945). Pairs are counted in
    whole numbers, by Knight's merge sort (JASA 61, 1966) in n log n.

    Returns:
        -1 to 1; None if either holds no two different values.
    """
    pairs = sorted(zip(first, second, strict=True))
    every = _pairs([len(pairs)])
    tied_first = _pairs(Counter(a for a, _ in pairs).values())
    tied_second = _pairs(Counter(b for _, b in pairs).values())
    tied_both = _pairs(Counter(pairs).values())
    if every in (tied_first, tied_second):
        return None
    discordant = _inversions([b for _, b in pairs])[1]
    difference = every - tied_first - tied_second + tied_both - 2 * discordant
    product = (every - tied_first) * (every - tied_second)
    root = isqrt(product)
    return difference / (root if root * root == product else sqrt(product))


def _pairs(sizes: Iterable[int]) -> int:
    return sum(n * (n - 1) // 2 for n in sizes)


def _inversions(values: list[float]) -> tuple[list[float], int]:
    """The values sorted, and how many pairs stood the wrong way round."""
    if len(values) < 2:
        return values, 0
    middle = len(values) // 2
    (left, a), (right, b) = _inversions(values[:middle]), _inversions(values[middle:])
    merged: list[float] = []
    count, at = a + b, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            merged.append(left[at])
            at += 1
        count += len(left) - at
        merged.append(value)
    return merged + left[at:], count


_BYTES = {
    "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2,
    "float32": 4, "fp32": 4, "float": 4, "float64": 8, "fp64": 8,
}  # fmt: skip


def check_row(step: MeasuredStep, model: Mapping[str, Any], run: Reconstruction) -> None:
    """Check that a row is about the Run's model and ranks, as far as both tell.

    Raises:
        ScenarioError: If they differ, saying in what.
    """
    differing = [
        f"{name} is {row} in the row and {ours} in the Run"
        for name, row, ours in (
            ("pipeline_ranks", step.pipeline_ranks, run.pipeline.observed.shape.ranks),
            ("tensor_parallel", step.tensor_parallel, _extent(run, "tp")),
            ("data_parallel", step.data_parallel, _extent(run, "dp")),
            ("the number of layers", layers_of(model), known_layers(run.pipeline)),
        )
        if row is not None and ours is not None and row != ours
    ]
    differing += _payload_differs(step, model, run.pipeline)
    if differing:
        raise ScenarioError(f"{'; '.join(differing)}.")


def layers_of(model: Mapping[str, Any]) -> int | None:
    """Number of layers that a file's model has: a number, or one per stage; None if it does not say."""
    layers = model.get("layers")
    if isinstance(layers, list) and layers and all(type(n) is int for n in layers):
        return sum(layers)
    return layers if type(layers) is int else None


def _payload_differs(step: MeasuredStep, model: Mapping[str, Any], pipeline: Pipeline) -> list[str]:
    """Messages of another size than micro-batch x sequence x hidden, whole or split by tensor parallelism."""
    factors = [model.get(key) for key in ("mbs", "seq", "h")]
    width = _BYTES.get(str(model.get("dtype")).lower().removeprefix("torch."))
    sent = hop_bytes(pipeline)
    if sent is None or width is None:
        return []
    whole = width
    for factor in factors:
        if type(factor) is not int:
            return []
        whole *= factor
    if sent == whole or sent * step.tensor_parallel == whole:
        return []
    shape = " x ".join(map(str, factors))
    return [
        f"a message is {format_size(whole)} ({shape} {model['dtype']}) in the file and {format_size(sent)} in the Run"
    ]


def _extent(run: Reconstruction, dimension: str) -> int | None:
    """Ranks along a parallel dimension; None if the Run does not tell."""
    places = {getattr(c, dimension) for c in run.coordinates}
    return len(places) if places and None not in places else None


_TOLERANCE_BYTES = 1 << 22
"""Small tensors, rounding of blocks, and three digits of a GiB in the file."""


def left_over_microbatches(
    pipeline: Pipeline, schedule: Schedule, scenario: Scenario, measured_bytes: Sequence[int | None]
) -> tuple[int, tuple[int, ...]]:
    """For how many more microbatches a process had receive buffers than the step that was measured needs.

    Args:
        pipeline: What the step was predicted from.
        schedule: Its order.
        scenario: The rest of it.
        measured_bytes: What was allocated between its steps, per pipeline rank; None where the row does not say.

    Returns:
        The number and the bytes that these buffers take on each rank; zeros unless one number explains every rank, but
        for what all ranks have alike (stages that keep the examples they were made with).
    """
    shape = schedule.shape
    costs = MeasuredCosts(pipeline, scenario, schedule)
    own = [costs.between_steps_bytes(rank) for rank in range(shape.ranks)]
    per_microbatch = [(costs.receive_buffer_bytes(rank) or 0) // shape.microbatches for rank in range(shape.ranks)]
    nothing = 0, (0,) * shape.ranks
    known = [
        (measured - expected, buffers)
        for measured, expected, buffers in zip(measured_bytes, own, per_microbatch, strict=True)
        if measured is not None and expected is not None and buffers
    ]
    counts = {(more + _TOLERANCE_BYTES) // buffers for more, buffers in known}
    count = max(counts, default=0)
    rests = [more - count * buffers for more, buffers in known]
    if len(counts) != 1 or count < 1 or max(rests) - min(rests) > _TOLERANCE_BYTES:
        return nothing
    return count, tuple(count * buffers for buffers in per_microbatch)
