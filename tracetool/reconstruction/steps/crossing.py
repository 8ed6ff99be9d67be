"""Traffic of one step that crosses from one data centre (DC) to another."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.model.pipeline import sum_if_known
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reconstruction.steps import steps_of
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.dc_map import DCMap
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.capture.process_groups import ProcessGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.store.run import Run

Spans = dict[int, tuple[int, int]]


class CrossingMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one rank to another one in another data centre."""

    src_rank: Annotated[int, doc("Global rank that sends.")]
    dst_rank: Annotated[int, doc("Global rank that receives.")]
    src_dc: Annotated[str, doc("Where it sits.")]
    dst_dc: Annotated[str, doc("Where the other one sits.")]
    messages: Annotated[int, doc("How many in the step.")]
    payload_bytes: Annotated[int | None, doc("Bytes of all of them; null if unknown.")]


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one process group whose ranks sit in several data centres."""

    operation: Annotated[str, doc("allreduce, allgather ...")]
    ranks: Annotated[tuple[int, ...], doc("The group's global ranks.")]
    dcs: Annotated[tuple[str, ...], doc("Where they sit.")]
    operations: Annotated[int, doc("How many in the step.")]
    payload_bytes: Annotated[int | None, doc("Bytes that one rank brought into all of them; null if unknown.")]


@dataclass(frozen=True, slots=True)
class Crossing:
    """What crosses DCs.

    Attributes:
        dcs: Where each rank of the job sits.
        step: Step it is of; None if the capture cannot be cut into steps: then all of it is counted.
        messages: By source and destination rank.
        collectives: By operation and group.
    """

    dcs: Mapping[int, str]
    step: int | None
    messages: tuple[CrossingMessages, ...]
    collectives: tuple[Collectives, ...]


def find_crossing(run: Run, dc_map: DCMap) -> Crossing:
    """Messages and collectives of the step that was looked at, as far as they cross DCs.

    A message is counted where it was sent; if that rank was not recorded, where it was received.

    Args:
        run: The Run.
        dc_map: Where ranks sit.

    Raises:
        BadTopology: If the map does not fit the Run's ranks.
    """
    survey = survey_run(run, Account())
    run = survey.run
    hosts: dict[int, str | None] = dict(run.rows("SELECT rank, host FROM ranks"))
    # A map of hosts can tell of recorded ranks alone: no trace names the host of the others.
    known = [c for c in survey.coordinates if c.recorded or dc_map.counts != "hosts"]
    dcs = dc_map.of_ranks({c.rank: c.pp for c in known}, hosts)
    step, spans = _spans(run, survey)
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    messages = _messages(survey.p2p, dcs, spans, recorded)
    return Crossing(dcs, step, messages, _collectives(run, survey.groups, dcs, spans, recorded))


def _spans(run: Run, survey: Survey) -> tuple[int | None, Spans]:
    """The step that was looked at, and where it lies on each rank."""
    number = run.manifest.get("reconstruction", {}).get("step")
    spans: Spans = {}
    for pipeline in survey.pipelines:
        steps = steps_of(run, pipeline.ranks, Account(), survey.clocks)
        whole = [s for s in steps if s.status == "complete"] or steps
        number = whole[(len(whole) - 1) // 2].number if number is None and whole else number
        spans |= next((s.spans for s in steps if s.number == number), {})
    marked = run.rows("SELECT rank, step, start_ns, end_ns FROM steps ORDER BY step, rank")
    if number is None and marked:
        numbers = sorted({step for _, step, _, _ in marked})
        number = numbers[(len(numbers) - 1) // 2]
    for rank, step, start, end in marked:
        if step == number:
            spans.setdefault(rank, (start, end))
    return number, spans


def _within(spans: Spans, rank: int, time: int) -> bool:
    start, end = spans.get(rank, (0, -1)) if spans else (time, time + 1)
    return start <= time < end


def _messages(
    p2p: Mapping[int, Sequence[P2POp]], dcs: Mapping[int, str], spans: Spans, recorded: set[int]
) -> tuple[CrossingMessages, ...]:
    sizes: dict[tuple[int, int], list[int | None]] = defaultdict(list)
    for ops in p2p.values():
        for op in ops:
            ends = (op.rank, op.peer) if op.is_send else (op.peer, op.rank)
            counted = op.is_send or op.peer not in recorded
            placed = ends[0] in dcs and ends[1] in dcs
            if counted and placed and dcs[ends[0]] != dcs[ends[1]] and _within(spans, op.rank, op.posted_ns):
                sizes[ends].append(op.payload_bytes)
    return tuple(
        CrossingMessages(
            src_rank=src,
            dst_rank=dst,
            src_dc=dcs[src],
            dst_dc=dcs[dst],
            messages=len(all_sizes),
            payload_bytes=sum_if_known(all_sizes),
        )
        for (src, dst), all_sizes in sorted(sizes.items())
    )


def _collectives(
    run: Run, listed_groups: Sequence[ProcessGroup], dcs: Mapping[int, str], spans: Spans, recorded: set[int]
) -> tuple[Collectives, ...]:
    groups = {g.ranks[:30]: g.ranks for g in listed_groups if len({dcs[r] for r in g.ranks if r in dcs}) > 1}
    members = sorted({rank for ranks in groups.values() for rank in ranks} & recorded)
    sizes: dict[tuple[str, tuple[int, ...]], dict[int, list[int | None]]] = defaultdict(lambda: defaultdict(list))
    rows = run.rows(
        "SELECT rank, operation, group_ranks, posted_ns, payload_bytes FROM comms "
        "WHERE operation NOT IN ('send', 'recv') AND list_contains(?, rank) ORDER BY rank, posted_ns",
        [members],
    )
    for rank, operation, listed, posted, size in rows:
        ranks = groups.get(tuple(listed[:30]))
        if ranks is not None and _within(spans, rank, posted):
            sizes[operation, ranks][rank].append(size)
    return tuple(
        Collectives(
            operation=operation,
            ranks=ranks,
            dcs=tuple(sorted({dcs[r] for r in ranks if r in dcs})),
            operations=len(all_sizes),
            payload_bytes=sum_if_known(all_sizes),
        )
        for (operation, ranks), by_rank in sorted(sizes.items())
        for all_sizes in [_as_any_rank_says(by_rank)]
    )


def _as_any_rank_says(by_rank: Mapping[int, Sequence[int | None]]) -> list[int | None]:
    """Sizes of a group's collectives in their order: what one rank does not know, others that had as many may."""
    first = by_rank[min(by_rank)]
    alike = [sizes for sizes in by_rank.values() if len(sizes) == len(first)]
    return [max((size for size in column if size is not None), default=None) for column in zip(*alike, strict=True)]


def by_direction(crossing: Crossing) -> dict[tuple[str, str], tuple[int, int | None]]:
    """Messages and bytes of the step from one DC to another."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for part in crossing.messages:
        counts[part.src_dc, part.dst_dc] += part.messages
        sizes[part.src_dc, part.dst_dc].append(part.payload_bytes)
    return {pair: (count, sum_if_known(sizes[pair])) for pair, count in sorted(counts.items())}
