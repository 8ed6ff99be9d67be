"""Findings for people: what is known how, the least sure first.

What a Run lacks, for which later step it would be needed, and how to record it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from tracetool.errors import Option
from tracetool.model.notice import Subject, SubjectKind
from tracetool.readers import MEMORY_LEFT
from tracetool.reconstruction import unread_events
from tracetool.tables.fields import doc
from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.store.run import Run

_SHOWN = 6


class MergedFinding(NamedTuple):
    """Findings that differ in nothing but the rank, as one.

    Attributes:
        fact: What kind of fact it is.
        kind: What kind of thing it is about; None for the whole recording, and others.
        about: Ranks or other subjects; ``all`` for the whole recording.
        value: What was found.
        evidence: How it is known.
        confidence: How sure it is, 0 to 1.
        detail: What disagrees, or what the evidence leaves open.
    """

    fact: str
    kind: SubjectKind | None
    about: str
    value: str
    evidence: str
    confidence: float
    detail: str | None


def merged(findings: Sequence[dict[str, Any]]) -> tuple[list[MergedFinding], list[str]]:
    """Findings of equal ranks as one, the least sure first, at most a few for one fact and evidence.

    Args:
        findings: Rows of the table ``findings``, in order.

    Returns:
        Those to show, and in words what is left out.
    """
    ranks: dict[MergedFinding, list[int]] = {}
    for row in findings:
        parsed = Subject.parse(row["subject"])
        kind = None if parsed is None else parsed.kind
        rank = None if parsed is None or kind is not SubjectKind.RANK else int(parsed.name)
        about = row["subject"] if rank is None else ""
        fields = {name: row[name] for name in MergedFinding._fields if name in row}
        members = ranks.setdefault(MergedFinding(kind=kind, about=about, **fields), [])
        if rank is not None:
            members.append(rank)
    groups: list[MergedFinding] = []
    shown: Counter[tuple[str, str]] = Counter()
    # Sorting is stable: of equally sure ones the order stays that in which they were found.
    for one in sorted(ranks, key=lambda one: one.confidence):
        shown[one.fact, one.evidence] += 1
        if shown[one.fact, one.evidence] <= _SHOWN:
            groups.append(one._replace(about=one.about or format_ranks(ranks[one])))
    left = [
        f"{count - _SHOWN} more of {fact} by {evidence}" for (fact, evidence), count in shown.items() if count > _SHOWN
    ]
    return groups, left


def finding_lines(findings: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each of the merged findings.

    Args:
        findings: Rows of the table ``findings``, in order.
    """
    groups, left = merged(findings)
    lines: list[str] = []
    for fact, kind, about, value, evidence, confidence, detail in groups:
        is_named = kind is not None and fact in {kind.value, f"{kind.value}s"}
        named = fact if about == "all" else about if is_named else f"{fact}, {about}"
        sure = "" if confidence == 1 else f", confidence {confidence:.2f}"
        lines.append(f"    {named}: {value} ({evidence}{sure}){f': {detail}' if detail else ''}")
    lines += [f"    {more} ({Option.JSON} has all)" for more in left]
    return ["  findings, the least sure first:", *lines] if lines else []


_COPYABLE_SQL = """
WITH placed AS (
    SELECT rank, pipeline, pp, recorded, count(*) OVER (PARTITION BY pipeline) AS stages
    FROM coordinates WHERE pipeline IS NOT NULL AND pp IS NOT NULL
),
missing AS (
    SELECT m.rank, m.pipeline, EXISTS (
        SELECT 1 FROM placed AS p
        WHERE p.recorded AND p.pp = m.pp AND p.stages = m.stages AND p.pipeline <> m.pipeline
    ) AS has_source
    FROM placed AS m WHERE NOT m.recorded
)
SELECT rank FROM missing AS m
WHERE (SELECT bool_and(has_source) FROM missing AS o WHERE o.pipeline = m.pipeline)
ORDER BY rank
"""
"""Ranks not recorded of pipelines that copies complete: each such rank's stage was recorded in another pipeline."""


class Gap(msgspec.Struct, frozen=True):
    """Something that is missing."""

    lacks: Annotated[str, doc("What.")]
    needed_for: Annotated[str, doc("The step that needs it.")]
    hint: Annotated[str, doc("How to get it.")]


