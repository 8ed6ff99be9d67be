"""Layers of a stage: the pattern of kernels that its forward, or backward, repeats.

Kernels go by name and grid (Ascend: type). What is ahead of the repetition and after it (embedding, final norm,
head, loss) belongs to no layer. Where the repetition could begin at several kernels, as where the head opens with
the norm that opens a layer, stages that leave no choice decide; without one, the first layer takes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import ACCUMULATE_NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel, Segment

AHEAD, AFTER = -1, -2
"""Numbers for what is ahead of the layers, and after them, in the model's order."""

Token = tuple[str, int | None, str | None]
_LEAST_SHARE = 0.5
_LEAST_CONFIDENCE = 0.5
"""Layers that no more than half of the checks agree with are none."""
_UPWARDS = (ActionKind.FORWARD, ActionKind.RECOMPUTE)


class LayerPlace(NamedTuple):
    """Where in its stage a kernel belongs.

    Attributes:
        layer: Layer in model order within the stage, AHEAD or AFTER.
        slot: Its place within the layer, or from the start of the rest.
    """

    layer: int
    slot: int


class Repeat(NamedTuple):
    """A pattern that repeats within a sequence.

    Attributes:
        start: Where it may begin at the earliest.
        period: Length of one repetition.
        times: How many there are.
        slack: By how much later it may begin as well.
    """

    start: int
    period: int
    times: int
    slack: int

    @property
    def length(self) -> int:
        """Length of all repetitions."""
        return self.period * self.times


