"""Compute segments: which kernels of a rank belong to which action.

An action's time runs from its first kernel to its last one on the device; waiting for a message comes
before the first kernel, so it is not in it, while the launch gaps inside are.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.model.action import COMPUTE_KINDS, ActionKind
from tracetool.reconstruct.kernels import Kernel, autograd_kernels, device_kernels
from tracetool.reconstruct.labels import parse_label
from tracetool.reconstruct.tails import Tail, observed_tail
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.groups import PipelineGroup
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run


@dataclass(slots=True)
class Segment:
    """The kernels of one action.

    Attributes:
        kind: F, B, I or W.
        microbatch: Microbatch.
        stage: Global stage.
        start_ns: Start of its first kernel.
        end_ns: End of its last kernel.
        issue_ns: Host time of its first launch.
        issued_ns: Host time of its last launch.
        kernels: Its kernels in launch order, copies and collectives beside it among them.
    """

    kind: ActionKind
    microbatch: int
    stage: int
    start_ns: int
    end_ns: int
    issue_ns: int
    issued_ns: int
    kernels: tuple[Kernel, ...] = ()


@dataclass(frozen=True, slots=True)
class RankWork:
    """What one rank computed in a step: its segments in order, and what followed the last one.

    Attributes:
        segments: In order of their start.
        tail: Gradient reduction and optimizer as observed, waiting included.
        evidence: label, autograd or kernels.
    """

    segments: tuple[Segment, ...]
    tail: Tail
    evidence: str


@dataclass(slots=True)
class _Launches:
    """Kernels launched one after another that belong together."""

    kind: ActionKind
    kernels: list[Kernel] = field(default_factory=list)
    sequence_numbers: set[int] = field(default_factory=set)

    def segment(self, stage: int, microbatch: int) -> Segment:
        """The action, timed by what it ran on the compute stream: copies and collectives beside it are no compute."""
        launches = [k.launch_ns for k in self.kernels]
        timed = [k for k in self.kernels if k.is_compute] or self.kernels
        return Segment(
            self.kind, microbatch, stage,
            min(k.start_ns for k in timed), max(k.end_ns for k in timed), min(launches), max(launches),
            tuple(self.kernels),
        )  # fmt: skip


def find_work(run: Run, group: PipelineGroup, step: Step, *, use_labels: bool, account: Account) -> dict[int, RankWork]:
    """Segments of every rank of the pipeline in one step, by the best evidence there is.

    Kernels that run between two actions and belong to none are told in ``account``.

    Raises:
        ReconstructError: If forwards and backwards of a rank cannot be told apart or do not pair up.
    """
    work = {}
    for rank in group.ranks:
        kernels = autograd_kernels(run, rank, step.spans[rank])
        if use_labels and any(k.label for k in kernels):
            segments, evidence = _by_label(kernels, group.position(rank)), "label"
        elif any(k.backward_of is not None for k in kernels) and any(k.is_p2p for k in kernels):
            # Ascend's transfers are not launched as kernels: nothing would part one forward from the next.
            segments, evidence = _by_autograd(kernels, group.position(rank), rank), "autograd"
        else:
            kernels = device_kernels(run, rank, step.spans[rank])
            segments, evidence = _by_kernel_type(kernels, group.position(rank), rank), "kernels"
        segments.sort(key=lambda s: s.start_ns)
        _check_pairs(segments, rank, step.number)
        for text in _stray(kernels, segments, rank):
            account.note(text)
        work[rank] = RankWork(tuple(segments), observed_tail(kernels, segments), evidence)
    return work


def _by_label(kernels: Sequence[Kernel], position: int) -> list[Segment]:
    """Kernels launched inside a label belong to its action.

    Labels leave parts out (GPipe's ``Forward 0`` ends before the loss): an unlabelled kernel of the
    autograd graph belongs to the action labelled before it.
    """
    backward_numbers = {k.backward_of for k in kernels if k.backward_of is not None}
    runs: dict[tuple[int, ActionKind, int], _Launches] = {}
    current: _Launches | None = None
    for kernel in kernels:
        if kernel.is_p2p or kernel.is_barrier:
            continue
        label = parse_label(kernel.label) if kernel.label else None
        if label is not None and label.kind.value in COMPUTE_KINDS:
            stage = position if label.stage is None else label.stage
            current = runs.setdefault((stage, label.kind, label.microbatch), _Launches(label.kind))
            current.kernels.append(kernel)
        elif label is None and current is not None:
            in_forward = kernel.sequence_number in backward_numbers and not kernel.in_backward
            if in_forward if current.kind is ActionKind.FORWARD else kernel.in_backward:
                current.kernels.append(kernel)
    return [run.segment(stage, microbatch) for (stage, _, microbatch), run in runs.items()]


def _by_autograd(kernels: Sequence[Kernel], position: int, rank: int) -> list[Segment]:
    """Runs of launches, broken by sends, receives and barriers; backwards name the forward they belong to.

    A run on the forward thread is a forward if a backward of the step refers to one of its autograd
    sequence numbers; the loss gradient's initial value and the optimizer are not.
    """
    backward_numbers = {k.backward_of for k in kernels if k.backward_of is not None}
    runs: list[_Launches] = []
    fresh = True
    for kernel in kernels:
        if kernel.is_p2p or kernel.is_barrier:
            fresh = True
            continue
        kind = ActionKind.BACKWARD if kernel.in_backward else ActionKind.FORWARD
        if fresh or runs[-1].kind is not kind:
            runs.append(_Launches(kind))
            fresh = False
        runs[-1].kernels.append(kernel)
        number = kernel.sequence_number if kind is ActionKind.FORWARD else kernel.backward_of
        if number in backward_numbers and number is not None:
            runs[-1].sequence_numbers.add(number)
    forwards = [r for r in runs if r.kind is ActionKind.FORWARD and r.sequence_numbers]
    owner = {number: i for i, r in enumerate(forwards) for number in r.sequence_numbers}
    parts: dict[int, _Launches] = {}
    for r in runs:
        if r.kind is ActionKind.BACKWARD:
            owners = {owner[n] for n in r.sequence_numbers if n in owner}
            if len(owners) != 1:
                raise ReconstructError(
                    f"rank {rank}: a backward of {len(r.kernels)} kernels belongs to "
                    f"{len(owners)} forwards of the step.",
                    hint="activations are recomputed (not read yet), or its forward was not recorded",
                )
            parts.setdefault(owners.pop(), _Launches(ActionKind.BACKWARD)).kernels.extend(r.kernels)
    segments = [r.segment(position, i) for i, r in enumerate(forwards)]
    return segments + [r.segment(position, i) for i, r in parts.items()]


def _by_kernel_type(kernels: Sequence[Kernel], position: int, rank: int) -> list[Segment]:
    """Pieces between sends and receives, told apart by the types of their kernels (Ascend).

    Attention and normalisation have kernels of their own for the backward. On the last stage a forward and
    its backward are one piece: the backward starts with the fill of the loss gradient. The microbatch is
    the running number.
    """
    pieces: list[list[Kernel]] = [[]]
    for kernel in kernels:
        if kernel.is_p2p:
            pieces.append([])
        else:
            pieces[-1].append(kernel)
    counted: dict[ActionKind, int] = defaultdict(int)
    segments = []
    unclear = 0
    for piece in pieces:
        for part in _parts(piece):
            gradients = [k.is_gradient for k in part if k.is_marker]
            if not gradients:
                continue
            unclear += len(set(gradients)) > 1
            kind = ActionKind.BACKWARD if gradients[-1] else ActionKind.FORWARD
            kept = _without_tail(part) if kind is ActionKind.BACKWARD else list(part)
            segments.append(_Launches(kind, kept).segment(position, counted[kind]))
            counted[kind] += 1
    if unclear:
        raise ReconstructError(
            f"rank {rank}: {unclear} pieces between transfers hold a forward and a backward, and no kernel "
            "tells where the one ends.",
            hint="record host activity too (ProfilerActivity.CPU)",
        )
    if not segments:
        raise ReconstructError(
            f"rank {rank}: no kernel tells forward from backward.",
            hint="record host activity too (ProfilerActivity.CPU), so that autograd's threads are visible",
        )
    return segments


def _parts(piece: Sequence[Kernel]) -> list[Sequence[Kernel]]:
    """Cut a piece that goes from forward markers to gradient markers at the fill between them."""
    markers = [i for i, k in enumerate(piece) if k.is_marker]
    turns = [
        (one, two) for one, two in itertools.pairwise(markers) if piece[two].is_gradient and not piece[one].is_gradient
    ]
    if len(turns) != 1:
        return [piece]
    fills = [i for i in range(*turns[0]) if piece[i].is_root_gradient]
    return [piece[: fills[-1]], piece[fills[-1] :]] if fills else [piece]


def _without_tail(part: Sequence[Kernel]) -> list[Kernel]:
    """Leave out what follows a backward: from the first collective after its last marker on."""
    last = max(i for i, k in enumerate(part) if k.is_marker)
    end = next((i for i in range(last, len(part)) if part[i].is_collective), len(part))
    return [k for k in part[:end] if not (k.is_optimizer or k.is_clipping)]


def _check_pairs(segments: Sequence[Segment], rank: int, step: int) -> None:
    kinds: dict[ActionKind, set[tuple[int, int]]] = defaultdict(set)
    for s in segments:
        kinds[s.kind].add((s.stage, s.microbatch))
    forwards = kinds[ActionKind.FORWARD]
    backwards = kinds[ActionKind.BACKWARD] | kinds[ActionKind.BACKWARD_WEIGHT]
    if forwards != backwards or not forwards:
        raise ReconstructError(
            f"rank {rank}, step {step}: {len(forwards)} forwards and {len(backwards)} backwards were found; "
            "they do not pair up.",
            hint="the step may be cut off: try another with --step",
        )


def _stray(kernels: Sequence[Kernel], segments: Sequence[Segment], rank: int) -> list[str]:
    """Tell of computing kernels that start between the first and last action, but inside none."""
    starts = [s.start_ns for s in segments]
    stray = [
        kernel.end_ns - kernel.start_ns
        for kernel in kernels
        if kernel.is_compute
        and not (kernel.is_p2p or kernel.is_barrier or kernel.is_collective)
        and (at := bisect_right(starts, kernel.start_ns)) > 0
        and segments[at - 1].end_ns <= kernel.start_ns < segments[-1].start_ns
    ]
    if not stray:
        return []
    return [f"rank {rank}: {len(stray)} kernels ({format_duration(sum(stray))}) between actions belong to none"]
