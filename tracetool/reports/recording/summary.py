"""What a Run holds: everything about it that a user should know before using its numbers.

What would be read of files, what not, and why.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, cast

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.coordinates import read_coordinates
from tracetool.reconstruction.capture.stand_ins import find_stand_ins
from tracetool.reconstruction.closeup.slowdown import gap_shares
from tracetool.reconstruction.job import slow_ranks
from tracetool.reconstruction.steps.crossing import Collectives, CrossingMessages  # noqa: TC001 - msgspec reads them
from tracetool.reports.recording.findings import Counts, Gap, count_tables, find_gaps
from tracetool.tables.fields import doc, row_of
from tracetool.tables.run import COORDINATES, FINDINGS, STAGES, STEP_FACTS
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.ingestion import Discovery
    from tracetool.readers import Left
    from tracetool.reconstruction.capture.stand_ins import StageStandIns
    from tracetool.store.run import Run


class DiscoveredInfo(TypedDict):
    """A source that would be read."""

    path: Annotated[str, doc("File or folder; with the member of an archive.")]
    reader: Annotated[str, doc("Reader that takes it.")]
    rank: Annotated[int | None, doc("Global rank; null of what is of none.")]
    rank_from: Annotated[str, doc("Where the rank is taken from.")]
    world_size: Annotated[int | None, doc("Ranks in the job, as the trace says; null if it does not.")]
    member: Annotated[str | None, doc("Member of the archive; null outside archives.")]
    files: Annotated[int, doc("How many files it is.")]
    size_bytes: Annotated[int, doc("Their size.")]


class LeftInfo(TypedDict):
    """A file that is not read."""

    path: Annotated[str, doc("Which.")]
    reason: Annotated[str, doc("Why.")]


class DiscoveryInfo(TypedDict):
    """What tracetool ingest would read."""

    sources: Annotated[list[DiscoveredInfo], doc("What would be read.")]
    failed: Annotated[list[LeftInfo], doc("What cannot be read.")]
    left: Annotated[list[LeftInfo], doc("What would be left.")]
    conflicts: Annotated[list[str], doc("Why the sources cannot be read into one Run.")]
    hints: Annotated[list[str], doc("What to do about these.")]
    missing_ranks: Annotated[list[int], doc("Ranks of the job, as far as the traces tell, that are in no source.")]


def discovery_info(discovery: Discovery) -> DiscoveryInfo:
    """What would be read, and what not."""
    ranks = {item.rank for item in discovery.sources if item.rank is not None}
    world_size = max([*(item.identity.world_size or 0 for item in discovery.sources), *(rank + 1 for rank in ranks), 0])
    return {
        "sources": [
            {
                "path": item.label,
                "reader": item.reader,
                "rank": item.rank,
                "rank_from": item.rank_from or "the trace",
                "world_size": item.identity.world_size,
                "member": item.source.member,
                "files": len(item.source.files),
                "size_bytes": item.source.size_bytes,
            }
            for item in discovery.sources
        ],
        "failed": _left(discovery.failed),
        "left": _left(discovery.left),
        "conflicts": [conflict.message for conflict in discovery.conflicts],
        "hints": list(dict.fromkeys(conflict.hint for conflict in discovery.conflicts if conflict.hint)),
        "missing_ranks": sorted(set(range(world_size)) - ranks) if ranks else [],
    }


def _left(files: Sequence[Left]) -> list[LeftInfo]:
    return [{"path": file.place, "reason": file.reason} for file in files]


# Ours is of the observed step alone: what a rank idles within the pipeline window.
_BUBBLES_SQL = """
SELECT s.rank, s.step, s.vendor_bubble_ns, CASE WHEN s.step = $step THEN b.idle_ns END AS bubble_ns
FROM steps AS s LEFT JOIN step_breakdown AS b ON b.rank = s.rank
WHERE s.vendor_bubble_ns IS NOT NULL ORDER BY s.rank, s.step
"""


class RecordedRankInfo(TypedDict):
    """A rank that was recorded."""

    rank: Annotated[int, doc("Global rank.")]
    host: Annotated[str | None, doc("Host name.")]
    device_name: Annotated[str | None, doc("Device model.")]
    hbm_bytes: Annotated[int | None, doc("Memory of the device.")]
    kernels: Annotated[int, doc("Device kernels.")]


class VendorBubbleInfo(TypedDict):
    """Ascend's own Bubble of a rank's step beside ours."""

    rank: Annotated[int, doc("Global rank.")]
    step: Annotated[int, doc("Step number.")]
    vendor_bubble_ns: Annotated[int, doc("Ascend's: sum of its receive operators.")]
    bubble_ns: Annotated[int | None, doc("What it idled within the pipeline window; null but of the observed step.")]


class ObservedPipelineInfo(TypedDict):
    """The pipeline that was reconstructed."""

    step: Annotated[int | None, doc("Step that it is of; null if there is no pipeline.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]
    missing: Annotated[str | None, doc("Why there is no pipeline; null if there is one.")]
    hint: Annotated[str | None, doc("What to do about that.")]
    stages: list[Annotated[dict[str, Any], row_of(STAGES)]]


class SlowRankInfo(TypedDict):
    """A rank whose kernels take longer than those of the other ranks of its stage."""

    rank: Annotated[int, doc("Global rank.")]
    pipeline: Annotated[int, doc("Number of its pipeline.")]
    slower_ratio: Annotated[float, doc("By how much, on average, as a share of what those take.")]


class ReplayedRunInfo(TypedDict):
    """What tracetool replay --run put beside the observed Timeline."""

    command: Annotated[str, doc("Command line that did.")]
    timelines: Annotated[list[str], doc("Names of the replayed Timelines.")]


class HostGapInfo(TypedDict):
    """How much of the actions of a stage and kind the device waited for the host."""

    stage: Annotated[int, doc("Global (virtual) stage.")]
    kind: Annotated[str, doc("F, B, I, W or R.")]
    gap_ratio: Annotated[float, doc("Share of gaps between kernels in their time.")]


class ExposedInfo(TypedDict):
    """Collectives of one kind in the actions of the chosen step, over all its ranks."""

    parallelism: Annotated[str | None, doc("What their process group is for; null if the trace does not say.")]
    operation: Annotated[str, doc("The collective, or the kernel that holds one and its matrix product.")]
    is_fused: Annotated[bool, doc("Whether one kernel holds both, and overlaps them already.")]
    operations: Annotated[int, doc("How many.")]
    duration_ns: Annotated[int, doc("Sum of their time, waiting included.")]
    own_ns: Annotated[int | None, doc("Of it, once all ranks were there; null of fused kernels.")]
    exposed_ns: Annotated[int | None, doc("Of it, during which a rank computed nothing; null of fused kernels.")]
    tail_ns: Annotated[int | None, doc("Of it, what was left when all compute that began before was done.")]
    stage: Annotated[int, doc("Where most is exposed: its stage,")]
    kind: Annotated[str, doc("kind of action")]
    layer: Annotated[int | None, doc("and layer; null outside the layers.")]
    own_is_bound: Annotated[bool, doc("Whether own_ns may hold waits: for ranks that were not recorded or matched.")]


class SourceFactsInfo(TypedDict):
    """A source that was read."""

    path: Annotated[str, doc("File or folder; with the member of an archive.")]
    rank: Annotated[int | None, doc("Global rank; null of what is of none.")]
    reader: Annotated[str, doc("Reader that took it.")]
    failure: Annotated[str | None, doc("Why nothing of it can be used; null if it was read.")]
    dropped: Annotated[dict[str, int], doc("Records that could not be used, by what was wrong with them.")]
    repaired: Annotated[dict[str, int], doc("Records changed while reading, by what was wrong with them.")]
    skipped: Annotated[dict[str, int], doc("Records that no table needs, by kind.")]
    unread: NotRequired[Annotated[dict[str, int], doc("Events of kinds that are not read, by kind.")]]
    lost_bytes: NotRequired[Annotated[dict[str, int], doc("Bytes of dropped records, by what was wrong with them.")]]
    places: NotRequired[Annotated[dict[str, str], doc("Where the first of them is, by what was wrong.")]]
    notes: Annotated[list[str], doc("What was inferred while reading.")]
    note_codes: NotRequired[Annotated[list[str], doc("What each of the notes is about.")]]


class DirectionInfo(TypedDict):
    """What one data centre sends to another in a step."""

    src_dc: Annotated[str, doc("Sending data centre.")]
    dst_dc: Annotated[str, doc("Receiving data centre.")]
    messages: Annotated[int, doc("How many.")]
    payload_bytes: Annotated[int | None, doc("Bytes of all of them; null if unknown.")]


class CrossingInfo(TypedDict):
    """What crosses data centres in a step."""

    map: Annotated[str, doc("The map of data centres, as it was given.")]
    map_counts: Annotated[str, doc("What it names.")]
    step: Annotated[int | None, doc("Step number; null if all of the capture is counted.")]
    dcs: Annotated[dict[str, list[int]], doc("Global ranks of each data centre.")]
    directions: Annotated[list[DirectionInfo], doc("From one to another.")]
    messages: Annotated[list[CrossingMessages], doc("By source and destination rank.")]
    collectives: Annotated[list[Collectives], doc("By operation and group.")]


class StandInInfo(TypedDict):
    """A rank that was not recorded."""

    rank: Annotated[int, doc("Global rank.")]
    source: Annotated[int | None, doc("Recorded rank of its stage that stands for it; null if there is none.")]


class StageStandInsInfo(TypedDict):
    """A stage of the job that was recorded in part."""

    stage: Annotated[int, doc("Position in the pipelines.")]
    recorded: Annotated[list[int], doc("Its ranks that were recorded.")]
    stand_ins: Annotated[list[StandInInfo], doc("Those that were not.")]
    spread_ratio: Annotated[
        float | None, doc("How much longer the slowest of those recorded computed than the quickest; null if unknown.")
    ]
    slower_chance: Annotated[
        float | None, doc("How likely one that was not is slower than all of them; null if none was recorded.")
    ]


class SummaryInfo(TypedDict):
    """What a Run holds: result of tracetool info and ingest."""

    run: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    schema_version: Annotated[str, doc("Version of the Run's tables.")]
    tool_version: Annotated[str, doc("Version of tracetool that wrote it.")]
    world_size: Annotated[int, doc("Ranks in the job, as far as the traces tell.")]
    missing_ranks: Annotated[list[int], doc("Global ranks that were not recorded.")]
    ranks: Annotated[list[RecordedRankInfo], doc("Those that were.")]
    events: Annotated[int, doc("Events of all ranks.")]
    kernels: Annotated[int, doc("Device kernels among them.")]
    span_ns: Annotated[int, doc("From the first event to the end of the last one.")]
    comms: Annotated[int, doc("Communication operations.")]
    sends_and_receives: Annotated[int, doc("Sends and receives among them.")]
    without_peer: Annotated[int, doc("Those of them whose other side is unknown.")]
    steps: Annotated[list[int], doc("Numbers of the steps that are marked.")]
    memory_rows: Annotated[int, doc("Records of the allocator.")]
    vendor_bubble: Annotated[list[VendorBubbleInfo], doc("Ascend's own Bubble beside ours.")]
    findings: list[Annotated[dict[str, Any], row_of(FINDINGS)]]
    coordinates: list[Annotated[dict[str, Any], row_of(COORDINATES)]]
    step_facts: list[Annotated[dict[str, Any], row_of(STEP_FACTS)]]
    pipeline: ObservedPipelineInfo
    slow_ranks: Annotated[
        list[SlowRankInfo], doc("Slowest first, by more than counts as a change; of several pipelines.")
    ]
    replayed: Annotated[ReplayedRunInfo | None, doc("Null if the Run has the observed Timeline alone.")]
    vendor_figures: Annotated[int, doc("Figures of a vendor's analysis.")]
    host_gaps: Annotated[list[HostGapInfo], doc("Of the observed step; empty without kernels.")]
    exposed_collectives: Annotated[list[ExposedInfo], doc("Within its actions; most exposed first.")]
    gaps: Annotated[list[Gap], doc("What later steps will miss.")]
    stand_ins: Annotated[list[StageStandInsInfo], doc("Who stands for ranks that were not recorded; by stage.")]
    sources: Annotated[list[SourceFactsInfo], doc("What was read.")]
    failed: Annotated[list[LeftInfo], doc("What could not be read.")]
    left: Annotated[list[LeftInfo], doc("What was left.")]
    cross_dc: NotRequired[
        Annotated[CrossingInfo | None, doc("What crosses data centres; null without a map, absent from ingest.")]
    ]


def stand_ins_of(run: Run) -> list[StageStandIns]:
    """Who stands for ranks of a Run that were not recorded."""
    if not run.manifest["missing_ranks"]:
        return []
    return find_stand_ins(run, read_coordinates(run))


def stand_in_lines(run: Run) -> list[str]:
    """Who stands for ranks that were not recorded, and of how many even the place is unknown."""
    missing = set(run.manifest["missing_ranks"])
    if not missing:
        return []
    stages = stand_ins_of(run)
    unplaced = missing.difference(one.rank for stage in stages for one in stage.stand_ins)
    nowhere = f"{format_count(len(unplaced), 'rank')} not recorded: no process group tells their places"
    return [*(stage.text for stage in stages), *([nowhere] if unplaced else [])]


def _stand_ins_info(stage: StageStandIns) -> StageStandInsInfo:
    return {
        "stage": stage.stage,
        "recorded": list(stage.recorded),
        "stand_ins": [{"rank": one.rank, "source": one.source} for one in stage.stand_ins],
        "spread_ratio": stage.spread_ratio,
        "slower_chance": stage.slower_chance,
    }


def own_notes(run: Run, *codes: NoticeCode) -> list[str]:
    """What was noted of the pipeline, of these codes, or all but what was noted of its sources while they were read."""
    observed = run.manifest.get("reconstruction", {})
    noted = zip_longest(
        observed.get("notes", ()), observed.get("note_codes", ())
    )  # no codes in Runs of earlier versions
    names = {code.name for code in codes or NoticeCode}
    return [note for note, code in noted if code in names or (code is None and not codes)]


def run_summary(run: Run) -> SummaryInfo:
    """Everything about a Run that a user should know before using its numbers."""
    counts = count_tables(run)
    observed = run.manifest.get("reconstruction", {})
    step = observed.get("step")
    acting = _acting(run)
    return {
        "run": run.name,
        "digest": run.manifest["digest"],
        "schema_version": run.manifest["schema_version"],
        "tool_version": run.manifest["tool_version"],
        "world_size": run.manifest["world_size"],
        "missing_ranks": run.manifest["missing_ranks"],
        "ranks": _ranks(run, counts),
        "events": counts.sum("events"),
        "kernels": counts.sum("kernels"),
        "span_ns": counts.span_ns,
        "comms": counts.comms.operations,
        "sends_and_receives": counts.comms.messages,
        "without_peer": counts.comms.without_peer,
        "steps": counts.steps,
        "memory_rows": counts.memory,
        "vendor_bubble": cast("list[VendorBubbleInfo]", run.records(_BUBBLES_SQL, {"step": step})),
        "findings": run.records("SELECT * FROM findings"),
        "coordinates": [row._asdict() for row in read_coordinates(run)],
        "step_facts": run.records("SELECT * FROM step_facts ORDER BY start_ns"),
        "pipeline": {
            "step": step,
            "notes": observed.get("notes", []),
            "missing": observed.get("missing"),
            "hint": observed.get("hint"),
            "stages": run.records("SELECT * FROM stages ORDER BY stage"),
        },
        "slow_ranks": [cast("SlowRankInfo", slow._asdict()) for slow in slow_ranks(run)],
        "replayed": run.manifest.get("replayed"),
        "vendor_figures": run.count("vendor_figures"),
        "host_gaps": _host_gaps(acting, step),
        "exposed_collectives": _exposed_collectives(acting),
        "gaps": find_gaps(run, counts),
        "stand_ins": [_stand_ins_info(stage) for stage in stand_ins_of(run)],
        "sources": run.manifest["sources"],
        "failed": run.manifest["failed"],
        "left": run.manifest["left"],
    }


def _ranks(run: Run, counts: Counts) -> list[RecordedRankInfo]:
    recorded = run.records("SELECT rank, host, device_name, hbm_bytes FROM ranks ORDER BY rank")
    kernels = {rank: each.kernels for rank, each in counts.events.items()}
    return [cast("RecordedRankInfo", row | {"kernels": kernels.get(row["rank"], 0)}) for row in recorded]


_EXPOSED_SQL = """
SELECT
    parallelism, operation, is_fused, sum(operations)::BIGINT AS operations, sum(duration_ns)::BIGINT AS duration_ns,
    sum(own_ns)::BIGINT AS own_ns, sum(exposed_ns)::BIGINT AS exposed_ns, sum(tail_ns)::BIGINT AS tail_ns,
    arg_max(stage, coalesce(exposed_ns, duration_ns)) AS stage,
    arg_max(kind, coalesce(exposed_ns, duration_ns)) AS kind,
    arg_max(layer, coalesce(exposed_ns, duration_ns)) AS layer,
    coalesce(bool_or(own_is_bound), false) AS own_is_bound
