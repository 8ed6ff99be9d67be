"""Layers inside actions that do not run as recorded: how far off steps may be for them, and whether that pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class LayersError:
    """How far off a step may be for layers that do not run as recorded.

    If no action takes longer by more than a share of its time, no step does: of the actions, the largest share.

    Attributes:
        way: How they run.
        bandwidth_bytes_per_s: Over which links; None as recorded.
        way_ratio: Beside layers as they are over the same links.
        links_ratio: Of those, beside the recorded links.
    """

    way: str = NO_OVERLAP
    bandwidth_bytes_per_s: int | None = None
    way_ratio: float = 0.0
    links_ratio: float = 0.0

    def beside(self, other: LayersError) -> float:
        """How far off the change from one to the other may be: errors of equal layers are equal, others add up."""
        same_links = self.bandwidth_bytes_per_s == other.bandwidth_bytes_per_s
        if same_links and self.way == other.way:
            return 0.0
        links = 0.0 if same_links else self.links_ratio + other.links_ratio
        return self.way_ratio + other.way_ratio + links


NO_ERROR = LayersError()
"""Of layers as recorded."""


def layers_error(pipeline: Pipeline) -> LayersError | None:
    """How far off steps of a pipeline may be for its layers; None if that is not known.

    Args:
        pipeline: What is replayed.
    """
    overlap = pipeline.overlap
    if not overlap.is_measured or overlap.is_bound:
        return None
    way = links = 0.0
    for change in overlap.actions:
        costs = pipeline.stages[change.stage].costs.get(change.kind, ())
        least = min((cost.duration_ns for cost in costs), default=0)
        if least:
            way, links = max(way, change.error_ns / least), max(links, change.link_error_ns / least)
    return LayersError(overlap.way, overlap.bandwidth_bytes_per_s, way, links)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersGain:
    """A step with layers that overlap beside the same with layers as they are, over the same links.

    Attributes:
        way: How they overlap.
        tensor_bandwidth_bytes_per_s: Of the links between the ranks of a group; None as recorded.
        step_ns: The step so.
        plain_ns: The step with layers as they are.
        error_ratio: How far off the gain may be, in shares of that; None if that is not known.
        is_bound: Whether the step is one that nothing is known to reach.
    """

    way: str
    tensor_bandwidth_bytes_per_s: int | None
    step_ns: int
    plain_ns: int
    error_ratio: float | None
    is_bound: bool

    @property
    def gain_ratio(self) -> float:
        """How much shorter the step is, in shares of that with layers as they are."""
        return 1 - self.step_ns / self.plain_ns

    @property
    def pays(self) -> bool | None:
        """Whether it is shorter by more than its error; None if that is open."""
        if self.is_bound:
            return False if self.gain_ratio <= 0 else None
        if self.error_ratio is None or abs(self.gain_ratio) <= self.error_ratio:
            return None
        return self.gain_ratio > 0


def gain_text(gain: LayersGain) -> str:
    """What a way makes of a step, in words."""
    by, longer = f"{abs(gain.gain_ratio):.1%}", "shorter" if gain.gain_ratio > 0 else "longer"
    if gain.is_bound:
        return f"{gain.way} at most {by} {longer} (a bound)" if gain.gain_ratio > 0 else f"{gain.way} {by} {longer}"
    error = "" if gain.error_ratio is None else f" ±{100 * gain.error_ratio:.1f}%"
    verdict = {True: "pays", False: "does not pay", None: "open whether it pays"}[gain.pays]
    return f"{gain.way} {by}{error} {longer} ({verdict})"


def gain_note(name: str, gain: LayersGain) -> Notice:
    """What layers that overlap make of the step of a schedule.

    Args:
        name: The schedule.
        gain: What they make of it.
    """
    text = f"step of {name} beside that with layers as they are ({format_duration(gain.plain_ns)}): {gain_text(gain)}"
    return Notice(NoticeCode.LAYERS_GAIN, text)
