"""What every step of a recording measured, small enough to keep: in a Run, in a report, as a baseline.

``recording.json`` beside the tables of a Run holds it, so that a comparison need not look at kernels again. It can be
deleted: it is made anew from the tables.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import P2P_MODES, ActionCost, Pipeline, RankProfile, StageProfile, TailPart
from tracetool.model.schedule import OBSERVED, schedule_from_orders
from tracetool.model.timeline import measure
from tracetool.reconstruction import record_steps
from tracetool.reconstruction.capture.coordinates import read_coordinates
from tracetool.reconstruction.job import longest_pipelines, sorted_pipelines
from tracetool.store.place import RECORDING
from tracetool.tables.fields import WithFigures, as_struct, doc, fields_of, per_rank
from tracetool.tables.metrics import OF_RANK, OF_STEP
from tracetool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.reconstruction.job import LongestPipelines
    from tracetool.reconstruction.recorded_step import RecordedStep
    from tracetool.store.run import Run

RECORDING_VERSION = 1
MOST_STEPS = 8
"""So many steps are looked at where none are kept: as many as ingest keeps."""


class CollectiveRecord(msgspec.Struct, kw_only=True):
    """A collective that actions of a stage and kind wait for."""

    operation: Annotated[str, doc("Its name, as the trace has it.")]
    group_ranks: Annotated[list[int], doc("Global ranks of its group.")]
    payload_bytes: Annotated[int | None, doc("Bytes of the whole tensor; null if unknown.")]
    own_ns: Annotated[int, doc("Its median time, without waits for the last of those that were recorded.")]
    count: Annotated[float, doc("How many of them an action waits for, on average.")]


class ActionRecord(msgspec.Struct, kw_only=True):
    """Costs of one kind of action on one stage, in order of microbatch."""

    duration_ns: Annotated[list[int], doc("Compute time: kernels and the launch gaps between them.")]
    held_bytes: Annotated[list[int | None], doc("Memory allocated at its end minus at its start; empty if unknown.")]
    peak_bytes: Annotated[list[int | None], doc("Highest allocation above the level at its start; empty if unknown.")]
    beside_ns: Annotated[
        list[int], doc("For how much of it a communication kernel ran beside its kernels; empty if not looked at.")
    ] = []
    kernels: Annotated[int | None, doc("Compute kernels of one: their median number; null if not looked at.")] = None
    collectives: Annotated[
        list[CollectiveRecord] | None,
        doc("Those that its time holds, with no compute beside them; null if not looked at."),
    ] = None


class MessageRecord(msgspec.Struct, kw_only=True):
    """Messages that leave a stage in one direction."""

    transfer_ns: Annotated[int, doc("Median time once both sides are ready.")]
    each_ns: Annotated[list[int], doc("That time of each message, in order of microbatch.")]
    payload_bytes: Annotated[int | None, doc("Bytes of one; null if they differ or are unknown.")]


class TailRecord(msgspec.Struct, kw_only=True):
    """A part of what a rank does after its last compute."""

    kind: Annotated[str, doc("REDUCE_GRAD or OPTIMIZER.")]
    duration_ns: Annotated[int, doc("Its time, without waits for other ranks.")]
    meet: Annotated[str | None, doc("Collective that opens it; null for none.")] = None


class RankRecord(msgspec.Struct, kw_only=True):
    """What belongs to a pipeline rank as a whole."""

    static_bytes: Annotated[int | None, doc("Allocated when the step starts; null if unknown.")]
    tail_peak_bytes: Annotated[int, doc("Highest allocation after the last action, above the level at its end.")]
    receive_buffer_bytes: Annotated[int | None, doc("Of the static bytes, buffers of messages to receive.")]
    tail: Annotated[list[TailRecord], doc("What follows its last compute.")]


class StepRecord(WithFigures, kw_only=True):
    """One complete step as it was recorded."""

    number: Annotated[int, doc("Step number in the trace.")]
    __annotations__.update(fields_of(*OF_STEP) | per_rank(*OF_RANK))
    order: Annotated[int, doc("Which of the recording's orders it ran.")]
    p2p: Annotated[str, doc("How its transfers were issued.")]
    buffered: Annotated[bool, doc("Whether sends ended before their receives started.")]
    actions: Annotated[dict[str, ActionRecord], doc("Costs by stage and kind, as in 2F.")]
    messages: Annotated[dict[str, MessageRecord], doc("Messages by sending stage and kind, as in 2F.")]
    ranks: Annotated[list[RankRecord], doc("One per pipeline rank.")]


class StageRanksRecord(msgspec.Struct, kw_only=True):
    """The ranks of a job that hold the stages of one pipeline rank."""

    ranks: Annotated[list[int], doc("Global ranks, in order.")]
    replicas: Annotated[list[int | None], doc("Data-parallel place of each; those of one meet inside actions.")]
    kernel_ns: Annotated[list[float | None], doc("Mean time of a compute kernel of each; null for none.")]
    unrecorded: Annotated[list[int], doc("Those that were not recorded.")]


class JobRecord(msgspec.Struct, kw_only=True):
    """What is known of all pipelines of a job, of which one is recorded here."""

    sets_step: Annotated[
        bool | None, doc("Whether this pipeline takes as long as the slowest one that was recorded whole, if known.")
    ]
    recorded: Annotated[list[int], doc("Numbers of the pipelines whose ranks were all recorded.")]
    unread: Annotated[dict[int, str], doc("By number of a pipeline that cannot be reconstructed, why.")]
    stages: Annotated[list[StageRanksRecord], doc("One per pipeline rank.")]


class Recording(msgspec.Struct, kw_only=True):
    """All steps of one recording that were looked at."""

    version: Annotated[int, doc("Version of this form.")] = RECORDING_VERSION
    tool_version: Annotated[str, doc("Version of tracetool that measured.")]
    digest: Annotated[str, doc("Digest of the traces.")]
    global_ranks: Annotated[list[int], doc("Global rank of each pipeline rank.")]
    pipelines: Annotated[int, doc("Pipelines side by side in the traces; this is one of them.")] = 1
    complete_steps: Annotated[int | None, doc("Complete steps in the traces; null if not counted.")] = None
    devices: Annotated[list[str], doc("Devices of the traces' ranks, each once.")] = []
    orders: Annotated[list[list[str]], doc("Compute orders that steps ran: per pipeline rank its actions, spaced.")]
    steps: Annotated[list[StepRecord], doc("One per complete step, in order of time.")]
    job: Annotated[JobRecord | UnsetType, doc("Of a job of several pipelines, what is known of all of them.")] = UNSET


def make_recording(
    digest: str,
    looks: Sequence[RecordedStep],
    *,
    pipelines: int = 1,
    complete_steps: int | None = None,
    devices: Sequence[str] = (),
) -> Recording:
    """What the steps measured.

    Args:
        digest: Digest of the traces.
        looks: At least one step, in order of time.
        pipelines: Pipelines side by side in the traces.
        complete_steps: Complete steps in the traces.
        devices: Their devices.
    """
    orders: list[list[str]] = []
    steps = []
    for each in looks:
        order = [" ".join(map(str, rank_order)) for rank_order in each.pipeline.observed.orders]
        if order not in orders:
            orders.append(order)
        steps.append(_step(each, orders.index(order)))
    return Recording(
        tool_version=__version__, digest=digest, global_ranks=list(looks[0].observed.global_ranks),
        pipelines=pipelines, complete_steps=complete_steps, devices=list(devices), orders=orders, steps=steps,
    )  # fmt: skip


def _step(recorded: RecordedStep, order: int) -> StepRecord:
    metrics, pipeline = measure(recorded.observed), recorded.pipeline
    insides, moving = _insides(recorded), _moving_times(recorded)
    actions: dict[str, ActionRecord] = {}
    messages: dict[str, MessageRecord] = {}
    for stage in pipeline.stages:
        for kind, costs in sorted(stage.costs.items()):
            inside = insides.get((stage.stage, kind), _Inside([], None))
            actions[f"{stage.stage}{kind.value}"] = ActionRecord(
                duration_ns=[cost.duration_ns for cost in costs],
                held_bytes=_known([cost.held_bytes for cost in costs]),
                peak_bytes=_known([cost.peak_bytes for cost in costs]),
                beside_ns=inside.beside_ns,
                kernels=inside.kernels,
                collectives=[
                    as_struct(CollectiveRecord, use, group_ranks=list(use.group_ranks))
                    for use in stage.collectives.get(kind, ())
                ],
            )
        sent = moving[stage.stage]
        ways = (
            (ActionKind.FORWARD, stage.forward_transfer_ns, stage.forward_payload_bytes),
            (ActionKind.BACKWARD, stage.backward_transfer_ns, stage.backward_payload_bytes),
        )
        messages |= {
            f"{stage.stage}{kind.value}": MessageRecord(transfer_ns=taken, each_ns=sent[kind], payload_bytes=payload)
            for kind, taken, payload in ways
            if kind in sent
        }
    return as_struct(
        StepRecord,
        metrics,
        pipeline,
        number=recorded.step.number,
        order=order,
        actions=actions,
        messages=messages,
        ranks=[
            as_struct(RankRecord, rank, tail=[as_struct(TailRecord, part, kind=part.kind.value) for part in rank.tail])
            for rank in pipeline.ranks
        ],
    )


class _Inside(NamedTuple):
    """What is in the actions of a stage and kind: time beside communication, in order of microbatch, and kernels."""

    beside_ns: list[int]
    kernels: int | None


def _insides(recorded: RecordedStep) -> dict[tuple[int, ActionKind], _Inside]:
    by_action: dict[tuple[int, ActionKind], list[tuple[int, int, int]]] = {}
    for rank, work in recorded.work.ranks.items():
        for segment, beside_ns in zip(work.segments, recorded.beside_ns[rank], strict=True):
            kernels = sum(kernel.is_compute for kernel in segment.kernels)
            by_action.setdefault((segment.stage, segment.kind), []).append(
                (segment.microbatch, sum(beside_ns), kernels)
            )
    return {
        key: _Inside([beside for _, beside, _ in sorted(rows)], round(median(kernels for *_, kernels in rows)))
        for key, rows in by_action.items()
    }


def _moving_times(recorded: RecordedStep) -> dict[int, dict[ActionKind, list[int]]]:
    """Per stage and direction in which it sends, the time of each message."""
    times: dict[int, dict[ActionKind, list[int]]] = defaultdict(dict)
    for transfer in sorted(recorded.transfers, key=lambda t: t.microbatch):
        of_stage = times[transfer.src_stage]
        of_stage.setdefault(transfer.kind, []).append(transfer.end_ns - transfer.start_ns)
    return times


def _known(values: list[int | None]) -> list[int | None]:
    return values if any(value is not None for value in values) else []


def pipeline_of(recording: Recording, step: StepRecord) -> Pipeline:
    """The pipeline that a step measured, its actions as long as they were: slowdowns stay in."""
    orders = [[Action.parse(text) for text in rank.split()] for rank in recording.orders[step.order]]
    observed = schedule_from_orders(orders, name=OBSERVED)
    costs: dict[int, dict[ActionKind, tuple[ActionCost, ...]]] = {}
    for name, record in step.actions.items():
        unknown: list[int | None] = [None] * len(record.duration_ns)
        rows = zip(record.duration_ns, record.held_bytes or unknown, record.peak_bytes or unknown, strict=True)
        costs.setdefault(int(name[:-1]), {})[ActionKind(name[-1])] = tuple(ActionCost(*row) for row in rows)
    none = MessageRecord(transfer_ns=0, each_ns=[], payload_bytes=None)
    stages = []
    for stage in range(observed.shape.stages):
        forward, backward = (step.messages.get(f"{stage}{kind}", none) for kind in "FB")
        stages.append(
            StageProfile(
                stage, costs[stage], forward.payload_bytes, backward.payload_bytes, forward.transfer_ns,
                backward.transfer_ns,
            )
        )  # fmt: skip
    ranks = [
        RankProfile(
            rank=number,
            static_bytes=rank.static_bytes,
            tail=tuple(TailPart(ActionKind(part.kind), part.duration_ns, part.meet) for part in rank.tail),
            tail_peak_bytes=rank.tail_peak_bytes,
            receive_buffer_bytes=rank.receive_buffer_bytes,
        )
        for number, rank in zip(recording.global_ranks, step.ranks, strict=True)
    ]
    mode = next(mode for mode in P2P_MODES if mode == step.p2p)
    return Pipeline(tuple(stages), tuple(ranks), observed, mode, step.number, step.buffered)


def keep_recording(run: Run, reconstruction: Reconstruction) -> None:
    """Write what the steps measured beside the tables of a Run.

    Args:
        run: The Run.
        reconstruction: Its first pipeline, with a look at every step.
    """
    recording = make_recording(
        str(run.manifest.get("digest", "")),
        reconstruction.recorded_steps,
        pipelines=_pipelines(reconstruction.coordinates),
        complete_steps=sum(step.status == "complete" for step in reconstruction.steps),
        devices=_devices(run),
    )
    run.write(RECORDING, msgspec.json.encode(recording) + b"\n")


def recording_of(
    run: Run, *, pipeline: int | None = 0, longest: LongestPipelines | None = None, most: int = MOST_STEPS
) -> Recording:
    """What the steps of a Run measured: what is kept of its first pipeline, else made from the tables.

    Args:
        run: The Run.
        pipeline: Which one of several side by side; None for the one that sets the step.
        longest: Those that set the step, where that is known.
        most: So many steps at most, those about the one of median length.

    Raises:
        TraceToolError: If no pipeline can be reconstructed.
    """
    longest = longest_pipelines(run) if pipeline is None else longest
    first = longest.numbers[0] if longest is not None and longest.numbers else 0
    number = first if pipeline is None else pipeline
    kept = None if number or run.is_overlaid or most > MOST_STEPS else kept_recording(run)
    seats = read_coordinates(run)
    if kept is None:
        ((complete,),) = run.rows("SELECT count(*) FROM step_facts WHERE status = 'complete'")
        kept = make_recording(
            str(run.manifest.get("digest", "")),
            record_steps(run, pipeline=number, most=most),
            pipelines=_pipelines(seats),
            complete_steps=complete or None,
            devices=_devices(run),
        )
    return msgspec.structs.replace(kept, job=_job_of(run, seats, number, longest))


def _pipelines(seats: Sequence[Coordinates]) -> int:
    return len({seat.pipeline for seat in seats} - {None}) or 1


def _job_of(
    run: Run, seats: Sequence[Coordinates], number: int, longest: LongestPipelines | None
) -> JobRecord | UnsetType:
    """What is known of the pipelines of a job, of which one is recorded; unset of a single one.

    Args:
        run: Its Run.
        seats: Where its ranks sit.
        number: The pipeline that is recorded.
        longest: Those that set the step; None where nobody looked.
    """
    stages: dict[int, list[tuple[int, int | None, bool]]] = defaultdict(list)
    recorded: dict[int, bool] = {}
    for seat in seats:
        if seat.pp is not None:
            stages[seat.pp].append((seat.rank, seat.dp, seat.recorded))
            if seat.pipeline is not None:
                recorded[seat.pipeline] = recorded.get(seat.pipeline, True) and seat.recorded
    if all(len(ranks) == 1 for ranks in stages.values()):
        return UNSET
    known = sorted_pipelines(run)
    if longest is None and not known.differ:
        longest = longest_pipelines(run)
    return JobRecord(
        sets_step=None if longest is None else number in longest.numbers,
        recorded=sorted(pipeline for pipeline, is_whole in recorded.items() if is_whole),
        unread={} if longest is None else dict(longest.unread),
        stages=[
            StageRanksRecord(
                ranks=[rank for rank, _, _ in ranks],
                replicas=[replica for _, replica, _ in ranks],
                kernel_ns=[known.kernel_ns.get(rank) for rank, _, _ in ranks],
                unrecorded=[rank for rank, _, is_recorded in ranks if not is_recorded],
            )
            for _, ranks in sorted(stages.items())
        ],
    )


def _devices(run: Run) -> list[str]:
    return [name for (name,) in run.rows("SELECT DISTINCT device_name FROM ranks ORDER BY 1") if name is not None]


def kept_recording(run: Run) -> Recording | None:
    """What a Run keeps of its first pipeline; None if that is nothing, damaged, or in another form."""
    try:
        kept = msgspec.json.decode(run.file(RECORDING).read_bytes(), type=Recording)
    except (OSError, msgspec.MsgspecError):
        return None
    same = kept.version == RECORDING_VERSION and kept.digest == str(run.manifest.get("digest", ""))
    return kept if same else None
