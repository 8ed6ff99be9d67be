"""What a user should know beside the numbers: how they came about, what they leave out, what is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

from tracetool.costs.borrowed import layers_of_stages
from tracetool.costs.measured import WEIGHT_SUMS_RATIO
from tracetool.costs.over_links import crossing_uses, over_links, pipelines_joined, places_of
from tracetool.costs.recut import ends_of
from tracetool.errors import Option, ScenarioError
from tracetool.model.action import ActionKind
from tracetool.model.notice import Notice, NoticeCode, Notices, SubjectKind
from tracetool.model.pipeline import P2P_MODES
from tracetool.reconstruction.closeup.slowdown import gaps_of, notes_on_gaps
from tracetool.replays.evaluation import evaluate
from tracetool.schedules import tuning_of
from tracetool.tables.results import POSTED_AHEAD_NEEDS
from tracetool.units import format_duration, format_size
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.memory_limit import PEAK_ERROR_RATIO, is_near_the_limit

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode, Pipeline, StageProfile
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Metrics
    from tracetool.model.topology import Topology
    from tracetool.reconstruction import Reconstruction
    from tracetool.replays import Replayed
    from tracetool.whatif.results import Result


def derived_remarks(pipeline: Pipeline, schedule: Schedule, metrics: Metrics, scenario: Scenario) -> list[Notice]:
    """What of a result comes from halves of backwards that ran as one."""
    halves = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
    shape = schedule.shape
    used = {a.stage for order in schedule.orders for a in order if a.kind in halves}
    apart = [shape.profile_of(s) for s in sorted(used) if shape.previous(s) is not None]

    def derived(source: Pipeline) -> list[StageProfile]:
        return [source.stages[s] for s in apart if not all(kind in source.stages[s].costs for kind in halves)]

    if not derived(pipeline):
        return []
    remarks = Notices()
    remarks.add(
        NoticeCode.HALVES_DERIVED,
        "input and weight gradients are told apart by kernels: the trace ran them as one; those of weights take "
        f"{WEIGHT_SUMS_RATIO:.0%} more for what torch sums ahead of them when it runs them apart",
    )
    of_memory = derived(pipeline.memory_source)
    if scenario.activation_bytes is None and None not in metrics.peak_hbm_bytes and of_memory:
        remarks.add(
            NoticeCode.MEMORY_OF_HALVES,
            "memory as torch's split would hold it: I keeps activations and gradients for W (within 3 % on recordings)",
        )
    elif _has_memory(pipeline) and any(
        cost.held_bytes is None for profile in of_memory for costs in profile.derived.values() for cost in costs
    ):
        remarks.add(
            NoticeCode.MEMORY_UNKNOWN,
            "memory unknown: the allocator's log does not tell what the input half would keep for the weight half",
        )
    return remarks


def _has_memory(pipeline: Pipeline) -> bool:
    """Whether the trace tells what every rank and every action that ran holds."""
    source = pipeline.memory_source
    return all(rank.static_bytes is not None for rank in source.ranks) and all(
        cost.held_bytes is not None for s in source.stages for costs in s.costs.values() for cost in costs
    )


def memory_remarks(measured: Pipeline, cut: Pipeline, metrics: Metrics) -> list[Notice]:
    """How memory came about, or why it is unknown though it was recorded, where cutting moved the ends of the model."""
    source, here = measured.memory_source, cut.memory_source
    if cut is measured or not _has_memory(measured):
        return []
    if None not in metrics.peak_hbm_bytes:
        if ends_of(source.observed.shape) == ends_of(here.observed.shape):
            return []
        ends = " and ".join(map(str, ends_of(here.observed.shape)))
        return [
            Notice(
                NoticeCode.ENDS_MOVED,
                f"embedding and head sit on ranks {ends}: what they hold at rest is what the ranks that had them held "
                "beyond those between (within 2 % of what torch's ZB-V holds)",
            )
        ]
    if all(rank.static_bytes is not None for rank in here.ranks):
        return []
    why = (
        "the recording that it is from does not tell layers, so it cannot be re-cut"
        if any(stage.layers is None for stage in source.stages)
        else f"{_why_unknown(source)}, so what ranks hold at rest is not known"
    )
    return [Notice(NoticeCode.MEMORY_UNKNOWN, f"memory unknown: {why}")]


def _why_unknown(source: Pipeline) -> str:
    """Why what ranks of other stages hold at rest cannot be told."""
    if len(set(layers_of_stages(source))) > 1:
        return "ranks hold other layers than in the trace, where stages have different numbers of them"
    if any(rank.receive_buffer_bytes is None for rank in source.ranks):
        return "embedding and head move to other ranks, and the trace does not tell buffers of received messages"
    return "embedding and head move to other ranks, and the trace has no rank with layers alone to tell their share"


def overlap_remarks(schedule: Schedule, scenario: Scenario) -> list[Notice]:
    """What of a result hangs on the time of two actions that run as one."""
    if not any(schedule.overlaps):
        return []
    share = "as long as" if scenario.overlap_ratio == 1 else f"{scenario.overlap_ratio:g} times"
    return [
        Notice(
            NoticeCode.OVERLAP_ASSUMED,
            f"a forward and a backward that run as one take {share} both alone ({Option.OVERLAP_RATIO})",
        )
    ]


@dataclass(frozen=True, eq=False)
class ResultRemarks(Sequence[Notice]):
    """Remarks of a result, those on its transfers found when first read: they take replays, and few results are shown.

    Attributes:
        known: The others.
        pipeline: What was measured.
        done: The replay.
        step_ns: Its step.
        scenario: The what-if.
    """

    known: tuple[Notice, ...]
    pipeline: Pipeline
    done: Replayed
    step_ns: int
    scenario: Scenario

    @cached_property
    def _all(self) -> tuple[Notice, ...]:
        return (*self.known, *_transfer_remarks(self.pipeline, self.done, self.step_ns, self.scenario))

    @overload
    def __getitem__(self, place: int) -> Notice: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Notice, ...]: ...
    def __getitem__(self, place: int | slice) -> Notice | tuple[Notice, ...]:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all)


def order_of_untuned(pipeline: Pipeline, done: Replayed) -> str | None:
    """The schedule whose order a tuned one has where it was given nothing, and only its transfers are others."""
    extra = done.schedule.extra_forwards
    if not extra or any(extra) or done.p2p == pipeline.p2p:
        return None
    tuning = tuning_of(done.schedule.name)
    return None if tuning is None else tuning.untuned


def _transfer_remarks(pipeline: Pipeline, done: Replayed, shortest_ns: int, scenario: Scenario) -> list[Notice]:
    """What of a result comes from how its transfers are issued."""
    remarks = Notices()
    schedule = done.schedule
    if (plain := order_of_untuned(pipeline, done)) is not None:
        remarks.add(
            NoticeCode.ORDER_OF_UNTUNED,
            f"this is {plain.upper()}'s order: what differs from {plain} comes from how transfers are issued",
            subject=SubjectKind.SCHEDULE(plain),
        )
    if pipeline.hosts_wait and pipeline.p2p == "grouped" != done.p2p:
        remarks.add(
            NoticeCode.HOSTS_RUN_AHEAD,
            "hosts run ahead there, and do not wait for their devices after each batch as in the recording",
        )
    if done.p2p == "posted-ahead" != pipeline.p2p:
        remarks.add(NoticeCode.POSTED_AHEAD, f"receives posted ahead take {POSTED_AHEAD_NEEDS}")
    if schedule.blocking or not (scenario.topology.links or done.p2p == "grouped"):
        return remarks
    for mode, (how, needs) in _LESS_WAITING.items():
        if P2P_MODES.index(mode) <= P2P_MODES.index(done.p2p):
            continue
        step_ns = evaluate(pipeline, schedule, replace(scenario, p2p=mode)).metrics.step_ns
        if step_ns < (1 - RELEVANT_RATIO) * shortest_ns:
            remarks.add(
                NoticeCode.LESS_WAITING,
                f"{how} ({Option.P2P(mode)}) the step would be {format_duration(step_ns)}{needs}",
            )
            shortest_ns = step_ns
    return remarks


_LESS_WAITING: dict[P2PMode, tuple[str, str]] = {
    "per-edge": ("with a channel per edge", ""),
    "posted-ahead": ("with receives posted ahead", f": that takes {POSTED_AHEAD_NEEDS}"),
}
"""What is said of transfers that wait less than those replayed, and what they take; the more likely ones first."""


def slowdown_notes(pipeline: Pipeline, *, interference: bool) -> list[Notice]:
    """Whether slowdown is left out; else that of sustained load, where a model of the device is known."""
    if not interference:
        text = f"slowdown beside communication and under sustained load is left out ({Option.INTERFERENCE.off})"
        return [Notice(NoticeCode.INTERFERENCE_OFF, text)]
    text = "compute slows down under sustained load as other H100 and H200 were seen to (up to some 10 %)"
    return [Notice(NoticeCode.LOAD_SLOWS, text)] if any(rank.load is not None for rank in pipeline.ranks) else []


def _beyond_allocations(pipeline: Pipeline) -> list[Notice]:
    """What the HBM limit is compared with."""
    known = [r.overhead_bytes for r in pipeline.memory_source.ranks if r.overhead_bytes is not None]
    if not known:
        return []
    return [
        Notice(
            NoticeCode.ALLOCATIONS,
            f"a rank needs its peak and what it occupied beyond that when recorded (up to {format_size(max(known))}): "
            "what its allocator reserves more than it hands out and, on Ascend, what else the process holds; CUDA's "
            "context and NCCL's buffers are in no torch trace: leave room for them",
        )
    ]


def tier_notes(topology: Topology) -> list[Notice]:
    """Whether nothing of a network is passed: within a group of its innermost tier all is as recorded."""
    if topology.seating is None or len({place for _, place in topology.rank_dcs}) > 1:
        return []
    tier = topology.seating.network.tiers[0].name
    text = f"all ranks sit in one group of tier {tier}, where all is as recorded: its figures change nothing"
    return [Notice(NoticeCode.TIER_UNPASSED, text)]


def notes_of(pipeline: Pipeline, scenario: Scenario, results: Sequence[Result]) -> list[Notice]:
    """What holds for all results of an answer."""
    notes = Notices(tier_notes(scenario.topology))
    if any(r.seen_error_ratio is not None for r in results):
        notes.add(
            NoticeCode.ERRORS_SEEN,
            "±: the largest error of such predictions on this tool's own H100 recordings; behind a change: of the "
            "difference of two, with a margin (~: a change within it; empty: none was like it)",
        )
    marked = dict.fromkeys(reason for r in results if r.evidence == "unproven" for reason in r.rests_on)
    if marked:
        notes.add(
            NoticeCode.UNPROVEN,
            f"± {UNPROVEN_MARK}: unproven, {UNPROVEN_TEXT} ({', '.join(marked)}); record one before you rely on it",
        )
    if any(r.feasible and is_near_the_limit(r.metrics, scenario) for r in results):
        notes.add(NoticeCode.PEAK_NEAR_LIMIT, f"maybe: a peak within {PEAK_ERROR_RATIO:.0%} of the limit")
    if scenario.pipelines_on_link > 1:
        how = "each message the whole bandwidth in turn" if scenario.link_sharing == "temporal" else "each its share"
        notes.add(
            NoticeCode.LINKS_SHARED,
            f"{scenario.pipelines_on_link} equal pipelines share the links, {how}: figures are of the slowest",
        )
    notes += slowdown_notes(pipeline, interference=scenario.interference)
    unchecked = [r.schedule for r in results if r.feasible is None]
    if scenario.hbm_bytes is not None and unchecked:
        given = f"give {Option.ACTIVATION} and {Option.STATIC}"
        recorded = f"{given}, or a recording that tells it (torch: profile_memory=True) as {Option.MEMORY_FROM}"
        is_known = _has_memory(pipeline)
        notes.add(
            NoticeCode.HBM_UNCHECKED,
            f"the HBM limit was not checked for {', '.join(dict.fromkeys(unchecked))} (its remark says why)"
            if is_known
            else "what actions hold in memory is unknown, so the HBM limit was not checked",
            hint=given if is_known else recorded,
        )
    if scenario.hbm_bytes is not None and scenario.static_bytes is None:
        notes += _beyond_allocations(pipeline)
    if scenario.activation_bytes is not None:
        notes.add(
            NoticeCode.GIVEN_MEMORY,
            f"≥: peaks from {Option.ACTIVATION} and {Option.STATIC} leave out transient buffers and gradients",
        )
    device = min((r.hbm_bytes for r in pipeline.ranks if r.hbm_bytes is not None), default=None)
    if scenario.hbm_bytes is not None and device is not None and scenario.hbm_bytes > device:
        notes.add(
            NoticeCode.HBM_ABOVE_DEVICE,
            f"the HBM limit is above what the recorded devices have ({format_size(device)})",
        )
    return notes + collective_notes(pipeline, scenario)


def collective_notes(pipeline: Pipeline, scenario: Scenario) -> list[Notice]:
    """What becomes of collectives whose groups sit in several DCs.

    Args:
        pipeline: Whose they are; where all are replayed together, all of a group's ranks come to them.
        scenario: Where the links are.
    """
    topology, joined = scenario.topology, pipeline.job is not None
    places = places_of(pipeline, topology)
    own = {rank.rank for rank in pipeline.ranks}
    beyond = False
    rescaled: set[tuple[str, int]] = set()
    kept: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for use in crossing_uses(pipeline, topology):
        kind = use.operation, len(use.group_ranks)
        try:
            over_links(use, topology, places)
        except ScenarioError as error:
            kept[error.message].add(kind)
        else:
            rescaled.add(kind)
            beyond |= not joined and not own.issuperset(use.group_ranks)
    notes = Notices(_algorithm_notes(pipeline, topology))
    if rescaled:
        notes.add(
            NoticeCode.COLLECTIVES_RESCALED,
            f"{_kinds(rescaled)} cross DCs and take what rings over the links would (a model that no recording "
            "checked)"
            + ("; ranks of other pipelines are taken to come to them no later than this one's" if beyond else ""),
        )
    awaited = {use for stage in pipeline.stages for uses in stage.collectives.values() for use in uses}
    crossing = awaited.intersection(crossing_uses(pipeline, topology))
    meet = len({use.group_ranks for use in crossing}) > 1  # of several stages
    alone = [
        use
        for use in crossing
        if meet or (scenario.link_sharing == "temporal" and scenario.pipelines_on_link > pipelines_joined(use, own))
    ]
    if alone:
        kinds = {(use.operation, len(use.group_ranks)) for use in alone}
        notes.add(
            NoticeCode.COLLECTIVES_ALONE,
            f"{_kinds(kinds)} that actions wait for have the links to themselves, a lower bound",
        )
    return notes + [
        Notice(
            NoticeCode.COLLECTIVES_KEPT,
            f"{_kinds(kinds)} cross DCs but take what was measured, a lower bound: {why}",
        )
        for why, kinds in kept.items()
    ]


def _algorithm_notes(pipeline: Pipeline, topology: Topology) -> list[Notice]:
    """Whether it was said how collectives run, and none that runs so crosses anything."""
    seating = topology.seating
    named = [devices for devices, algorithm in seating.algorithms if algorithm != "auto"] if seating else []
    if seating is None or not named:
        return []
    device = dict(seating.rank_devices)
    crossing = {
        frozenset(device[rank] for rank in use.group_ranks if rank in device)
        for use in crossing_uses(pipeline, topology)
    }
    if any(devices in crossing for devices in named):
        return []
    text = "no collective of the groups for which an algorithm is named crosses a tier: it changes nothing"
    return [Notice(NoticeCode.ALGORITHM_UNUSED, text)]


def _kinds(kinds: set[tuple[str, int]]) -> str:
    return ", ".join(f"{operation}s over {ranks} ranks" for operation, ranks in sorted(kinds))


def host_notes(recording: Reconstruction) -> list[Notice]:
    """Where the host holds the device back and costs hold it; a run without a device is told apart elsewhere."""
    on_device = any(
        k.stream is not None for of_rank in recording.segments.values() for s in of_rank[:1] for k in s.kernels
    )
    if not on_device:
        return []
    without = {rank.rank for rank in recording.pipeline.ranks if rank.gaps_left_out}
    segments = (s for rank, of_rank in recording.segments.items() if rank not in without for s in of_rank)
    return notes_on_gaps(gaps_of(segments))
