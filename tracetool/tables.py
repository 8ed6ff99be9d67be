"""Every table of a Run, declared once.

Arrow schemas, the JSON Schemas and the SQL comments in ``schemas/`` are all made from these
declarations. Units are part of the column names (``_ns``, ``_bytes``, ``_bytes_per_s``, ``_ratio``)
because Polars and DuckDB drop Arrow metadata. Times are Unix time in int64 nanoseconds unless the
column says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = "2.0"

ColumnType = Literal["int64", "int32", "float64", "bool", "string", "category", "list<int32>"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type (``category`` is a dictionary-encoded string) and what it means."""

    name: str
    type: ColumnType
    doc: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema, with the doc lines as field metadata."""
        import pyarrow as pa

        types = {
            "int64": pa.int64(),
            "int32": pa.int32(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "string": pa.string(),
            "category": pa.dictionary(pa.int32(), pa.string()),
            "list<int32>": pa.list_(pa.int32()),
        }
        return pa.schema(
            [pa.field(c.name, types[c.type], nullable=c.nullable, metadata={"doc": c.doc}) for c in self.columns],
            metadata={"doc": self.doc, "schema_version": SCHEMA_VERSION},
        )


def _table(name: str, doc: str, *columns: Column) -> Table:
    return Table(name, doc, columns)


def _nullable(name: str, kind: ColumnType, doc: str) -> Column:
    return Column(name, kind, doc, nullable=True)


_RANK = Column("rank", "int32", "Global rank.")
_TIMELINE = Column("timeline", "category", "Timeline of the row: 'observed' (replays are not kept in a Run).")

SOURCES = _table(
    "sources",
    "One row per source (the files of one rank, read by one reader), and per file that was left.",
    Column("source", "int32", "Number of the source within the Run; files that were left follow."),
    Column("path", "string", "File or folder it was read from, as it was named; with the member of an archive."),
    Column("status", "category", "read, failed (nothing of it is in the Run) or left."),
    _nullable("reason", "string", "Why it failed or was left."),
    _nullable("reader", "category", "Reader that took it."),
    _nullable("digest", "string", "XXH3 (128 bits) over the bytes of its files."),
    Column("size_bytes", "int64", "Size of its files on disk."),
    _nullable("rank", "int32", "Rank the source belongs to."),
    Column("rows", "int64", "Records seen in the files."),
    Column("dropped", "int64", "Records that could not be used."),
    Column("repaired", "int64", "Records changed while reading (clamped, completed)."),
    Column("skipped", "int64", "Records that no table needs."),
    Column("clock_offset_ns", "int64", "Added to this source's times to align its clock with the first one."),
)

PROBLEMS = _table(
    "problems",
    "One row per source and reason for which records were dropped or changed while reading.",
    Column("source", "int32", "Source the records are of."),
    _nullable("rank", "int32", "Its rank."),
    Column("action", "category", "dropped or repaired."),
    Column("reason", "string", "What was wrong with them."),
    Column("records", "int64", "How many."),
    _nullable("file", "string", "File of the first one, where its place is known."),
    _nullable("at", "int64", "Offset of the first one: bytes (after decompression) or line."),
    _nullable("unit", "category", "byte or line."),
)

RANKS = _table(
    "ranks",
    "One row per recorded rank.",
    _RANK,
    Column("source", "int32", "Source it was read from."),
    Column("world_size", "int32", "Ranks in the job, as the trace says."),
    _nullable("pp_rank", "int32", "Position in its pipeline-parallel group, as the trace names it."),
    _nullable("dp_rank", "int32", "Position in its data-parallel group."),
    _nullable("tp_rank", "int32", "Position in its tensor-parallel group."),
    _nullable("host", "string", "Host name."),
    _nullable("device", "int32", "Index of the device on its host."),
    _nullable("device_name", "category", "Device model."),
    _nullable("sm_count", "int32", "Streaming multiprocessors (CUDA) of the device."),
    _nullable("hbm_bytes", "int64", "Device memory."),
)

GROUPS = _table(
    "groups",
    "One row per process group and recorded rank in it.",
    _RANK,
    Column("name", "string", "Name of the group, unique only together with its ranks."),
    Column("description", "category", "What the group is for: pp, dp, tp, default_pg ..."),
    Column("ranks", "list<int32>", "Global ranks in group order."),
)

STEPS = _table(
    "steps",
    "One row per training step and rank, as marked in the trace.",
    _RANK,
    Column("step", "int32", "Step number in the trace."),
    Column("start_ns", "int64", "Start of the mark."),
    Column("end_ns", "int64", "End of the mark."),
    _nullable("vendor_bubble_ns", "int64", "Ascend's own Bubble column: sum of its receive operators."),
    _nullable("vendor_computing_ns", "int64", "Ascend's own Computing column."),
)

EVENTS = _table(
    "events",
    "One row per event of a trace that has a duration.",
    Column("event", "int64", "Number of the event within its rank."),
    _RANK,
    Column("category", "category", "kernel, memcpy, memset, launch, op, annotation or python (only with --keep)."),
    Column("name", "category", "Name in the trace."),
    Column("start_ns", "int64", "Start, Unix time."),
    Column("duration_ns", "int64", "Duration."),
    _nullable("thread", "int64", "Host thread (launch, op, annotation)."),
    _nullable("stream", "int64", "Device stream (kernel, memcpy, memset)."),
    _nullable("correlation", "int64", "Joins a kernel to its launch."),
    _nullable("external_id", "int64", "Joins a kernel or launch to the op that caused it."),
    _nullable("sequence_number", "int64", "Autograd sequence number of an op: joins backward to forward."),
    _nullable("kernel_class", "category", "Ascend kernel type (FlashAttentionScoreGrad ...)."),
    _nullable("blocks", "int64", "Thread blocks of a kernel's grid (CUDA, ROCm)."),
    _nullable(
        "label",
        "category",
        "Pipeline action that the trace names, such as 2F0 (stage, kind, microbatch): of annotations "
        "(PP:2F0), and of operations listed by action.",
    ),
    _nullable("args", "string", "The event's arguments as JSON text (only with --keep args)."),
)

COMMS = _table(
    "comms",
    "One row per communication operation on one rank (each send and receive of a batch has its own).",
    _RANK,
    Column("position", "int32", "Order of posting on the rank."),
    Column("operation", "category", "send, recv, allreduce, allgather ..."),
    Column("group", "string", "Process group name."),
    Column("group_ranks", "list<int32>", "Global ranks of the group."),
    _nullable("peer", "int32", "Global rank of the other side (send, recv)."),
    _nullable("payload_bytes", "int64", "Bytes of the message."),
    Column("posted_ns", "int64", "When the host posted it (Ascend: when the device started it)."),
    _nullable("thread", "int64", "Host thread that posted it."),
    _nullable("batch", "int32", "Operations launched as one kernel share a batch."),
    _nullable("stream", "int64", "Device stream of the communicator."),
    _nullable("start_ns", "int64", "Start of the kernel: waiting is included."),
    _nullable("end_ns", "int64", "End of the kernel."),
    Column("evidence", "category", "How peer and bytes are known: metadata, matrix, label, inferred or unknown."),
    _nullable("label", "category", "Pipeline action, such as 2SEND_F0, where a trace lists operations by action."),
    _nullable("communicator", "string", "Id of the communicator as the trace writes it (Comms Id: unsigned 64 bits)."),
)

MEMORY = _table(
    "memory",
    "One row per change of allocated device memory, in the order of the host's calls.",
    _RANK,
    Column("component", "category", "Allocator: torch, PTA, APP ..."),
    Column("time_ns", "int64", "Host time of the change."),
    _nullable("delta_bytes", "int64", "Bytes allocated (+) or freed (-)."),
    _nullable("allocated_bytes", "int64", "Allocated after the change."),
    _nullable("reserved_bytes", "int64", "Reserved after the change."),
)

VENDOR_FIGURES = _table(
    "vendor_figures",
    "One row per figure that the vendor's own analysis gives, under its own name: its definitions are not ours.",
    Column("source", "int32", "Source it was read from."),
    Column("subject", "category", "What it is about: rank, stage, link, operation or group."),
    Column("name", "string", "Which one: the rank, the ranks of the stage, src-dst of the link, the operation."),
    _nullable("rank", "int32", "Global rank, where it is about one."),
    _nullable("step", "int32", "Step number; null if the figure names none."),
    Column("metric", "category", "The vendor's own name of the figure, unit included."),
    Column("value", "float64", "Its value in the vendor's unit."),
)

STAGES = _table(
    "stages",
    "One row per pipeline stage.",
    Column("stage", "int32", "Global (virtual) stage."),
    _RANK,
    Column("pipeline_rank", "int32", "Position of the rank in its pipeline."),
    _nullable("forward_ns", "int64", "Median forward time of one microbatch."),
    _nullable("backward_ns", "int64", "Median full backward time of one microbatch."),
    _nullable("backward_input_ns", "int64", "Median input-gradient time, where the trace splits it."),
    _nullable("backward_weight_ns", "int64", "Median weight-gradient time, where the trace splits it."),
    _nullable("activation_bytes", "int64", "Bytes one microbatch keeps from forward to backward."),
    _nullable("static_bytes", "int64", "Bytes allocated when the step starts (of the rank)."),
    _nullable("forward_payload_bytes", "int64", "Bytes sent to the next stage."),
    _nullable("backward_payload_bytes", "int64", "Bytes sent to the previous stage."),
    Column("evidence", "category", "How the stage's actions were found: label, autograd or kernels."),
)

OPS = _table(
    "ops",
    "A Timeline's computes: one row per action on one rank.",
    _TIMELINE,
    _RANK,
    Column("stage", "int32", "Global (virtual) stage; -1 for the whole rank."),
    Column("kind", "category", "F, B, I, W, R, REDUCE_GRAD or OPTIMIZER."),
    Column("microbatch", "int32", "Microbatch; -1 for the whole rank."),
    Column("start_ns", "int64", "Start, from the start of the pipeline window."),
    Column("duration_ns", "int64", "Compute time: kernels and the launch gaps between them."),
)

TRANSFERS = _table(
    "transfers",
    "A Timeline's messages between stages: one row per matched send and receive.",
    _TIMELINE,
    Column("kind", "category", "F (activation to a later stage) or B (gradient to an earlier one)."),
    Column("microbatch", "int32", "Microbatch."),
    Column("src_stage", "int32", "Sending stage."),
    Column("dst_stage", "int32", "Receiving stage."),
    Column("src_rank", "int32", "Sending rank."),
    Column("dst_rank", "int32", "Receiving rank."),
    _nullable("payload_bytes", "int64", "Bytes of the message."),
    Column("send_posted_ns", "int64", "When the sender's side was ready, from the start of the window."),
    Column("recv_posted_ns", "int64", "When the receiver's side was ready, from the start of the window."),
    Column("start_ns", "int64", "When bytes began to move: both sides ready and the link free."),
    Column("end_ns", "int64", "When the receiver could use the data."),
    _nullable("link", "category", "Cross-DC link it used, as 'dc0-dc1'; null inside a DC."),
)

MEMORY_CURVE = _table(
    "memory_curve",
    "A Timeline's allocated memory per rank, at every change.",
    _TIMELINE,
    _RANK,
    Column("time_ns", "int64", "From the start of the pipeline window."),
    Column("allocated_bytes", "int64", "Allocated from then on."),
)

LINKS = _table(
    "links",
    "One row per pair of ranks and direction that exchange messages in the observed step, as measured.",
    Column("src_rank", "int32", "Sending rank."),
    Column("dst_rank", "int32", "Receiving rank."),
    Column("kind", "category", "F (activation) or B (gradient)."),
    Column("messages", "int32", "Messages in the step."),
    _nullable("payload_bytes", "int64", "Bytes of one message; null if they differ or are unknown."),
    Column("transfer_ns", "int64", "Median time of one message once both sides were ready."),
    _nullable("bandwidth_bytes_per_s", "int64", "payload_bytes over transfer_ns."),
)

METRICS = _table(
    "metrics",
    "One row per metric of a Timeline.",
    _TIMELINE,
    Column("metric", "category", "Name; the unit is its suffix."),
    _nullable("rank", "int32", "Rank, or null for the whole pipeline."),
    Column("value", "float64", "Value in the unit of the name."),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        SOURCES, PROBLEMS, RANKS, GROUPS, STEPS, EVENTS, COMMS, MEMORY, VENDOR_FIGURES,
        STAGES, OPS, TRANSFERS, MEMORY_CURVE, LINKS, METRICS,
    )
}  # fmt: skip