class _Ways(NamedTuple):
    """How a profiler records what is lacking."""

    device: str = "record device activity (ProfilerActivity.CUDA, XPU, NPU) and export inside on_trace_ready"
    host: str = "record ProfilerActivity.CPU too"
    calls: str = "re-record with torch >= 2.4 and ProfilerActivity.CPU"
    peers: str = "re-record with torch >= 2.6 or record_shapes=True, or Ascend Level1 and up"
    sizes: str = "re-record with torch >= 2.4, or Ascend Level1 and up"
    steps: str = "call profiler.step() after every step"
    memory: str = "record with profile_memory=True"
    unknown: str = "communication kernels without a record of the host"


_NVTX = "run under torch.autograd.profiler.emit_nvtx() and nsys profile -t cuda,nvtx"
_BLOBS = "NCCL 2.16 or newer names them: capture from before communicators are made, nsys export --include-blobs=true"


def _ways(run: Run) -> _Ways:
    """As the traces' own profiler has it; torch.profiler and torch_npu call things alike."""
    if not any(source["reader"] == "nsys" for source in run.manifest["sources"]):
        return _Ways()
    return _Ways(
        device="nsys profile -t cuda,nvtx --cuda-graph-trace=node", host=_NVTX, calls=f"{_NVTX}; {_BLOBS}",
        peers=_BLOBS, sizes=_BLOBS, steps="open an NVTX range named 'iteration N' around every step",
        memory=f"record a run with torch.profiler's profile_memory=True, and take it from there: {Option.MEMORY_FROM}",
        unknown="collectives and kernels of communication of which neither communicator nor size is recorded",
    )  # fmt: skip


_EVENTS_SQL = """
WITH of_rank AS (
    SELECT rank, count(*) AS events, count(*) FILTER (category = 'kernel') AS kernels, count(label) AS labels,
           count(kernel_class) AS classes, list(DISTINCT category) AS categories,
           min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns
    FROM events GROUP BY rank
)
SELECT rank, events, kernels, labels, classes, categories, first_ns + if(applied, offset_ns, 0) AS first_ns,
       last_ns + if(applied, offset_ns, 0) AS last_ns
FROM of_rank LEFT JOIN clocks USING (rank) ORDER BY rank
"""
_COMMS_SQL = """
SELECT count(*), count(*) FILTER (operation IN ('send', 'recv')),
       count(*) FILTER (operation IN ('send', 'recv') AND peer IS NULL),
       count(*) FILTER (operation IN ('send', 'recv') AND payload_bytes IS NULL),
       count(*) FILTER ("group" = '' AND evidence = 'unknown' AND operation NOT IN ('send', 'recv'))
FROM comms
"""


class EventCounts(NamedTuple):
    """Events of a rank, times on the reference rank's clock."""

    rank: int
    events: int
    kernels: int
    labels: int
    classes: int
    categories: list[str]
    first_ns: int
    last_ns: int


class CommCounts(NamedTuple):
    """Communication operations, and of those sends and receives without what; ``unknown``: others without a record."""

    operations: int
    messages: int
    without_peer: int
    without_size: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of what a Run holds: its large tables are gone through once, however many ranks there are.

    Attributes:
        events: Of each rank that has any, by rank.
        comms: Communication operations.
        memory: Records of the allocator.
        steps: Numbers of the steps that are marked.
    """

    events: Mapping[int, EventCounts]
    comms: CommCounts
    memory: int
    steps: list[int]

    def sum(self, what: Literal["events", "kernels", "labels", "classes"]) -> int:
        """That of all ranks."""
        return sum(getattr(each, what) for each in self.events.values())

    @property
    def span_ns(self) -> int:
        """From the first event to the end of the last one."""
        each = self.events.values()
        return max(one.last_ns for one in each) - min(one.first_ns for one in each) if each else 0


def count_tables(run: Run) -> Counts:
    """Count the rows of a Run's large tables."""
    (comms,) = run.rows(_COMMS_SQL)
    return Counts(
        events={each.rank: each for each in map(EventCounts._make, run.rows(_EVENTS_SQL))},
        comms=CommCounts(*comms),
        memory=run.count("memory"),
        steps=[number for (number,) in run.rows("SELECT DISTINCT step FROM steps ORDER BY step")],
    )