FROM overlap_by_layer
LEFT JOIN (SELECT operation, bool_or(upper_bound) AS own_is_bound FROM waits GROUP BY operation) USING (operation)
WHERE stage IS NOT NULL
GROUP BY ALL ORDER BY exposed_ns DESC NULLS LAST, operation
"""


def _acting(run: Run) -> Run | None:
    """A Run of the ranks that have actions, as others need not be gone through; None if there are none."""
    ranks = [rank for (rank,) in run.rows("SELECT DISTINCT rank FROM kernel_actions")]
    return run.of_ranks(ranks) if ranks else None


def _exposed_collectives(acting: Run | None) -> list[ExposedInfo]:
    """Collectives within the actions of the chosen step, and fused kernels; empty where a Run has none."""
    return [] if acting is None else cast("list[ExposedInfo]", acting.records(_EXPOSED_SQL))


_GAPS_SQL = """
WITH exposed AS (SELECT stage, kind, sum(exposed_ns) AS exposed_ns FROM overlap_by_layer GROUP BY ALL)
SELECT stage, kind, sum(duration_ns), sum(kernel_ns) + coalesce(any_value(exposed_ns), 0)
FROM costs LEFT JOIN exposed USING (stage, kind)
WHERE step = ? AND EXISTS (SELECT 1 FROM events WHERE category = 'kernel') AND NOT EXISTS (
    SELECT 1 FROM findings WHERE fact = 'launches' AND subject IN ('all', 'rank ' || costs.rank))
GROUP BY ALL
"""
"""Who waits in a collective for another rank waits for no host."""


def _host_gaps(acting: Run | None, step: int | None) -> list[HostGapInfo]:
    """Share of gaps between kernels in the actions of the chosen step, where costs hold them; none without kernels."""
    shares = {} if acting is None else gap_shares(acting.rows(_GAPS_SQL, [step]))
    return [{"stage": stage, "kind": kind, "gap_ratio": share} for (stage, kind), share in shares.items()]