def longest_repeat(tokens: Sequence[object]) -> Repeat | None:
    """The repetition that covers most of a sequence, with the shortest period that does; None if none covers half."""
    import numpy as np

    numbers: dict[object, int] = {}
    coded = np.array([numbers.setdefault(token, len(numbers)) for token in tokens], np.int32)
    best: Repeat | None = None
    for period in range(1, len(coded) // 2 + 1):
        breaks = np.flatnonzero(coded[:-period] != coded[period:])
        edges = np.concatenate([[-1], breaks, [len(coded) - period]])
        runs = np.diff(edges) - 1
        at = int(np.argmax(runs))
        run = int(runs[at])
        repeat = Repeat(int(edges[at]) + 1, period, run // period + 1, run % period)
        if run >= period and (best is None or repeat.length > best.length):
            best = repeat
    return best if best and best.length >= _LEAST_SHARE * len(coded) else None


@dataclass(frozen=True, slots=True)
class StageLayers:
    """How the kernels of a stage's actions fall into layers.

    Attributes:
        count: Layers of the stage.
        places: Per action (kind, microbatch), the place of each of its kernels.
        good: Checks that agree: actions with that count, backward nodes whose forward is in the same layer.
        checks: How many checks there were.
        remarks: What disagrees or was settled by convention.
    """

    count: int
    places: Mapping[tuple[ActionKind, int], tuple[LayerPlace, ...]]
    good: int
    checks: int
    remarks: tuple[str, ...] = ()

    @property
    def confidence(self) -> float:
        """Share of the checks that agree."""
        return self.good / self.checks


@dataclass(slots=True)
class _Pattern:
    """One action's kernels that make up patterns, and where the layers are among them."""

    segment: Segment
    indices: list[int]
    tokens: tuple[Token, ...]
    repeat: Repeat | None = None
    start: int = 0
    notes: list[str] = field(default_factory=list)


def find_layers(segments: Iterable[Segment]) -> dict[int, StageLayers | None]:
    """Layers of every stage, from the actions of all stages and microbatches of one step.

    Returns:
        Per stage, None if no repetition is found or most checks (actions among them) speak against it.
    """
    patterns = [_pattern(segment) for segment in segments if segment.kernels]
    _find_repeats(patterns)
    by_stage: dict[int, list[_Pattern]] = defaultdict(list)
    for pattern in patterns:
        by_stage[pattern.segment.stage].append(pattern)
    layers = {stage: _stage_layers(of_stage) for stage, of_stage in sorted(by_stage.items())}
    return {
        stage: stage_layers if stage_layers is not None and stage_layers.confidence > _LEAST_CONFIDENCE else None
        for stage, stage_layers in layers.items()
    }


def _pattern(segment: Segment) -> _Pattern:
    indices = [i for i, k in enumerate(segment.kernels) if _is_regular(k)]
    tokens = tuple((k.kernel_class or k.name, k.blocks, k.node_name) for k in (segment.kernels[i] for i in indices))
    return _Pattern(segment, indices, tokens)


def _is_regular(kernel: Kernel) -> bool:
    """Whether every run of an action launches it: fills come and go, the first microbatch accumulates nothing."""
    known = kernel.blocks is not None or kernel.kernel_class is not None
    filled = not known and (kernel.is_collective or kernel.name.startswith("Mem"))
    return kernel.is_compute and not filled and kernel.node_name != ACCUMULATE_NODE


def _find_repeats(patterns: Sequence[_Pattern]) -> None:
    """Find each action's repetition, and where it begins, with the help of those that leave no choice."""
    known: dict[tuple[Token, ...], Repeat | None] = {}
    units: dict[tuple[Token, ...], None] = {}
    for pattern in patterns:
        if pattern.tokens not in known:
            known[pattern.tokens] = repeat = longest_repeat(pattern.tokens)
            if repeat is not None and not repeat.slack:
                units[pattern.tokens[repeat.start : repeat.start + repeat.period]] = None
        pattern.repeat = known[pattern.tokens]
    for pattern in patterns:
        if pattern.repeat is None:
            pattern.repeat = _one_layer(pattern.tokens, units)
        if pattern.repeat is not None:
            pattern.start = _start(pattern, pattern.repeat, units)


def _one_layer(tokens: tuple[Token, ...], units: Iterable[tuple[Token, ...]]) -> Repeat | None:
    """A stage of one layer repeats nothing: find in it the layer of other stages."""
    for unit in units:
        starts = [i for i in range(len(tokens) - len(unit) + 1) if tokens[i : i + len(unit)] == unit]
        if len(starts) == 1:
            return Repeat(starts[0], len(unit), 1, 0)
    return None


def _start(pattern: _Pattern, repeat: Repeat, units: Mapping[tuple[Token, ...], None]) -> int:
    """Where the first layer begins; a backward runs what opens its forward last, so there the end is what counts."""
    for start in range(repeat.start, repeat.start + repeat.slack + 1):
        if pattern.tokens[start : start + repeat.period] in units:
            return start
    if repeat.slack:
        pattern.notes.append(f"{pattern.segment.kind.value}: {repeat.slack} kernels could be the rest's as well")
    return repeat.start if pattern.segment.kind in _UPWARDS else repeat.start + repeat.slack


def _stage_layers(patterns: Sequence[_Pattern]) -> StageLayers | None:
    counts = Counter(p.repeat.times for p in patterns if p.repeat is not None)
    if not counts:
        return None
    count = max(counts, key=lambda c: (counts[c], c))
    remarks = [note for p in patterns for note in p.notes]
    others = len(patterns) - counts[count]
    if others:
        remarks.append(f"{others} of {len(patterns)} actions do not repeat {count} times")
    owners = _owners([p for p in patterns if p.segment.kind is ActionKind.FORWARD], count)
    places: dict[tuple[ActionKind, int], tuple[LayerPlace, ...]] = {}
    good, checks = counts[count], len(patterns)
    for pattern in patterns:
        if pattern.repeat is None or pattern.repeat.times != count:
            continue
        descending = _descending(pattern, pattern.repeat, owners)
        if descending is None:
            remarks.append(f"{pattern.segment.kind.value}: nothing tells in which order it goes through the layers")
            continue
        placed = _places(pattern, pattern.repeat, descending=descending)
        places[pattern.segment.kind, pattern.segment.microbatch] = placed
        owned = [
            (place.layer, owners[k.backward_of])
            for k, place in zip(pattern.segment.kernels, placed, strict=True)
            if k.backward_of in owners and k.backward_of is not None and place.layer >= 0
        ]
        good += sum(layer == owner for layer, owner in owned)
        checks += len(owned)
    return StageLayers(count, places, good, checks, tuple(dict.fromkeys(remarks)))


def _owners(forwards: Iterable[_Pattern], count: int) -> dict[int, int]:
    """Per autograd number of a forward's op, the layer that it is in."""
    owners = {}
    for pattern in forwards:
        if pattern.repeat is not None and pattern.repeat.times == count:
            placed = _places(pattern, pattern.repeat, descending=False)
            for kernel, place in zip(pattern.segment.kernels, placed, strict=True):
                if kernel.sequence_number is not None and place.layer >= 0:
                    owners[kernel.sequence_number] = place.layer
    return owners


def _descending(pattern: _Pattern, repeat: Repeat, owners: Mapping[int, int]) -> bool | None:
    """Whether an action goes through the layers from the last to the first; None if that is not known.

    A forward goes up, a backward down, for each needs what the one before it made. Weight gradients alone need
    nothing of each other: the forward ops that their nodes name tell.
    """
    if pattern.segment.kind in _UPWARDS or repeat.times == 1:
        return False
    if pattern.segment.kind is not ActionKind.BACKWARD_WEIGHT:
        return True
    layers = [owners[n] for k in pattern.segment.kernels if (n := k.backward_of) is not None and n in owners]
    return layers[0] > layers[-1] if layers else None


def _places(pattern: _Pattern, repeat: Repeat, *, descending: bool) -> tuple[LayerPlace, ...]:
    """A place for every kernel: what makes up no pattern goes with its neighbours.

    A fill goes with the kernel after it, what accumulates a gradient or runs beside with the one before it.
    """
    end = pattern.start + repeat.length
    first, last = (AFTER, AHEAD) if descending else (AHEAD, AFTER)
    regular: list[LayerPlace] = []
    for i in range(len(pattern.tokens)):
        if i < pattern.start:
            regular.append(LayerPlace(first, i))
        elif i < end:
            number, slot = divmod(i - pattern.start, repeat.period)
            regular.append(LayerPlace(repeat.times - 1 - number if descending else number, slot))
        else:
            regular.append(LayerPlace(last, i - end))
    placed: list[LayerPlace] = []
    at = 0
    for i, kernel in enumerate(pattern.segment.kernels):
        if at < len(pattern.indices) and pattern.indices[at] == i:
            placed.append(regular[at])
            at += 1
            continue
        is_fill = kernel.is_compute and kernel.node_name != ACCUMULATE_NODE
        placed.append(regular[min(at, len(regular) - 1) if is_fill else max(at - 1, 0)])
    return tuple(placed)
