"""What a way to run a layer would take, which way is fastest, and how that compares with measured ones."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from tracetool.model.notice import unasked
from tracetool.overlap.calibration import calibrate
from tracetool.overlap.program import Stream
from tracetool.overlap.simulation import Physics, Simulation
from tracetool.overlap.variants import LayerShape, issue_calls, parts_of, refusal, side_of
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tracetool.model.notice import Progress
    from tracetool.overlap.machine import Machine
    from tracetool.overlap.measured import MeasuredVariant, MeasuredVariants, Timing
    from tracetool.overlap.program import Program
    from tracetool.overlap.recording import LayerRecording

_DEVICE_BOUND_RATIO = 0.93
"""Of the predicted time, what the device alone would take: below it the host bounds the call."""
_FASTER_RATIO = 0.03
"""Variants within this of each other are as fast."""
NO_HOST_NS = 1e-3
"""What a call takes of a host that takes no time."""
_ENOUGH_RECORDINGS = 4
"""Collectives' calls of two H200 took 84 to 150 us from one recording to another."""
_SMALL_PARTS = 4
"""More parts than these are small ones."""


@dataclass(frozen=True, slots=True)
class SeenError:
    """How far predictions of one kind of way were off: at least 95 % of the measured ones by no more.

    Attributes:
        kind: What they rest on.
        time_ratio: Of the time of a call.
        change_ratio: Of that time over the one of the layer as it is.
    """

    kind: str
    time_ratio: float
    change_ratio: float


AS_RECORDED = SeenError("as recorded", 0.03, 0.0)
BOUND = SeenError("bound", 0.0, 0.0)
"""Of one kernel with product and communication: nothing was measured, so nothing is off."""
PARTS = SeenError("parts", 0.10, 0.10)
SMALL_PARTS = SeenError("small parts", 0.42, 0.41)
OTHER_LINK = SeenError("other link", 0.10, 0.12)
NEVER_RECORDED = SeenError("new kernels", 0.12, 0.11)
FEW_RECORDINGS = SeenError("host-bound, few", 0.43, 0.47)
FEW_RECORDINGS_NEW_KERNELS = SeenError("host-bound, few, new kernels", 0.72, 0.85)
HOST_BOUND = SeenError("host-bound", 0.36, 0.36)
HOST_BOUND_NEVER_RECORDED = SeenError("host-bound, new kernels", 0.56, 0.52)


def overlap_error(variant: str, shape: LayerShape, machine: Machine, *, host_bound: bool) -> SeenError:
    """How far measured ways of the same kind were off, on four H100 and two H200.

    Args:
        variant: The way.
        shape: The layer.
        machine: What runs it.
        host_bound: Whether the host's calls decide its time.
    """
    if variant.endswith("_fused"):
        return BOUND
    known = _is_product_recorded(variant, shape, machine)
    if host_bound and machine.call_recordings < _ENOUGH_RECORDINGS:
        return FEW_RECORDINGS if known else FEW_RECORDINGS_NEW_KERNELS
    if host_bound:
        return HOST_BOUND if known else HOST_BOUND_NEVER_RECORDED
    parts = parts_of(variant, machine.gather.ranks)
    if parts > _SMALL_PARTS:
        return SMALL_PARTS
    if isfinite(machine.gather.limit_bytes_per_ns):
        return OTHER_LINK
    measured = PARTS if parts > 1 else AS_RECORDED
    return measured if known else NEVER_RECORDED


def _is_product_recorded(variant: str, shape: LayerShape, machine: Machine) -> bool:
    whole = shape.gathered if side_of(variant) == "ag" else shape.scattered
    return whole(shape.tokens) in machine.products.known


@dataclass(frozen=True, slots=True)
class CallTime:
    """What one call takes.

    Attributes:
        call_ns: Mean over the orders in which works that are ready together may start.
        device_ns: What it would take if the host took no time: never more than with it.
        host_ns: What the host's calls take.
    """

    call_ns: float
    device_ns: float
    host_ns: float

    @property
    def is_host_bound(self) -> bool:
        """Whether the host's calls decide it."""
        return self.device_ns < _DEVICE_BOUND_RATIO * self.call_ns


