"""What a way to overlap changes of a pipeline's actions: every collective in them with the product beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracetool.costs.rescaled import with_layers
from tracetool.errors import Option, ReconstructError
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import NO_OVERLAP, ActionChange, LayerOverlap
from tracetool.overlap.answer import ASYNC_TP, IN_A_ROW, variant_of
from tracetool.overlap.calibration import calibrate
from tracetool.overlap.hidden import hidden_work
from tracetool.overlap.hosts import action_times
from tracetool.overlap.losses import losses
from tracetool.overlap.machine import REDUCE_HOPS
from tracetool.overlap.notes import overlap_note, overlap_notes
from tracetool.overlap.pairs import read_pairs
from tracetool.overlap.prediction import NO_HOST_NS, call_time, overlap_error
from tracetool.overlap.recording import read_recording
from tracetool.overlap.variants import refusal
from tracetool.units import format_bandwidth, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.overlap.hosts import ActionTimes
    from tracetool.overlap.losses import Loss, LossCause
    from tracetool.overlap.machine import Machine
    from tracetool.overlap.pairs import Pair
    from tracetool.overlap.prediction import CallTime, SeenError
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run


@dataclass(frozen=True, slots=True)
class ActionLayers:
    """What stands beside each other inside the actions of a pipeline.

    Attributes:
        pairs: Of one action of each stage and kind, collectives with the product beside them.
        left: Collectives with no product to run beside, of one action of each stage and kind.
        machine: What runs them.
        times: What the host and the device take for actions, where the traces tell.
    """

    pairs: Mapping[tuple[int, ActionKind], Counter[Pair]]
    left: int
    machine: Machine
    times: Mapping[tuple[int, ActionKind], ActionTimes]

    @property
    def recorded_bytes_per_s(self) -> int:
        """What the fastest of the collectives beside products moved between two ranks."""
        sides = {pair.side for of_action in self.pairs.values() for pair in of_action}
        machine = self.machine
        rates = {
            "ag": machine.gather.hop_bytes_per_ns,
            "rs": machine.scatter.hop_bytes_per_ns,
            "ar": machine.reduce.hop_bytes_per_ns * REDUCE_HOPS,
        }
        return round(max(rates[side] for side in sides) * 1e9)

    def refusal(self, way: str) -> str | None:
        """Why no pair can run so; None if some can."""
        if way == ASYNC_TP and not self.machine.gather.is_fast:
            return (
                "the collectives of these actions did not run over NVLink, and copy engines were timed over that alone"
            )
        pairs = [pair for of_action in self.pairs.values() for pair in of_action]
        whys = dict.fromkeys(refusal(variant_of(way, pair.side), pair.shape, pair.ranks) for pair in pairs)
        if None in whys:
            return None
        return f"{way} is no way for the collectives of these actions ({'; '.join(filter(None, whys))})"

    def overlap(self, way: str, bandwidth_bytes_per_s: int | None = None) -> LayerOverlap:
        """What it changes of every action if layers run so.

        Args:
            way: Such as slice:4; where a pair cannot run so, it stays as it is.
            bandwidth_bytes_per_s: Of the links between the ranks of a group; None as recorded.
        """
        there = self.machine
        if bandwidth_bytes_per_s is not None:
            there = there.over(bandwidth_bytes_per_s / 1e9)
        changes = []
        is_measured, untouched = True, self.left
        # Layers are alike: few pairs stand in many stages.
        every = {pair for of_action in self.pairs.values() for pair in of_action}
        changed = {pair: _changed(pair, way, self.machine, there) for pair in every}
        for (stage, kind), of_action in self.pairs.items():
            parts = [(changed[pair], count) for pair, count in of_action.items()]
            is_measured = is_measured and all(part.is_measured for part, _ in parts)
            untouched += sum(count for pair, count in of_action.items() if _is_left(pair, way))
            changed_ns = _of_action(self.times.get((stage, kind)), parts)
            changes.append(ActionChange(stage, kind, *map(round, changed_ns)))
        return LayerOverlap(way, bandwidth_bytes_per_s, tuple(changes), untouched, is_measured)

    def losses(self, way: str) -> dict[LossCause, float]:
        """What is in the way in the actions of the stage and kind where that costs most: ns by cause, most first."""
        every = {pair for of_action in self.pairs.values() for pair in of_action}
        changed = {pair: _changed(pair, way, self.machine, self.machine) for pair in every}
        hosts = {True: replace(self.machine, call_ns=NO_HOST_NS), False: self.machine}

        @cache
        def of_pair(pair: Pair, is_ahead: bool) -> tuple[Loss, ...]:  # noqa: FBT001 - a key of the cache
            return losses(variant_of(way, pair.side), pair.shape, hosts[is_ahead], IN_A_ROW)

        sums = []
        for action, of_action in self.pairs.items():
            is_ahead = _is_ahead(self.times.get(action), [(changed[pair], count) for pair, count in of_action.items()])
            lost: Counter[LossCause] = Counter()
            for pair, count in of_action.items():
                for loss in () if _is_left(pair, way) else of_pair(pair, is_ahead):
                    lost[loss.cause] += round(loss.lost_ns * count)
            sums.append(lost)
        most = max(sums, key=lambda lost: max(lost.values(), default=0))
        return dict(most.most_common())


def read_layers(run: Run) -> ActionLayers:
    """What stands beside each other inside the actions of a Run's pipeline.

    Raises:
        ReconstructError: If no action holds a collective with a matrix product beside it.
    """
    pairs, left, groups = read_pairs(run)
    if not pairs:
        hidden = str(hidden_work(run, of_actions=True))
        raise ReconstructError(
            f"no action holds a collective beside a matrix product of its bytes{hidden and f' ({hidden})'}.",
            hint="record some steps without CUDA graphs, compiled or fused kernels, with record_shapes=True"
            if hidden
            else "record with record_shapes=True and name the traces, not a Run",
        )
    return ActionLayers(pairs, left, _machine(run, groups), action_times(run))


class LayerOverlaps(NamedTuple):
    """Ways to run the layers inside actions, over some links each.

    Attributes:
        overlaps: All that can be; layers as they are first over each link.
        notes: What was left out or stays as it is, and of which ways no error is known.
    """

    overlaps: tuple[LayerOverlap, ...]
    notes: tuple[Notice, ...]


def layer_overlaps(run: Run, ways: Sequence[str], bandwidths_bytes_per_s: Sequence[int] = ()) -> LayerOverlaps:
    """What each of several ways changes of a Run's actions, over the recorded links or over others.

    Args:
        run: With the shapes of products.
        ways: As ``parse_ways`` gives them: none first.
        bandwidths_bytes_per_s: Of the links between the ranks of a group; as recorded if there are none.

    Raises:
        ReconstructError: If no action holds a collective with a matrix product beside it, or none can run so.
    """
    layers = read_layers(run)
    refused = {way: why_not for way in ways if (why_not := layers.refusal(way)) is not None}
    if bandwidths_bytes_per_s and ASYNC_TP in ways:
        refused.setdefault(ASYNC_TP, "copy engines were timed over NVLink alone, not over other links")
    run_so = [way for way in ways if way not in refused]
    if len(ways) > 1 and run_so == [NO_OVERLAP]:
        raise _none_of(refused)
    notes = [Notice(NoticeCode.OVERLAP_CHANGED, f"{way} left out: {why_not}") for way, why_not in refused.items()]
    notes += _hidden_notes(run)
    fastest = layers.recorded_bytes_per_s
    beyond = [bandwidth for bandwidth in bandwidths_bytes_per_s if bandwidth > fastest]
    if beyond:
        text = (
            f"collectives inside layers moved {format_bandwidth(fastest)} between two ranks when recorded: links that "
            f"are faster ({format_count(len(beyond), 'bandwidth')}) are taken as that"
        )
        notes.append(Notice(NoticeCode.OVERLAP_CHANGED, text))
    overlaps = [layers.overlap(way, over) for over in bandwidths_bytes_per_s or (None,) for way in run_so]
    return LayerOverlaps(tuple(overlaps), (*notes, *overlap_notes(overlaps)))


def _loss_note(way: str, lost: Mapping[LossCause, float]) -> Notice:
    parts = "; ".join(f"{cause.value} {format_duration(ns)}" for cause, ns in lost.items()) or "hardly anything"
    return Notice(NoticeCode.LAYERS_GAIN, f"in the way of {way} in an action, each by itself: {parts}")


def _hidden_notes(run: Run) -> list[Notice]:
    """Work inside actions whose products cannot be told: it is left as it was."""
    hidden = str(hidden_work(run, of_actions=True))
    return [Notice(NoticeCode.OVERLAP_CHANGED, f"left as it was inside actions: {hidden}")] if hidden else []


def _none_of(refused: Mapping[str, str]) -> ReconstructError:
    return ReconstructError(
        f"{'; '.join(dict.fromkeys(refused.values()))}.",
        hint=f"{Option.OVERLAP('slice:4')} goes over any link, and slices all-reduces too; peer-to-peer parts and "
        "async-tp need sequence parallelism",
    )


def with_overlap(recording: Reconstruction, run: Run, way: str, *, explained: bool = False) -> Reconstruction:
    """What was reconstructed, with layers that overlap in another way, and a note on what that changes.

    Args:
        recording: The pipeline.
        run: Its Run, with the shapes of products.
        way: Such as slice:4; none changes nothing.
        explained: Whether a note also says what is in the way of it.

    Raises:
        ReconstructError: If no action holds a collective with a matrix product beside it that could run so.
    """
    if way == NO_OVERLAP:
        return recording
    layers = read_layers(run)
    why_not = layers.refusal(way)
    if why_not is not None:
        raise _none_of({way: why_not})
    overlap = layers.overlap(way)
    why = [_loss_note(way, layers.losses(way))] if explained and not overlap.is_bound else []
    notes = (*recording.notes, overlap_note(overlap), *_hidden_notes(run), *why)
    return replace(recording, pipeline=with_layers(recording.pipeline, overlap), notes=notes)


def _machine(run: Run, groups: Mapping[Pair, tuple[int, ...]]) -> Machine:
    """The machine from these groups alone, by collectives of groups of their sizes."""
    recording = read_recording(run, sorted({rank for group in groups.values() for rank in group}))
    sizes = {pair.ranks for pair in groups}
    collectives = tuple(one for one in recording.collectives if one.ranks in sizes)
    return calibrate([replace(recording, collectives=collectives)], with_exchanges=True)


class _ChangedNs(NamedTuple):
    """How much longer a pair or an action takes.

    Attributes:
        change_ns: What it takes more.
        way_error_ns: How far off that may be beside the pair as it is over the same links.
        link_error_ns: How far off what the links change may be.
    """

    change_ns: float
    way_error_ns: float
    link_error_ns: float


class _Changed(NamedTuple):
    """What a way changes of one pair.

    Attributes:
        ahead: Where the host is ahead of the device.
        in_a_row: Where nothing but such pairs runs, one after the other: the host may hold them up.
        host_ns: What its host spends more.
        is_measured: Whether these errors are known.
    """

    ahead: _ChangedNs
    in_a_row: _ChangedNs
    host_ns: float
    is_measured: bool


_Parts: TypeAlias = "Sequence[tuple[_Changed, int]]"
"""What each pair of an action changes, and how often it stands there."""


def _of_action(times: ActionTimes | None, parts: _Parts) -> _ChangedNs:
    """What pairs change of an action: as long as its host is done before its device, what the device takes more."""
    if _is_ahead(times, parts):
        return _total([(part.ahead, count) for part, count in parts])
    in_a_row = _total([(part.in_a_row, count) for part, count in parts])
    if times is None:
        return in_a_row
    return in_a_row._replace(change_ns=min(in_a_row.change_ns, _late_ns(times, parts)))


def _is_ahead(times: ActionTimes | None, parts: _Parts) -> bool:
    """Whether the host is done before the device."""
    return times is not None and _late_ns(times, parts) <= sum(part.ahead.change_ns * count for part, count in parts)


def _late_ns(times: ActionTimes, parts: _Parts) -> float:
    """When the host is done, after the end of the action as it was."""
    return times.host_ns + sum(part.host_ns * count for part, count in parts) - times.device_ns


def _total(each: Sequence[tuple[_ChangedNs, int]]) -> _ChangedNs:
    return _ChangedNs(*(sum(cost[at] * count for cost, count in each) for at in range(3)))


def _is_left(pair: Pair, way: str) -> bool:
    """Whether a pair cannot run so, and stays as it is."""
    return refusal(variant_of(way, pair.side), pair.shape, pair.ranks) is not None


def _changed(pair: Pair, way: str, here: Machine, there: Machine) -> _Changed:
    """What a pair takes in another way over other links than as it was."""
    plain = variant_of(NO_OVERLAP, pair.side)
    variant = plain if _is_left(pair, way) else variant_of(way, pair.side)
    recorded = call_time(plain, pair.shape, here, IN_A_ROW)
    beside = recorded if there is here else call_time(plain, pair.shape, there, IN_A_ROW)
    changed = beside if variant == plain else call_time(variant, pair.shape, there, IN_A_ROW)

    def changed_ns(*, in_a_row: bool) -> _ChangedNs:
        def ns(time: CallTime) -> float:
            return time.call_ns if in_a_row else time.device_ns

        def error(which: str, time: CallTime) -> SeenError:
            return overlap_error(which, pair.shape, there, host_bound=in_a_row and time.is_host_bound)

        way_ns = 0.0 if variant == plain else error(variant, changed).change_ratio * ns(changed)
        link_ns = 0.0 if there is here else error(plain, beside).time_ratio * ns(beside)
        return _ChangedNs(ns(changed) - ns(recorded), way_ns, link_ns)

    is_measured = pair.side != "ar" or there is here
    host_ns = changed.host_ns - recorded.host_ns
    return _Changed(changed_ns(in_a_row=False), changed_ns(in_a_row=True), host_ns, is_measured)