def find_gaps(run: Run, counts: Counts | None = None) -> list[Gap]:
    """Everything that a later step will miss.

    Args:
        run: The Run.
        counts: Of its tables, if they were counted before.
    """
    ranks = [rank for (rank,) in run.rows("SELECT rank FROM ranks ORDER BY rank")]
    if not ranks:
        return [
            Gap("no rank was recorded", "replay", "add the traces; figures of a vendor's analysis stand alone here")
        ]
    counts, ways = counts or count_tables(run), _ways(run)
    return [*_device(run, ranks, counts, ways), *_messages(counts.comms, ways), *_marks(run, counts, ways), *_rest(run)]


def _device(run: Run, ranks: list[int], counts: Counts, ways: _Ways) -> Iterator[Gap]:
    categories = {rank: each.categories for rank, each in counts.events.items()}
    silent = [rank for rank in ranks if "kernel" not in categories.get(rank, ())]
    who = "" if len(silent) == len(ranks) else f" on {format_ranks(silent)}"
    if silent:
        host = any(categories.get(rank) for rank in silent)
        unread = unread_events(run.manifest["sources"], silent)
        what = f"no kernels{who}: a trace of the host only" if host else f"no kernels{who}"
        what = f"no kernels{who} among what is read, and {unread}" if unread else what
        damaged = [s["rank"] for s in run.manifest["sources"] if s["rank"] in silent and s["dropped"]]
        needed_for = "stages, costs and replay"
        if run.count("stages"):
            beside = "what these ranks do: the pipeline is known without them, and can be replayed"
            needed_for = "times of a device: the host's own ops stand for them" if not who else beside
        yield Gap(
            what, needed_for,
            f"the file of {format_ranks(damaged)} is damaged: fetch it again" if damaged else
            "kernels of CUDA, HIP, XPU and Ascend devices are read" if unread else
            ways.device,
        )  # fmt: skip
    blind = [r for r in ranks if r not in silent and not {"op", "launch"} & set(categories.get(r, ()))]
    if blind and not counts.sum("labels") and not counts.sum("classes"):
        yield Gap(f"no host activity on {format_ranks(blind)}", "telling forward from backward", ways.host)


def _messages(counts: CommCounts, ways: _Ways) -> Iterator[Gap]:
    _, messages, nameless, sizeless, unknown = counts
    if unknown:
        yield Gap(f"{unknown:,} {ways.unknown}", "who exchanges what with whom", ways.calls)
    if not messages and not unknown:
        yield Gap(
            "no sends and receives were read", "a pipeline", "record ranks of different stages; TCP is not recorded"
        )
    if nameless:
        yield Gap(f"no peer for {nameless:,} of {messages:,} sends and receives", "stages and transfers", ways.peers)
    if sizeless:
        yield Gap(
            f"no size of {sizeless:,} of {messages:,} sends and receives",
            "bandwidth of links",
            f"{ways.sizes}, or ingest with {Option.PAYLOAD('16MiB')}",
        )


def _marks(run: Run, counts: Counts, ways: _Ways) -> Iterator[Gap]:
    if not counts.steps:
        yield Gap("no steps are marked", "steps by number (they are cut at the optimizer or the messages)", ways.steps)
    if not counts.memory:
        left = _memory_left(run)
        yield Gap(
            f"no memory records of its device, but {left} that are not read" if left else "no memory records in it",
            f"HBM limits (or give {Option.ACTIVATION} and {Option.STATIC})", ways.memory,
        )  # fmt: skip


def _memory_left(run: Run) -> str:
    """Records of other memory that the traces hold."""
    counts = Counter({
        reason: count for source in run.manifest["sources"] for reason, count in source["skipped"].items()
        if count and reason in MEMORY_LEFT
    })  # fmt: skip
    return ", ".join(f"{format_count(count, 'record')} ({reason})" for reason, count in counts.items())


def _rest(run: Run) -> Iterator[Gap]:
    missing = run.manifest["missing_ranks"]
    if missing:
        was = "was" if len(missing) == 1 else "were"
        copied = [rank for (rank,) in run.rows(_COPYABLE_SQL)]
        which = "them" if copied == missing else format_ranks(copied)
        yield Gap(
            f"{format_ranks(missing)} {was} not recorded", "pipelines they are part of",
            "add their traces" + (f", or copy {which} in a replay: {Option.COPY_MISSING.on}" if copied else ""),
        )  # fmt: skip
