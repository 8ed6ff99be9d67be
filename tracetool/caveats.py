"""What a prediction does not know, or rests on beyond the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reconstruct.host_gaps import gap_shares, tell_gaps

if TYPE_CHECKING:
    from tracetool.metrics import Metrics
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.reconstruct import Reconstruction


def derived_remarks(pipeline: Pipeline, schedule: Schedule, metrics: Metrics, scenario: Scenario) -> list[str]:
    """What of a result comes from halves of backwards that ran as one."""
    halves = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
    used = {a.stage for order in schedule.orders for a in order if a.kind in halves and a.stage}
    derived = [s for s in sorted(used) if not all(kind in pipeline.stages[s].costs for kind in halves)]
    if not derived:
        return []
    remarks = ["input and weight gradients are told apart by kernels: the trace ran them as one"]
    if scenario.activation_bytes is None and None not in metrics.peak_hbm_bytes:
        remarks.append(
            "memory as torch's split would hold it: I keeps activations and gradients for W (within 3 % on recordings)"
        )
    elif has_memory(pipeline) and any(
        cost.held_bytes is None for s in derived for costs in pipeline.stages[s].derived.values() for cost in costs
    ):
        remarks.append(
            "memory unknown: the allocator's log does not tell what the input half would keep for the weight half"
        )
    return remarks


def memory_remarks(measured: Pipeline, cut: Pipeline, metrics: Metrics) -> list[str]:
    """Why memory is unknown though it was recorded: cutting moved the ends of the model."""
    if None not in metrics.peak_hbm_bytes or not has_memory(measured) or has_memory(cut):
        return []
    if all(rank.static_bytes is not None for rank in cut.ranks):
        return []
    return [
        "memory unknown: ranks hold other layers than in the trace (embedding and head move, or layers are uneven), "
        "so what they hold at rest is not known"
    ]


def is_like_the_recordings(found: Reconstruction) -> bool:
    """Whether device and setting are those that errors were seen on: four H100, pipeline parallel alone."""
    ranks = found.pipeline.ranks
    return (
        len(ranks) == 4
        and all("H100" in (rank.device_name or "") for rank in ranks)
        and not any(c.tp or c.cp or c.ep for c in found.coordinates)
    )


def host_notes(found: Reconstruction) -> list[str]:
    """Where the host holds the device back; a run without a device is told apart elsewhere."""
    on_device = any(k.stream is not None for of_rank in found.segments.values() for s in of_rank[:1] for k in s.kernels)
    step = found.pipeline.step
    rows = found.tables.get("costs", ()) if on_device else ()
    return tell_gaps(gap_shares((row[2], row[3], row[5], row[6]) for row in rows if row[0] == step))  # type: ignore[misc]


def has_memory(pipeline: Pipeline) -> bool:
    """Whether the trace tells what every rank and every action that ran holds."""
    return all(rank.static_bytes is not None for rank in pipeline.ranks) and all(
        cost.held_bytes is not None for s in pipeline.stages for costs in s.costs.values() for cost in costs
    )