def call_time(variant: str, shape: LayerShape, machine: Machine, timing: Timing) -> CallTime:
    """What one call of a variant takes.

    Args:
        variant: Its name.
        shape: The layer.
        machine: What runs it.
        timing: How calls are timed.

    Raises:
        BadQuery: If the variant cannot be run; see ``variants.refusal``.
    """
    issued = issue_calls(variant, shape, machine, calls=timing.calls, ahead_ns=timing.host_ahead_ns)
    call_ns = (_expected_ns(issued, machine.gather.ranks) - timing.host_ahead_ns) / timing.calls
    device_ns = device_time_ns(variant, shape, machine, timing)
    return CallTime(call_ns, min(call_ns, device_ns), issued.host_ns / timing.calls)


def device_time_ns(variant: str, shape: LayerShape, machine: Machine, timing: Timing) -> float:
    """What one call of a variant would take if the host took no time; asked as ``call_time``."""
    free = replace(machine, call_ns=NO_HOST_NS)
    issued = issue_calls(variant, shape, free, calls=timing.calls, ahead_ns=timing.host_ahead_ns)
    return (last_end_ns(issued, [False, True]) - timing.host_ahead_ns) / timing.calls


def _expected_ns(program: Program, ranks: int) -> float:
    """Mean over which ranks' works come second where either may come first: each rank's is even odds."""
    if all(work.stream is Stream.COMPUTE for work in program.works):
        return last_end_ns(program, [False])
    same = 0.5**ranks
    return (
        same * last_end_ns(program, [False])
        + same * last_end_ns(program, [True])
        + (1 - 2 * same) * last_end_ns(program, [False, True])
    )


def last_end_ns(program: Program, late: Sequence[bool], physics: Physics | None = None) -> float:
    """When the compute stream of the slowest rank is done with all works, those that it waits for included."""
    spans = Simulation(program, physics or Physics(), late).run()
    awaited = set(program.awaited())
    return max(
        ended
        for of_rank in spans
        for number, (_, ended) in of_rank.items()
        if program.works[number].stream is Stream.COMPUTE or number in awaited
    )


@dataclass(frozen=True, slots=True)
class PredictedVariant:
    """A measured variant beside its prediction.

    Attributes:
        measured: The row.
        time: The prediction; None if there is none.
        reason: Why there is none, or why it is doubtful.
    """

    measured: MeasuredVariant
    time: CallTime | None
    reason: str | None

    @property
    def predicted_ms(self) -> float | None:
        """Predicted time of a call."""
        return None if self.time is None else self.time.call_ns / 1e6

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured time, minus one."""
        return None if self.time is None else self.time.call_ns / 1e6 / self.measured.measured_ms - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Which way is fastest for one side of a layer.

    Attributes:
        shape: The layer.
        transport: What the bytes go over.
        side: ag (all-gather and product) or rs (product and reduce-scatter).
        measured: The fastest that was measured.
        predicted: The one that is predicted to be.
        lead_ratio: By how much the fastest one measured is faster than the slowest one.
        lost_ratio: How much longer than the fastest the predicted one was measured to take.
    """

    shape: LayerShape
    transport: str
    side: str
    measured: str
    predicted: str
    lead_ratio: float
    lost_ratio: float

    @property
    def is_right(self) -> bool:
        """Whether no other was measured to be faster by more than what is as fast."""
        return self.lost_ratio <= _FASTER_RATIO


