"""A report: what ``tracetool replay --json`` writes, and compare and histories read.

The structs below are the schema: ``schemas/report.schema.json`` is made from them. Keys may be added
within a major version; none is renamed or removed.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tracetool.causes.cause import IN_WINDOW
from tracetool.ingestion.recording import Recording  # noqa: TC001 - msgspec reads it
from tracetool.tables.fields import EMPTY, Head, SchemaId, WithFigures, doc, fields_of, per_rank
from tracetool.tables.metrics import IN_REPORTS, OF_RANK, OF_REPLAY

REPORT_SCHEMA = "urn:tracetool:schema:1:report"

_BY_CAUSE = "Idle time by cause; per rank the causes sum to window minus compute. " + " ".join(
    f"{cause.value}: {cause.words.meaning}" for cause in IN_WINDOW
)


class IdleInfo(msgspec.Struct, kw_only=True):
    """Idle time within the window that one cause has."""

    mean_ns: Annotated[int, doc("Mean over ranks, rounded so that all causes sum to bubble_ns.")]
    rank_ns: Annotated[list[int], doc("Per pipeline rank.")]


class RunInfo(msgspec.Struct, kw_only=True):
    """The traces."""

    name: Annotated[str, doc("What the user named.")]
    digest: Annotated[str, doc("SHA-256 over the traces' content.")]
    global_ranks: Annotated[list[int], doc("Global rank of each pipeline rank.")]


class StepInfo(WithFigures, kw_only=True):
    """The observed step."""

    number: Annotated[int, doc("Step number in the trace.")]
    schedule: Annotated[str | None, doc("Name of the observed order, null if it is none that is known.")]
    __annotations__.update(fields_of("p2p"))
    stages: Annotated[int, doc("Pipeline stages.")]
    ranks: Annotated[int, doc("Pipeline ranks.")]
    __annotations__.update(fields_of("microbatches", *IN_REPORTS) | per_rank(*OF_RANK))
    overhead_bytes = EMPTY
    bubble_by_cause_ns: Annotated[dict[str, IdleInfo], doc(_BY_CAUSE)]


class JitterInfo(msgspec.Struct, kw_only=True):
    """Step times of replays with costs drawn anew from the measured microbatches (--jitter)."""

    seed: Annotated[int | None, doc("Of the draws; null in reports of earlier versions.")] = None
    resamples: Annotated[int, doc("How many.")]
    p50_ns: Annotated[int, doc("Median step time.")]
    p95_ns: Annotated[int, doc("Step time that one in twenty exceeds.")]


class FidelityInfo(msgspec.Struct, kw_only=True):
    """How well replay of the observed order gives back the observed pipeline window."""

    observed_ns: Annotated[int, doc("Observed pipeline window.")]
    replayed_ns: Annotated[int, doc("Replayed pipeline window.")]
    error_ratio: Annotated[float, doc("Replayed over observed without ``profiler_ns``, minus one.")]
    profiler_ns: Annotated[
        int, doc("How much of the observed window the profiler's own work held up; replay leaves it out.")
    ] = 0


class LinkInfo(msgspec.Struct, kw_only=True):
    """One direction between two data centres."""

    src_dc: Annotated[str, doc("Sending data centre.")]
    dst_dc: Annotated[str, doc("Receiving data centre.")]
    bandwidth_bytes_per_s: Annotated[int, doc("Bandwidth.")]
    latency_ns: Annotated[int, doc("One-way latency.")]


class RankPlaceInfo(msgspec.Struct, kw_only=True):
    """Where a rank of the job sits."""

    rank: Annotated[int, doc("Global rank.")]
    dc: Annotated[str, doc("Its data centre.")]


class TierInfo(msgspec.Struct, kw_only=True):
    """One tier of a network."""

    name: Annotated[str, doc("What it is called.")]
    size: Annotated[int, doc("Devices that it joins.")]
    bandwidth_bytes_per_s: Annotated[int, doc("Of what shares it, in one direction; of a measured one the largest.")]
    latency_ns: Annotated[int, doc("One way.")]
    shared_by: Annotated[str, doc("What has the bandwidth: device, group or pair.")]
    oversubscription: Annotated[float, doc("Bandwidth of a group's ports over that of its uplink.")]
    connections: Annotated[int, doc("Connections that fill it.")]
    rail_only: Annotated[bool, doc("Whether it joins devices of the same number in their innermost groups alone.")]
    times: Annotated[list[tuple[int, int]], doc("Measured messages, bytes and ns; empty of one bandwidth.")]
    collective_blocks: Annotated[int, doc("Thread blocks that a collective over it holds; 0 if that is not known.")] = 0


class RunByInfo(msgspec.Struct, kw_only=True):
    """How the collectives of a group run, where that was asked for."""

    devices: Annotated[list[int], doc("Devices of the group.")]
    algorithm: Annotated[str, doc("ring, tree, halving, hierarchical, direct or forwarded.")]


class NetworkInfo(msgspec.Struct, kw_only=True):
    """A network, and where the job is on it."""

    name: Annotated[str, doc("What it is called.")]
    tiers: Annotated[list[TierInfo], doc("From the inside out.")]
    devices: Annotated[list[int], doc("Device of each pipeline rank.")]
    beside: Annotated[list[list[int]], doc("The same of each pipeline that shares the network.")]
    rank_devices: Annotated[dict[str, int], doc("Device of each global rank.")]
    run_by: Annotated[list[RunByInfo], doc("How collectives run; those of other groups by the fastest way.")]


class ScenarioInfo(msgspec.Struct, kw_only=True):
    """What differs from the measurement: all of it that the version which wrote it knew of."""

    dcs: Annotated[list[str], doc("Data centre of each pipeline rank; empty if nothing was said.")]
    links: Annotated[list[LinkInfo], doc("Links between data centres.")]
    hbm_bytes: Annotated[int | None, doc("Memory limit per rank.")]
    p2p: Annotated[str | None, doc("p2p mode asked for, null if left to the trace.")]
    activation_bytes: Annotated[int | None, doc("Activation bytes asked for, null if measured.")]
    static_bytes: Annotated[int | None, doc("Static bytes asked for, null if measured.")]
    overlap_ratio: Annotated[float, doc("Time of a forward and backward run as one over the sum of both alone.")]
    interference: Annotated[bool, doc("Whether slowdown beside communication and under load is modelled.")]
    pipelines: Annotated[int, doc("Equal pipelines that share the links.")]
    link_sharing: Annotated[str, doc("How they share them: temporal or spatial.")]
    microbatches: Annotated[
        int | UnsetType | None, doc("Microbatches per step asked for, null if as in the trace.")
    ] = UNSET
    rank_dcs: Annotated[
        list[RankPlaceInfo] | UnsetType,
        doc("Ranks of the job that the map places: which collectives cross data centres."),
    ] = UNSET
    network: Annotated[
        NetworkInfo | UnsetType,
        doc("The network that lies between ranks; data centres are its innermost groups then, links what they pass."),
    ] = UNSET
    partial: Annotated[
        bool | UnsetType, doc("Whether places that no link joins exchange messages as fast as was measured.")
    ] = UNSET


class TakenInfo(msgspec.Struct, kw_only=True):
    """What was not measured where it is used."""

    costs_from: Annotated[
        str | UnsetType | None, doc("Digest of the recording that slowdown beside communication was taken from.")
    ] = UNSET
    memory_from: Annotated[
        str | UnsetType | None, doc("Digest of the recording that memory figures were taken from.")
    ] = UNSET
    copied_ranks: Annotated[dict[int, int] | UnsetType, doc("Per rank that was not recorded, the rank copied.")] = UNSET
    copied_spread_ratio: Annotated[
        float | None, doc("How far recorded ranks of their stages are apart; null without copies, or if unknown.")
    ] = None


_TAKEN = {f"--{member.replace('_', '-')}": member for member in ("costs_from", "memory_from")}
"""What may be taken from another recording, as histories digest it, and its member."""


class ChoiceInfo(msgspec.Struct, kw_only=True):
    """What was asked of one schedule; null where it was left to be chosen, or the schedule does not heed it."""

    extra_forwards: Annotated[list[int] | UnsetType | None, doc("Warm-up forwards per rank beyond 1F1B's.")] = UNSET
    chunks: Annotated[int | UnsetType | None, doc("Stages per rank to cut one into.")] = UNSET
    time_limit_s: Annotated[float | UnsetType | None, doc("How long a search may take.")] = UNSET
    order: Annotated[str | UnsetType | None, doc("SHA-256 of an order read from a file.")] = UNSET


class ShortageInfo(msgspec.Struct, kw_only=True):
    """How the memory limit is exceeded."""

    rank: Annotated[int, doc("Pipeline rank that lacks most.")]
    missing_bytes: Annotated[int, doc("Bytes it needs beyond the limit.")]
    first_rank: Annotated[int, doc("Pipeline rank that exceeds the limit first.")]
    first_ns: Annotated[int, doc("When it does, from the start of the pipeline window.")]
    first_action: Annotated[
        str | None,
        doc("Its action then, such as 0F3, or OPTIMIZER; null: what it holds before its first is too much."),
    ]


class EachStepInfo(WithFigures, kw_only=True):
    """A result by what one recorded step took (--each-step)."""

    number: Annotated[int, doc("Step number in the trace.")]
    __annotations__.update(fields_of(*OF_REPLAY))


class AlikeTimesInfo(msgspec.Struct, kw_only=True):
    """What pipelines that are alike take among the others of the job, at most."""

    numbers: Annotated[list[int], doc("Their numbers: pipelines are counted by their lowest rank.")]
    __annotations__.update(fields_of("window_ns", "step_ns"))


class SlowestInfo(msgspec.Struct, kw_only=True):
    """What sets the step where all pipelines of the job are replayed together."""

    pipeline: Annotated[int, doc("Number of the pipeline, which the metrics are of.")]
    global_ranks: Annotated[list[int], doc("Its ranks, in pipeline order.")]
    rank: Annotated[
        int | None, doc("Global rank, of it or of one as slow, whose kernels stand out as slow; null if none does.")
    ]
    rank_slower_ratio: Annotated[
        float | None, doc("How much longer they took than those of the other ranks of its stage.")
    ]
    alike: Annotated[list[AlikeTimesInfo], doc("What pipelines of each kind take.")]


class AlikeInfo(msgspec.Struct, kw_only=True):
    """Pipelines of a job that are alike."""

    numbers: Annotated[list[int], doc("Their numbers; the costs of the first stand for all.")]
    apart_ratio: Annotated[float, doc("How far costs of a rank are from those of the first one's, at most.")]


class PipelinesInfo(msgspec.Struct, kw_only=True):
    """The pipelines side by side of a job."""

    alike: Annotated[list[AlikeInfo], doc("Those recorded whole, by kind.")]
    left_out: Annotated[list[int], doc("Numbers of those that were not recorded whole.")]
    joined: Annotated[bool, doc("Whether they are replayed together; else the first one by itself.")]


class ResultInfo(WithFigures, kw_only=True):
    """One schedule in the scenario."""

    __annotations__ = fields_of("schedule", "extra_forwards", "p2p", "microbatches", "feasible")
    shortage: Annotated[ShortageInfo | None, doc("How it does not fit.")]
    __annotations__.update(fields_of(*OF_REPLAY) | per_rank(*OF_RANK))
    bubble_reduction: Annotated[float | None, doc("1 - bubble_ns / the baseline's; null if that is 0.")]
    cross_dc_bubble_reduction: Annotated[float | None, doc("The same for cross_dc_bubble_ns.")]
    __annotations__.update(fields_of("cross_dc_step_ns"))
    cross_dc_step_ns = None
    __annotations__.update(fields_of("seen_error_ratio", "step_change_ratio", "step_change_error_ratio"))
    step_change_ratio = step_change_error_ratio = None
    bubble_by_cause_ns: Annotated[dict[str, IdleInfo], doc(_BY_CAUSE)]
    __annotations__.update(fields_of("evidence", "rests_on", "remark"))
    evidence, rests_on = "measured", EMPTY
    jitter: Annotated[JitterInfo | None, doc("Spread of the step time, null if it was not asked for.")]
    each_step: Annotated[
        list[EachStepInfo],
        doc("The same by each recorded step, for tracetool compare; empty unless asked for."),
    ] = EMPTY
    choice: ChoiceInfo = msgspec.field(default_factory=ChoiceInfo)
    slowest: Annotated[
        SlowestInfo | None, doc("What sets the step among all pipelines; null where one is replayed by itself.")
    ] = None

    def by_step(self, metric: str, looked_at: int) -> dict[int, float]:
        """A metric of the step by each recorded step, in order of time, by the step's number.

        Args:
            metric: Its name.
            looked_at: Number of the step that the result itself is of.
        """
        others: dict[int, float] = {one.number: getattr(one, metric) for one in self.each_step}
        return others | {looked_at: getattr(self, metric)}

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked of it, as far as the version that wrote it knew of it."""
        choice: dict[str, Any] = msgspec.to_builtins(self.choice)
        return choice

    @property
    def chosen(self) -> dict[str, Any]:
        """What was asked of it alone, without what was left to be chosen."""
        return {name: value for name, value in self.asked.items() if value is not None}

    @property
    def variant(self) -> str:
        """How it ran, as in ``+2,2,0,0 in-order``."""
        depth = "+" + ",".join(map(str, self.extra_forwards)) if self.extra_forwards else ""
        return f"{depth} {self.p2p}".strip()


