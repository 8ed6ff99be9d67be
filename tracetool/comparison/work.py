"""What was computed: recordings of other work may be compared, but their steps cannot, nor are they one job's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.units import format_ranges, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.ingestion.recording import Recording

_ALIKE = 0.05
"""Kernels of an action may be more or fewer by that share: libraries choose. Beyond it the action is another one."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the steps of a recording compute.

    Attributes:
        stages: Number of stages.
        global_ranks: Ranks of the pipeline.
        microbatches: Microbatches of a step.
        payload_bytes: Per sending stage and kind the bytes of a message, where they are known.
        kernels: Per stage and kind the compute kernels of an action, where they are known.
    """

    stages: int
    global_ranks: tuple[int, ...]
    microbatches: int
    payload_bytes: Mapping[str, int]
    kernels: Mapping[str, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Stages, ranks and microbatches."""
        return self.stages, len(self.global_ranks), self.microbatches


def work_of(recording: Recording) -> Work:
    """The work of a recording, by its first step."""
    step = recording.steps[0]
    return Work(
        stages=len({name.rstrip("FBIWR") for name in step.actions}),
        global_ranks=tuple(recording.global_ranks),
        microbatches=max(len(action.duration_ns) for action in step.actions.values()),
        payload_bytes={n: m.payload_bytes for n, m in step.messages.items() if m.payload_bytes is not None},
        kernels={name: action.kernels for name, action in step.actions.items() if action.kernels is not None},
    )


def differences(one: Work, other: Work) -> list[str]:
    """In what two recordings differ, as ``8 against 16 microbatches``; empty if they may be of one job."""
    told = [
        f"{here} against {there} {noun}"
        for here, there, noun in (
            (one.stages, other.stages, "stages"), (one.microbatches, other.microbatches, "microbatches"),
        )
        if here != there
    ]  # fmt: skip
    if one.global_ranks != other.global_ranks:
        told.append(f"ranks {format_ranges(one.global_ranks)} against {format_ranges(other.global_ranks)}")
    if one.stages != other.stages:
        return told
    pairs = ((n, one.payload_bytes[n], other.payload_bytes[n]) for n in one.payload_bytes if n in other.payload_bytes)
    sizes = [f"{format_size(a)} against {format_size(b)} ({name})" for name, a, b in pairs if a != b]
    told += [f"messages of {sizes[0]}"] if sizes else []
    counts = ((n, one.kernels[n], other.kernels[n]) for n in one.kernels if n in other.kernels)
    apart = [(abs(a - b) / max(a, b, 1), f"{a} against {b} kernels in {n}") for n, a, b in counts]
    worst = max(apart, default=(0.0, ""))
    return [*told, worst[1]] if worst[0] > _ALIKE else told


def check_one_job(named: Sequence[tuple[str, Recording]]) -> None:
    """Refuse recordings of other work on one side: their steps are no steps of one job.

    Args:
        named: The recordings of a side, each with its name.

    Raises:
        ScenarioError: If two differ.
    """
    for name, recording in named[1:]:
        told = differences(work_of(named[0][1]), work_of(recording))
        if told:
            raise ScenarioError(
                f"{named[0][0]} and {name} are not of one job: {'; '.join(told)}.",
                hint="a side is one job, recorded several times: compare others one by one",
            )
