"""From the labelled operations of one rank to rows of a Run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import SourceReport
from tracetool.readers.ndtimeline.layout import (
    BACKWARD,
    COLLECTIVES,
    DP,
    FORWARD,
    NOT_READ,
    OPTIMIZER,
    PP,
    TP,
    WEIGHT,
    NamedMessage,
    messages_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracetool.readers import Identity
    from tracetool.readers.ndtimeline.layout import JobLayout, Operation

    Row = tuple[object, ...]

_CHUNK_ROWS = 1 << 14
_COMPUTE_LANE, _NEXT_LANE, _PREVIOUS_LANE, _BATCH_LANE, _TP_LANE, _DP_LANE = range(6)
_LABELLED, _INFERRED, _UNKNOWN = "label", "inferred", "unknown"


@dataclass(frozen=True, slots=True)
class _Compute:
    """A forward, backward or weight gradient; stage and microbatch are None where they are unknown."""

    kind: str
    stage: int | None
    microbatch: int | None
    operation: Operation


@dataclass(frozen=True, slots=True)
class _Sent:
    """A send or receive on its way to a row; ``peer`` is a pipeline rank."""

    message: NamedMessage
    operation: Operation
    peer: int | None = None
    stage: int | None = None
    microbatch: int | None = None


class RankRows:
    """Rows of one rank.

    Args:
        rank: Global rank.
        identity: Its groups.
        layout: What the whole trace says.
        report: Filled in.
        tick_ns: Distance of two neighbouring values of its clock, as far as the form of the trace tells.
    """

    def __init__(
        self, rank: int, identity: Identity, layout: JobLayout, report: SourceReport, *, tick_ns: int = 0
    ) -> None:
        self._rank = rank
        self._groups = {g.name: g.ranks for g in identity.groups}
        self._layout = layout
        self._position = layout.places[rank].pp
        self._report = report
        self._numbered = rank in layout.numbered
        self._is_whole = True
        self._tick_ns = tick_ns
        self.events: list[Row] = []
        self.comms: list[Row] = []
        self.steps: list[Row] = []
        self._first_event = self._first_comm = 0
        self._exchanges = False
        self._batches = 0

    def take(self, by_step: Callable[[], Iterable[tuple[int, list[Operation]]]]) -> Iterator[tuple[str, list[Row]]]:
        """Turn all operations of the rank into rows, step by step, and tell in the report what was inferred.

        Args:
            by_step: Gives the steps in order, each with its operations, as often as it is asked.

        Yields:
            Table name and rows.
        """
        for _, members in by_step():
            self._once(members, self._report)
        self._is_whole = not (self._layout.unplaced or self._report.dropped.total())
        offsets = self._layout.offsets()
        unlabelled, paired = 0, 0
        again = SourceReport()
        for step, members in by_step():
            shifted = [o._replace(start_ns=o.start_ns + offsets[step]) for o in self._once(members, again)]
            shifted.sort(key=lambda o: (o.start_ns, o.order or 0, o.at))
            tick_ns = max(self._tick_ns, math.gcd(*(time for o in members for time in (o.start_ns, o.duration_ns))))
            computes = self._computes(shifted)
            self.events += self._event_rows(computes, [o for o in shifted if o.name == OPTIMIZER])
            sent = self._messages(shifted, computes, tick_ns)
            unlabelled += sum(s.microbatch is None for s in sent)
            paired += self._comm_rows(sent, [o for o in shifted if o.name in COLLECTIVES])
            kept = [o for o in shifted if o.name not in NOT_READ]
            if kept:
                first, last = min(o.start_ns for o in kept), max(o.start_ns + o.duration_ns for o in kept)
                self.steps.append((self._rank, step, first, last, None, None))
            yield from self._full(_CHUNK_ROWS)
        yield from self._full(1)
        yield "steps", self.steps
        self._record_notes(unlabelled, paired)

    def _full(self, least: int) -> Iterator[tuple[str, list[Row]]]:
        """Hand over the rows so far of each table that has at least so many."""
        if len(self.events) >= least:
            self._first_event += len(self.events)
            yield "events", self.events
            self.events = []
        if len(self.comms) >= least:
            self._first_comm += len(self.comms)
            yield "comms", self.comms
            self.comms = []

    def _once(self, operations: Iterable[Operation], report: SourceReport) -> list[Operation]:
        """The operations of a step that belong to the rank, none of them twice."""
        taken: set[tuple[str, int]] = set()
        kept = []
        for operation in operations:
            if operation.where != self._layout.places[self._rank]:
                report.drop("operation of this rank at other coordinates", operation.place)
                continue
            if operation.name in NOT_READ:
                report.skipped[NOT_READ[operation.name]] += 1
            if operation.order is not None:
                key = (operation.name, operation.order)
                if key in taken:
                    report.drop("operation listed twice", operation.place)
                    continue
                taken.add(key)
            kept.append(operation)
        return kept

    def _computes(self, operations: Sequence[Operation]) -> list[_Compute]:
        kinds = {FORWARD: "F", BACKWARD: "I" if self._layout.splits_backward else "B", WEIGHT: "W"}
        counted: Counter[tuple[str, int | None]] = Counter()
        computes = []
        for operation in operations:
            if operation.name not in kinds:
                continue
            kind, stage, microbatch = kinds[operation.name], self._stage(operation), operation.microbatch
            if not self._numbered and stage is not None and self._is_whole:
                microbatch = counted[kind, stage]
                counted[kind, stage] += 1
            elif self._numbered and (microbatch is None or stage is None):
                self._report.repair("compute without its stage or microbatch: kept without label", operation.place)
            computes.append(_Compute(kind, stage, microbatch, operation))
        return computes

    def _stage(self, operation: Operation) -> int | None:
        if operation.stage is not None:
            return operation.stage
        if operation.chunk is not None:
            return operation.chunk * self._layout.stages + self._position
        return self._position if self._layout.chunks == 1 and not self._layout.wraps_around else None

    def _event_rows(self, computes: Sequence[_Compute], optimizers: Sequence[Operation]) -> list[tuple[object, ...]]:
        count = self._first_event + len(self.events)
        labelled = [(c.operation, _label(c.kind, c.stage, c.microbatch)) for c in computes]
        rows = sorted([*labelled, *((o, None) for o in optimizers)], key=_in_order)
        return [
            (
                count + number, self._rank, "kernel", o.name, o.start_ns, o.duration_ns, None, _COMPUTE_LANE,
                None, None, None, None, None, label, None,
            )
            for number, (o, label) in enumerate(rows)
        ]  # fmt: skip

    def _messages(self, operations: Sequence[Operation], computes: Sequence[_Compute], tick_ns: int) -> list[_Sent]:
        """Sends and receives of a step with the compute that each one serves, in order of posting."""
        posted = [_Sent(m, o) for o in operations for m in messages_of(o.name)]
        queues: dict[NamedMessage, list[int]] = defaultdict(list)
        for number, sent in enumerate(posted):
            queues[sent.message].append(number)
        for message, numbers in queues.items():
            if message.kind is None:
                continue
            served = [c for c in computes if c.kind in (("F",) if message.kind == "F" else ("B", "I"))]
            matched = self._served(message, [posted[n] for n in numbers], served, tick_ns)
            for number, sent in zip(numbers, matched, strict=True):
                posted[number] = sent
        idle = [s for s in posted if s.message.kind is not None and s.peer is None]
        if idle:
            self._report.skipped["send or receive that nothing is behind"] += len(idle)
        return [s for s in posted if s.message.kind is None or s.peer is not None]

    def _served(
        self, message: NamedMessage, sent: Sequence[_Sent], computes: Sequence[_Compute], tick_ns: int
    ) -> list[_Sent]:
        """Pair the n-th send or receive with the n-th compute; those that nothing is behind get no peer.

        The recorders also note sends and receives that were never launched: at the ends of the model, and
        before the first or after the last compute they could serve.
        """
        pairs = self._pairs(message, sent, computes, tick_ns)
        if pairs is None and computes:
            launched = [s for s in sent if _may_serve(message, s.operation, computes, tick_ns)]
            pairs = self._pairs(message, launched, computes, tick_ns) if len(launched) < len(sent) else None
        if pairs is None:
            peer = self._position + _towards(message)
            if self._layout.chunks > 1 or self._layout.wraps_around:
                peer %= self._layout.stages
            return [replace(s, peer=peer if 0 <= peer < self._layout.stages else None) for s in sent]
        return [pairs.get(s.operation.at, s) for s in sent]

    def _pairs(
        self, message: NamedMessage, sent: Sequence[_Sent], computes: Sequence[_Compute], tick_ns: int
    ) -> dict[int, _Sent] | None:
        operations = [c.operation for c in computes], [s.operation for s in sent]
        if any(c.stage is None for c in computes) or not all(self._lacks_none(some) for some in operations):
            return None
        served = [c for c in computes if self._peer_of(message, c) is not None]
        # The recorders sometimes miss the first receive of the first stage, which nothing is behind.
        skips_first = message.operation == "recv" and bool(computes) and self._peer_of(message, computes[0]) is None
        later = computes[1:] if skips_first else ()
        count = len(sent)
        chosen = next((some for some in (served, computes, later) if len(some) == count), None)
        slack_ns = None if chosen is None else _slack_ns(message, sent, chosen, tick_ns)
        if chosen is None or slack_ns is None:
            return None
        # Had the last ones been lost, others might fit better: then nothing tells which.
        for rival in (served[:count], computes[:count], later[:count]):
            if len(rival) == count and any(one is not other for one, other in zip(rival, chosen, strict=True)):
                rival_ns = _slack_ns(message, sent, rival, tick_ns)
                if rival_ns is not None and rival_ns <= slack_ns:
                    return None
        return {
            s.operation.at: replace(s, peer=self._peer_of(message, c), stage=c.stage, microbatch=c.microbatch)
            for s, c in zip(sent, chosen, strict=True)
        }

    def _lacks_none(self, operations: Sequence[Operation]) -> bool:
        """Whether none is missing before the last one: their numbers tell it, else the trace must be undamaged."""
        orders = [o.order for o in operations]
        if None in orders:
            return self._is_whole
        return sorted(o for o in orders if o is not None) == list(range(len(orders)))

    def _peer_of(self, message: NamedMessage, compute: _Compute) -> int | None:
        return None if compute.stage is None else self._layout.owner(compute.stage + _towards(message))

    def _comm_rows(self, sent: Sequence[_Sent], collectives: Sequence[Operation]) -> int:
        """Append the communication of a step; returns how many batches were told by equal times alone."""
        sides: dict[tuple[int, int], set[tuple[str, int]]] = defaultdict(set)
        for s in sent:
            sides[s.operation.start_ns, s.operation.duration_ns].add((s.message.operation, s.operation.at))
        first = self._first_comm
        batches: dict[object, int] = {}
        paired = set()
        rows: list[tuple[Operation, _Sent | None]] = [(s.operation, s) for s in sent]
        rows += [(o, None) for o in collectives]
        for operation, one in sorted(rows, key=_in_order):
            span = (operation.start_ns, operation.duration_ns)
            is_batched = one is not None and len({side for side, _ in sides[span]}) == 2
            if is_batched and len({at for _, at in sides[span]}) > 1:
                paired.add(span)
            batch = batches.setdefault(span if is_batched else operation.at, self._batches + len(batches))
            row = self._collective(operation) if one is None else self._message(one, is_batched=is_batched)
            what, group, peer, lane, evidence, label = row
            self.comms.append(
                (
                    self._rank, first + len(self.comms), what, group, list(self._groups.get(group, ())), peer, None,
                    operation.start_ns, None, batch, lane, operation.start_ns,
                    operation.start_ns + operation.duration_ns, evidence, label,
                )
            )  # fmt: skip
        self._batches += len(batches)
        self._exchanges |= bool(sent)
        return len(paired)

    def _collective(self, operation: Operation) -> tuple[str, str, None, int, str, None]:
        what, group = COLLECTIVES[operation.name]
        return what, group, None, _TP_LANE if group == TP else _DP_LANE, _LABELLED, None

    def _message(self, sent: _Sent, *, is_batched: bool) -> tuple[str, str, int | None, int, str, str | None]:
        what, kind = sent.message
        pipeline = self._groups.get(PP, ())
        peer = pipeline[sent.peer] if sent.peer is not None and pipeline else None
        lane = _BATCH_LANE if is_batched or kind is None else _lane(sent.message)
        evidence = _UNKNOWN if peer is None else _LABELLED if self._numbered else _INFERRED
        label = _label(f"{what.upper()}_{kind}", sent.stage, sent.microbatch)
        return what, PP, peer, lane, evidence, label

    def _record_notes(self, unlabelled: int, paired: int) -> None:
        note = self._report.note
        if self._exchanges:
            note(
                SourceCode.MESSAGES_INFERRED,
                "the n-th send or receive of a kind is taken as that of the n-th compute in need of one",
            )
        if not self._numbered:
            consequence = "are numbered in order of start" if self._is_whole else "of a damaged trace are not numbered"
            note(SourceCode.MICROBATCHES_UNNAMED, f"no microbatches are named: forwards and backwards {consequence}")
        if self._layout.wraps_around and self._layout.chunks == 1:
            note(
                SourceCode.MESSAGES_UNLABELLED,
                "the ends of the pipeline exchange messages and no model chunks are named: nothing is labelled",
            )
        if unlabelled:
            note(
                SourceCode.MESSAGES_UNLABELLED,
                f"{unlabelled} sends and receives fit no compute by number: they are not labelled",
            )
        if paired:
            note(
                SourceCode.MESSAGES_INFERRED,
                f"{paired} sends share start and duration with a receive: each pair is taken as one batch",
            )
        if self._layout.splits_backward:
            note(SourceCode.BACKWARD_SPLIT, f"{WEIGHT} is recorded: {BACKWARD} is taken as the input gradient alone")
        for name in (PP, DP):
            if name not in self._groups:
                note(SourceCode.GROUPS_UNKNOWN, f"its {name} group is not known in full")


def _towards(message: NamedMessage) -> int:
    """+1 if the other side holds the next stage, -1 for the previous one."""
    return 1 if (message.kind == "F") == (message.operation == "send") else -1


def _slack_ns(message: NamedMessage, sent: Sequence[_Sent], computes: Sequence[_Compute], tick_ns: int) -> int | None:
    """Time between computes and their sends, or receives and their computes; None if one comes too early."""
    total = 0
    for one, compute in zip((s.operation for s in sent), (c.operation for c in computes), strict=True):
        first, second = (compute, one) if message.operation == "send" else (one, compute)
        gap = second.start_ns - first.start_ns - first.duration_ns
        if gap < -_overlap_ns(compute, tick_ns):
            return None
        total += abs(gap)
    return total


def _overlap_ns(compute: Operation, tick_ns: int) -> int:
    """By how much a message may overlap with the compute it serves, as recorders round and note late.

    Numbers pair them, times only tell which of several readings fits: half the compute is far from the next one.
    Three times are rounded to the clock.
    """
    return max(compute.duration_ns // 2, 2 * tick_ns)


def _lane(message: NamedMessage) -> int:
    return _NEXT_LANE if _towards(message) > 0 else _PREVIOUS_LANE


def _label(kind: str, stage: int | None, microbatch: int | None) -> str | None:
    return None if stage is None or microbatch is None else f"{stage}{kind}{microbatch}"


def _may_serve(message: NamedMessage, operation: Operation, computes: Sequence[_Compute], tick_ns: int) -> bool:
    """Whether a receive begins before its last compute does, or a send ends after its first compute does."""
    if message.operation == "recv":
        last = max((c.operation for c in computes), key=lambda o: o.start_ns)
        return operation.start_ns <= last.start_ns + _overlap_ns(last, tick_ns)
    first = min((c.operation for c in computes), key=lambda o: o.start_ns + o.duration_ns)
    first_end = first.start_ns + first.duration_ns
    return operation.start_ns + operation.duration_ns >= first_end - _overlap_ns(first, tick_ns)


def _in_order(row: tuple[Operation, object]) -> tuple[int, int]:
    """What rows of operations are sorted by."""
    operation, _ = row
    return operation.start_ns, operation.at