@dataclass(frozen=True, slots=True)
class OverlapComparison:
    """Measured variants beside predictions.

    Attributes:
        rows: In the file's order.
        winners: Per layer, transport and side.
    """

    rows: tuple[PredictedVariant, ...]
    winners: tuple[Winner, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Signed errors of all rows that have a prediction."""
        return tuple(row.error_ratio for row in self.rows if row.error_ratio is not None)

    @property
    def mape_ratio(self) -> float | None:
        """Mean absolute error; None if nothing is predicted."""
        return sum(map(abs, self.errors)) / len(self.errors) if self.errors else None

    @property
    def max_error_ratio(self) -> float | None:
        """Largest absolute error; None if nothing is predicted."""
        return max(map(abs, self.errors), default=None)


def compare(
    recordings: Sequence[LayerRecording], measured: MeasuredVariants, progress: Progress | None = None
) -> OverlapComparison:
    """Predict every row of a file of measured variants from recordings of the same machine.

    Args:
        recordings: Of layers as they are. Where folders are named as transports of rows, these rows are predicted from
            those alone, and others not at all.
        measured: The file.
        progress: Told how many rows there are, and how many are predicted.

    Raises:
        ReconstructError: If the recordings tell nothing of the machine.
    """
    transports = {row.transport for row in measured.results}
    named = {name: [each for each in recordings if name in each.name.split("/")] for name in transports}
    used = {name: of_it for name, of_it in named.items() if of_it} or {name: [*recordings] for name in transports}
    machines = {name: _machines(of_it) for name, of_it in used.items()}
    progress = progress or unasked()
    progress.start(len(measured.results))
    rows = []
    for row in measured.results:
        rows.append(_predict(row, machines.get(row.transport), measured.timing))
        progress.advance(1)
    return OverlapComparison(tuple(rows), tuple(_winners(rows)))


def _machines(recordings: Sequence[LayerRecording]) -> dict[int, Machine]:
    """The machine by the size of the groups that were recorded; recordings without a collective are of each.

    Raises:
        ReconstructError: If they tell nothing of it.
    """
    sizes = {one.ranks for each in recordings if not each.has_exchanges for one in each.collectives}
    if len(sizes) < 2:
        machine = calibrate(recordings)
        return {machine.gather.ranks: machine}
    of_size = {
        size: [each for each in recordings if all(one.ranks == size for one in each.collectives)] for size in sizes
    }
    return {size: calibrate(of_it) for size, of_it in sorted(of_size.items())}


_OVER_NVLINK = {"nvlink": True, "host": False}
"""By the first word of a transport's name, whether NCCL runs its collectives with the blocks of NVLink."""


def _predict(row: MeasuredVariant, machines: Mapping[int, Machine] | None, timing: Timing) -> PredictedVariant:
    if machines is None:
        return PredictedVariant(row, None, f"no folder of recordings is named {row.transport}, as others are")
    machine = machines.get(row.group_size)
    if machine is None:
        return PredictedVariant(row, None, f"recorded are groups of {' and '.join(map(str, machines))} ranks")
    is_fast = _OVER_NVLINK.get(re.split(r"\W", row.transport.lower())[0])
    if is_fast is not None and is_fast is not machine.gather.is_fast:
        recorded = "over NVLink" if machine.gather.is_fast else "not over NVLink"
        blocks = format_count(machine.gather.blocks, "block")
        return PredictedVariant(row, None, f"collectives were recorded {recorded} ({blocks} each), not {row.transport}")
    why_not = refusal(row.variant, row.layer, row.group_size)
    if why_not is not None:
        return PredictedVariant(row, None, why_not)
    time = call_time(row.variant, row.layer, machine, timing)
    return PredictedVariant(row, time, _doubt(row.variant, row.layer, machine, time))


_IS_BOUND = "a bound, not a prediction: no kernel that holds product and communication was measured"


def _doubt(variant: str, shape: LayerShape, machine: Machine, time: CallTime) -> str | None:
    """Why a prediction is less sure than most."""
    doubts = [_IS_BOUND] if variant.endswith("_fused") else []
    if time.is_host_bound:
        off = overlap_error(variant, shape, machine, host_bound=True).time_ratio
        doubts.append(f"the host's calls bound it, whose time without the profiler is an estimate (±{off:.0%})")
    if not _is_product_recorded(variant, shape, machine) and "only" not in variant:
        doubts.append("no product of this shape was recorded: its kernel is a guess")
    return "; ".join(doubts) or None


def _winners(rows: Iterable[PredictedVariant]) -> Iterator[Winner]:
    layers: dict[tuple[LayerShape, str, str], list[PredictedVariant]] = defaultdict(list)
    for row in rows:
        side = side_of(row.measured.variant)
        if side is not None and row.time is not None:
            layers[row.measured.layer, row.measured.transport, side].append(row)
    for (shape, transport, side), of_layer in layers.items():
        if len(of_layer) > 1:
            best = min(of_layer, key=lambda row: row.measured.measured_ms).measured
            said = min(of_layer, key=lambda row: row.time.call_ns if row.time else 0.0).measured
            most = max(row.measured.measured_ms for row in of_layer)
            yield Winner(
                shape=shape, transport=transport, side=side, measured=best.variant, predicted=said.variant,
                lead_ratio=most / best.measured_ms - 1, lost_ratio=said.measured_ms / best.measured_ms - 1,
            )  # fmt: skip
