"""What cannot be searched, said ahead of the search, with what is nearest to it and would work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, ScenarioError
from tracetool.estimates.layer_overlap import check_priced
from tracetool.explore.candidates import degrees_of
from tracetool.explore.space import DEGREES
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracetool.explore.space import AxisName, Space

_SHOWN = 4
"""So many of the values that would work are named."""


def checked_space(space: Space) -> Space:
    """The space, if a job can be trained anywhere in it.

    Raises:
        BadTopology: If the network has too few devices.
        ScenarioError: If axes contradict each other or the model, an axis is both given and left, or nothing tells
            what layers that overlap take.
    """
    training, network = space.base.training, space.workload.choice.network
    if training.devices > network.devices:
        raise BadTopology(
            f"the job has {training.devices} devices, {network.name} has {network.devices} ({network.text}).",
            hint=f"make {network.tiers[-1].name} at least {_whole(space)} devices large, or a degree smaller",
        )
    if space.workload.choice.file:
        raise ScenarioError(
            f"{space.workload.choice.file} places one job alone.", hint="give placement as a rule in the network's file"
        )
    both = sorted(space.left & space.given.keys())
    if both:
        raise ScenarioError(f"{both[0]} is both given and left as it is.", hint="say one of both")
    training.check(space.workload.model, space.workload.device)
    if any(way != NO_OVERLAP for way in space.values("overlap")):
        check_priced(space.workload.device, max(tier.collective_blocks for tier in network.tiers))
    if next(degrees_of(space), None) is None:
        raise ScenarioError(_contradiction(space), hint=_nearest(space))
    _check_microbatches(space)
    return space


def _check_microbatches(space: Space) -> None:
    """Refuse sizes of microbatches of which none divides the sequences of a step at any degrees.

    Raises:
        ScenarioError: If they were given.
    """
    sequences, given = space.base.training.sequences, space.given.get("microbatch", ())
    wide = {degrees.dp for degrees in degrees_of(space)} if given else set()
    if not given or any(sequences % (data * size) == 0 for data in wide for size in given):
        return
    known = [size for size in range(1, sequences + 1) if any(sequences % (data * size) == 0 for data in wide)]
    listed = f"{format_count(sequences, 'sequence')} a step do not divide into microbatches of"
    data = f" on dp {', '.join(map(str, sorted(wide)))}" if len(wide) == 1 else " at any degrees"
    raise ScenarioError(
        f"{listed} {', '.join(map(str, given))}{data}.",
        hint=f"microbatch={_nearest_of(known, given[0])} would fit" if known else "give another dp",
    )


def _nearest_of(known: Collection[int], wanted: int) -> str:
    """The nearest of what would work, in order: ``2, 4 or 8``."""
    *most, last = map(str, sorted(sorted(known, key=lambda value: (abs(value - wanted), value))[:_SHOWN]))
    return f"{', '.join(most)} or {last}" if most else last


def _whole(space: Space) -> int:
    """The devices of a job in whole groups of the tier inside the outermost one."""
    tiers = space.workload.choice.network.tiers
    unit = tiers[-2].size if len(tiers) > 1 else 1
    return -(-space.base.training.devices // unit) * unit


def _said(space: Space) -> list[AxisName]:
    return [axis for axis in DEGREES if axis in space.given]


def _contradiction(space: Space) -> str:
    model, devices = space.workload.model, space.base.training.devices
    for axis, count, what in (
        ("tp", model.heads, "heads"),
        ("pp", model.layers, "layers"),
        ("ep", model.experts.count if model.experts else 1, "experts"),
        ("cp", space.base.training.sequence, "tokens of a sequence"),
    ):
        values = space.given.get(axis, ())  # type: ignore[call-overload]
        if values and all(count % value for value in values):
            return f"{model.name} has {count} {what}, which do not divide into {axis} {', '.join(map(str, values))}."
    given = ", ".join(f"{axis}={'|'.join(map(str, space.given[axis]))}" for axis in _said(space)) or "as left"
    return f"no degrees with {given} make {devices} devices of {model.name}."


def _nearest(space: Space) -> str:
    """The fewest given axes that would have to take other values, with the nearest of them."""
    for axis in reversed(_said(space)):
        wanted = space.given[axis][0]
        devices = space.base.training.devices
        every = tuple(value for value in range(1, devices + 1) if devices % value == 0)
        known = {getattr(degrees, axis) for degrees in degrees_of(replace(space, given={**space.given, axis: every}))}
        if known:
            return f"{axis}={_nearest_of(known, wanted)} would fit"
    return "give fewer axes, or other degrees in the model's file"