class NearInfo(WithFigures, kw_only=True):
    """A schedule that comes near the one to run."""

    __annotations__ = fields_of("schedule", "extra_forwards", "p2p", "feasible", "step_ns")
    change_ratio: Annotated[float, doc("Its step over the baseline's, minus one.")]
    __annotations__.update(fields_of("change_error_ratio", "seen_error_ratio", "evidence", "rests_on"))


class BestInfo(NearInfo, kw_only=True):
    """The schedule to run, by the rule that advise and sweep have; where none fits, the one that lacks least."""

    as_good: Annotated[list[NearInfo], doc("As sure, with steps that differ by no more than the error.")] = EMPTY
    unproven: Annotated[
        list[NearInfo], doc("Shorter, but predictions rest on less; the shortest of each schedule.")
    ] = EMPTY


class RefusedInfo(msgspec.Struct, kw_only=True):
    """A schedule that was asked for and does not fit."""

    schedule: Annotated[str, doc("Name of the schedule.")]
    reason: Annotated[str, doc("Why it cannot be replayed.")]
    hint: Annotated[str | None, doc("What to do about it.")]


class ReportInfo(Head, kw_only=True):
    """Result of tracetool replay."""

    schema: SchemaId = REPORT_SCHEMA
    run: RunInfo
    step: StepInfo
    fidelity: FidelityInfo
    scenario: ScenarioInfo
    taken: TakenInfo = msgspec.field(default_factory=TakenInfo)
    pipelines: Annotated[
        PipelinesInfo | None, doc("Pipelines side by side; null where there is one, or nobody looked.")
    ] = None
    baseline: Annotated[ResultInfo, doc("The schedule that the results are compared with.")]
    results: Annotated[list[ResultInfo], doc("One per schedule asked for that fits.")]
    best: Annotated[BestInfo | None, doc("What to run of baseline and results; null if none fits.")] = None
    refused: Annotated[list[RefusedInfo], doc("Schedules asked for that do not fit, and why.")]
    warnings: Annotated[list[str], doc("Why not to trust any of it.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]
    recording: Annotated[
        Recording | None, doc("What every step measured, for tracetool compare; null where the Run keeps none.")
    ] = None

    @property
    def asked(self) -> dict[str, Any]:
        """The what-if, and what was taken from other recordings, as far as the version that wrote it knew of it.

        As many microbatches as were recorded are none asked for.
        """
        given = {flag: getattr(self.taken, member) for flag, member in _TAKEN.items()}
        # Files of before these members say it in their notes alone.
        noted = [
            flag
            for flag, digest in given.items()
            if (any(note.startswith(flag) for note in self.notes) if digest is UNSET else digest is not None)
        ]
        replayed = (*self.results, self.baseline)[0].microbatches
        return {
            **msgspec.to_builtins(self.scenario),
            **msgspec.to_builtins(self.taken, str_keys=True),
            "microbatches": None if replayed == self.step.microbatches else replayed,
            "taken": noted,
        }
