"""Every table of a Run, declared once.

Arrow schemas, the JSON Schemas and the SQL comments in ``schemas/`` are made from them. Units are part of the column
names (``_ns``, ``_bytes``, ``_bytes_per_s``, ``_ratio``) because Polars and DuckDB drop Arrow metadata. Times are Unix
time in int64 nanoseconds unless the column says otherwise.
"""

from __future__ import annotations

from tracetool.tables import SCHEMA_VERSION, Column, Table, nullable, table

__all__ = ["SCHEMA_VERSION", "TABLES", "Column", "Table"]

WHOLE_RANK = -1
"""In place of a stage and a microbatch in ``ops``: columns that queries compare with numbers have no nulls."""

_RANK = Column("rank", "int32", "Global rank.")
_TIMELINE = Column("timeline", "category", "Timeline of the row: 'observed', or a replayed schedule (replay --run).")

SOURCES = table(
    "sources",
    "One row per source (the files of one rank, read by one reader), and per file that was left.",
    Column("source", "int32", "Number of the source within the Run; files that were left follow."),
    Column("path", "string", "File or folder it was read from, as it was named; with the member of an archive."),
    Column("status", "category", "read, failed (nothing of it is in the Run) or left."),
    nullable("reason", "string", "Why it failed or was left."),
    nullable("reader", "category", "Reader that took it."),
    nullable("digest", "string", "XXH3 (128 bits) over the bytes of its files."),
    Column("size_bytes", "int64", "Size of its files on disk."),
    nullable("rank", "int32", "Rank the source belongs to."),
    Column("rows", "int64", "Records seen in the files."),
    Column("dropped", "int64", "Records that could not be used."),
    Column("repaired", "int64", "Records changed while reading (clamped, completed)."),
    Column("skipped", "int64", "Records that no table needs."),
    Column("clock_offset_ns", "int64", "Added to this source's times to align its clock with the first one."),
)

PROBLEMS = table(
    "problems",
    "One row per source and reason for which records were dropped or changed while reading.",
    Column("source", "int32", "Source the records are of."),
    nullable("rank", "int32", "Its rank."),
    Column("action", "category", "dropped or repaired."),
    Column("reason", "string", "What was wrong with them."),
    Column("records", "int64", "How many."),
    nullable("file", "string", "File of the first one, where its place is known."),
    nullable("at", "int64", "Offset of the first one: bytes (after decompression) or line."),
    nullable("unit", "category", "byte or line."),
)

RANKS = table(
    "ranks",
    "One row per recorded rank.",
    _RANK,
    Column("source", "int32", "Source it was read from."),
    Column("world_size", "int32", "Ranks in the job, as the trace says."),
    nullable("pp_rank", "int32", "Position in its pipeline-parallel group, as the trace names it."),
    nullable("dp_rank", "int32", "Position in its data-parallel group."),
    nullable("tp_rank", "int32", "Position in its tensor-parallel group."),
    nullable("host", "string", "Host name."),
    nullable("device", "int32", "Index of the device on its host."),
    nullable("device_name", "category", "Device model."),
    nullable("sm_count", "int32", "Streaming multiprocessors (CUDA) of the device."),
    nullable("hbm_bytes", "int64", "Device memory."),
)

GROUPS = table(
    "groups",
    "One row per process group and recorded rank in it.",
    _RANK,
    Column("name", "string", "Name of the group, unique only together with its ranks."),
    Column("description", "category", "What the group is for: pp, dp, tp, default_pg ..."),
    Column("ranks", "list<int32>", "Global ranks in group order."),
)

STEPS = table(
    "steps",
    "One row per training step and rank, as marked in the trace.",
    _RANK,
    Column("step", "int32", "Step number in the trace."),
    Column("start_ns", "int64", "Start of the mark."),
    Column("end_ns", "int64", "End of the mark."),
    nullable("vendor_bubble_ns", "int64", "Ascend's own Bubble column: sum of its receive operators."),
    nullable("vendor_computing_ns", "int64", "Ascend's own Computing column."),
)

EVENTS = table(
    "events",
    "One row per event of a trace that has a duration.",
    Column("event", "int64", "Number of the event within its rank."),
    _RANK,
    Column("category", "category", "kernel, memcpy, memset, launch, op, annotation, overhead (profiler's) or python."),
    Column("name", "category", "Name in the trace."),
    Column("start_ns", "int64", "Start, Unix time."),
    Column("duration_ns", "int64", "Duration."),
    nullable("thread", "int64", "Host thread (launch, op, annotation)."),
    nullable("stream", "int64", "Device stream (kernel, memcpy, memset)."),
    nullable("correlation", "int64", "Joins a kernel to its launch."),
    nullable("external_id", "int64", "Joins a kernel or launch to the op that caused it."),
    nullable("sequence_number", "int64", "Autograd sequence number of an op: joins backward to forward."),
    nullable("kernel_class", "category", "Ascend kernel type (FlashAttentionScoreGrad ...)."),
    nullable("blocks", "int64", "Thread blocks of a kernel's grid (CUDA, ROCm)."),
    nullable(
        "label",
        "category",
        "Pipeline action that the trace names, such as 2F0 (stage, kind, microbatch): of annotations "
        "(PP:2F0), and of operations listed by action.",
    ),
    nullable("args", "string", "The event's arguments as JSON text (only with --keep args)."),
)

COMMS = table(
    "comms",
    "One row per communication operation on one rank (each send and receive of a batch has its own).",
    _RANK,
    Column("position", "int32", "Order of posting on the rank."),
    Column("operation", "category", "send, recv, allreduce, allgather ..."),
    Column("group", "string", "Process group name."),
    Column("group_ranks", "list<int32>", "Global ranks of the group."),
    nullable("peer", "int32", "Global rank of the other side (send, recv)."),
    nullable("payload_bytes", "int64", "Bytes of the message."),
    Column("posted_ns", "int64", "When the host posted it (Ascend: when the device started it)."),
    nullable("thread", "int64", "Host thread that posted it."),
    nullable("batch", "int32", "Operations launched as one kernel share a batch."),
    nullable("stream", "int64", "Device stream of the communicator."),
    nullable("start_ns", "int64", "Start of the kernel: waiting is included."),
    nullable("end_ns", "int64", "End of the kernel."),
    Column("evidence", "category", "How peer and bytes are known: metadata, matrix, label, inferred, stated, unknown."),
    nullable("label", "category", "Pipeline action, such as 2SEND_F0, where a trace lists operations by action."),
    nullable("communicator", "string", "Id of the communicator as the trace writes it (Comms Id: unsigned 64 bits)."),
)

MEMORY = table(
    "memory",
    "One row per change of allocated device memory, in the order of the host's calls.",
    _RANK,
    Column(
        "component",
        "category",
        "Whose memory: torch (caching allocator), torch snapshot (the same, from its own history), PTA (Ascend's "
        "caching allocator), GE, APP (the whole process), module HCCL (a library, as the driver counts it) ...",
    ),
    Column("time_ns", "int64", "Host time of the change."),
    nullable("delta_bytes", "int64", "Bytes allocated (+) or freed (-)."),
    nullable("allocated_bytes", "int64", "Allocated after the change."),
    nullable(
        "reserved_bytes", "int64", "Reserved after the change; of a component that allocates nothing: all it holds."
    ),
    nullable(
        "block",
        "int64",
        "What was allocated or freed: its address, or a number of its own where the trace lists both ends of an "
        "allocation. The next free of the same block ends it.",
    ),
)

VENDOR_FIGURES = table(
    "vendor_figures",
    "One row per figure that the vendor's own analysis gives, under its own name: its definitions are not ours.",
    Column("source", "int32", "Source it was read from."),
    Column("subject", "category", "What it is about: rank, stage, link, operation or group."),
    Column("name", "string", "Which one: the rank, the ranks of the stage, src-dst of the link, the operation."),
    nullable("rank", "int32", "Global rank, where it is about one."),
    nullable("step", "int32", "Step number; null if the figure names none."),
    Column("metric", "category", "The vendor's own name of the figure, unit included."),
    Column("value", "float64", "Its value in the vendor's unit."),
)

_EVIDENCE = (
    "label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that "
    "the trace holds."
)
_CONFIDENCE = Column("confidence", "float64", "Share of the independent checks that agree; 1 where the trace says it.")

FINDINGS = table(
    "findings",
    "One row per fact that reconstruction found: how it is known, and how sure it is.",
    Column(
        "fact", "category", "steps, pipeline, coordinates, clocks, segments, schedule, transfers, memory, layers ..."
    ),
    Column("subject", "string", "What it is about: a rank, a stage, a link, or all."),
    Column("value", "string", "What was found, for people."),
    Column("evidence", "category", _EVIDENCE),
    _CONFIDENCE,
    nullable("detail", "string", "What disagrees, or what the evidence leaves open."),
)

COORDINATES = table(
    "coordinates",
    "One row per rank of the job: its position along each parallel dimension.",
    _RANK,
    nullable("pipeline", "int32", "Number of its pipeline: pipelines side by side are counted by their lowest rank."),
    nullable("pp", "int32", "Pipeline rank: position in stage order."),
    nullable("dp", "int32", "Data-parallel position."),
    nullable("tp", "int32", "Tensor-parallel position."),
    nullable("cp", "int32", "Context-parallel position."),
    nullable("ep", "int32", "Expert-parallel position."),
    Column("recorded", "bool", "Whether its trace is in the Run."),
    nullable("copied_from", "int32", "Recorded rank of the same stage whose trace stands for it, where asked for."),
    Column("evidence", "category", _EVIDENCE),
    _CONFIDENCE,
)

CLOCKS = table(
    "clocks",
    "One row per rank: its clock against that of the reference rank, from messages and collectives both took part in.",
    _RANK,
    Column("reference_rank", "int32", "Rank whose clock is kept."),
    Column("time_ns", "int64", "Time on the rank's own clock at which the offset holds."),
    nullable("offset_ns", "int64", "Add it to the rank's times to align them; null if nothing joins the two ranks."),
    nullable("drift_ppm", "float64", "Growth of the offset with time, parts per million; null if not to be told."),
    nullable("residual_ns", "int64", "Median distance of the anchors from the alignment."),
    Column("anchors", "int32", "Messages and collectives that were used."),
    Column("applied", "bool", "Whether reconstruction moved the rank's times by it."),
    Column("evidence", "category", _EVIDENCE),
    _CONFIDENCE,
)

WAITS = table(
    "waits",
    "One row per communication operation of ``comms`` that ran: how long it waited, and how long it moved bytes.",
    _RANK,
    Column("position", "int32", "The operation's position in ``comms``."),
    Column("operation", "category", "send, recv, allreduce ..."),
    nullable(
        "pair", "int64", "Same number on both sides of a message, or on all ranks of a collective; null: unmatched."
    ),
    Column(
        "kernel",
        "int32",
        "Position of the first operation of its kernel: operations launched as one kernel have the same. Each has the "
        "kernel's time: to sum, take one per rank and kernel (the longest wait), or use exposed_communication.",
    ),
    Column("wait_ns", "int64", "From its start until the last side was ready; see kernel before summing."),
    Column("transfer_ns", "int64", "From then to its end; of a send that was buffered: its own duration."),
    nullable(
        "exposed_ns", "int64", "Part of its duration during which its rank computed nothing; null without kernels."
    ),
    Column("upper_bound", "bool", "The other side was not recorded: waiting may be inside transfer_ns."),
    Column("evidence", "category", _EVIDENCE),
)

STEP_FACTS = table(
    "step_facts",
    "One row per training step of the pipeline that was looked at.",
    Column("step", "int32", "Step number."),
    Column("start_ns", "int64", "Earliest start on its ranks."),
    Column("duration_ns", "int64", "To the latest end on its ranks."),
    Column("status", "category", "complete, first, last (the capture begins or ends inside it) or partial."),
    Column("chosen", "bool", "Whether stages, ops and transfers are of it."),
    Column("messages", "int32", "Sends and receives in it, all ranks."),
    Column("evidence", "category", _EVIDENCE),
)

COSTS = table(
    "costs",
    "One row per action of every complete step of the same work: the distribution behind ``stages``.",
    Column("step", "int32", "Step number."),
    _RANK,
    Column("stage", "int32", "Global (virtual) stage."),
    Column("kind", "category", "F, B, I, W or R."),
    Column("microbatch", "int32", "Microbatch."),
    Column("duration_ns", "int64", "Compute time: kernels and the launch gaps between them."),
    Column("kernel_ns", "int64", "Time its kernels ran (union)."),
    Column("beside_ns", "int64", "Part of that during which a communication kernel ran beside it."),
)

KERNEL_ACTIONS = table(
    "kernel_actions",
    "One row per device kernel of the chosen step: the action it belongs to. Joins ``events`` by rank and event.",
    _RANK,
    Column("event", "int64", "Number of the event within its rank."),
    nullable("stage", "int32", "Global (virtual) stage; null if it belongs to no stage."),
    Column("kind", "category", "F, B, I, W, R, REDUCE_GRAD, OPTIMIZER, COMMUNICATION or OTHER."),
    nullable("microbatch", "int32", "Microbatch."),
    nullable("part", "category", "Of a backward: input or weight, the gradient that it computes; recompute."),
    nullable("layer", "int32", "Layer within the stage; null before the first and after the last one."),
)

LAYERS = table(
    "layers",
    "One row per part of a stage's forward or backward: what is ahead of the repeated layers, each of them, the rest.",
    Column("stage", "int32", "Global (virtual) stage."),
    Column("kind", "category", "F, B, I or W."),
    Column("layer", "int32", "Layer in model order within the stage; -1 ahead of the layers, -2 after them."),
    Column("kernels", "int32", "Kernels of one microbatch in it."),
    Column("duration_ns", "int64", "Median over microbatches: kernels and the launch gaps between them."),
    Column("uncontended_ns", "int64", "The same without slowdown beside waiting communication kernels."),
    Column("evidence", "category", _EVIDENCE),
    _CONFIDENCE,
)

STAGES = table(
    "stages",
    "One row per pipeline stage.",
    Column("stage", "int32", "Global (virtual) stage."),
    _RANK,
    Column("pipeline_rank", "int32", "Position of the rank in its pipeline."),
    nullable("forward_ns", "int64", "Median forward time of one microbatch."),
    nullable("backward_ns", "int64", "Median full backward time of one microbatch."),
    nullable("backward_input_ns", "int64", "Median input-gradient time, where the trace splits it."),
    nullable("backward_weight_ns", "int64", "Median weight-gradient time, where the trace splits it."),
    nullable("activation_bytes", "int64", "Bytes one microbatch keeps from forward to backward."),
    nullable("transient_bytes", "int64", "Bytes that an action needs at most beyond what it keeps."),
    nullable("gradient_bytes", "int64", "Bytes that the first backward of a step allocates and later ones add to."),
    nullable("static_bytes", "int64", "Bytes allocated when the step starts (of the rank)."),
    nullable("forward_payload_bytes", "int64", "Bytes sent to the next stage."),
    nullable("backward_payload_bytes", "int64", "Bytes sent to the previous stage."),
    Column("evidence", "category", "How the stage's actions were found: label, autograd or kernels."),
)

OPS = table(
    "ops",
    "A Timeline's computes: one row per action on one rank.",
    _TIMELINE,
    _RANK,
    Column("stage", "int32", f"Global (virtual) stage; {WHOLE_RANK} for the whole rank."),
    Column("kind", "category", "F, B, I, W, R, REDUCE_GRAD or OPTIMIZER."),
    Column("microbatch", "int32", f"Microbatch; {WHOLE_RANK} for the whole rank."),
    Column("start_ns", "int64", "Start, from the start of the pipeline window."),
    Column("duration_ns", "int64", "Compute time: kernels and the launch gaps between them."),
)

TRANSFERS = table(
    "transfers",
    "A Timeline's messages between stages: one row per matched send and receive.",
    _TIMELINE,
    Column("kind", "category", "F (activation to a later stage) or B (gradient to an earlier one)."),
    Column("microbatch", "int32", "Microbatch."),
    Column("src_stage", "int32", "Sending stage."),
    Column("dst_stage", "int32", "Receiving stage."),
    Column("src_rank", "int32", "Sending rank."),
    Column("dst_rank", "int32", "Receiving rank."),
    nullable("payload_bytes", "int64", "Bytes of the message."),
    Column("send_posted_ns", "int64", "When the sender's side was ready, from the start of the window."),
    Column("recv_posted_ns", "int64", "When the receiver's side was ready, from the start of the window."),
    Column("start_ns", "int64", "When bytes began to move: both sides ready and the link free."),
    Column("end_ns", "int64", "When the receiver could use the data."),
    nullable("link", "category", "Cross-DC link it used, as 'dc0-dc1'; null inside a DC."),
)

MEMORY_CURVE = table(
    "memory_curve",
    "A Timeline's allocated memory per rank, at every change.",
    _TIMELINE,
    _RANK,
    Column("time_ns", "int64", "From the start of the pipeline window."),
    Column("allocated_bytes", "int64", "Allocated from then on."),
)

IDLES = table(
    "idles",
    "A Timeline's idle time within the pipeline window: one row per rank, interval and cause.",
    _TIMELINE,
    _RANK,
    Column("start_ns", "int64", "From the start of the pipeline window."),
    Column("duration_ns", "int64", "Length."),
    Column("cause", "category", "What held the rank's next action back longest; names as in a report's idle."),
    nullable("before_action", "string", "The rank's next action, as in 2F0; null after its last one."),
    nullable("src_rank", "int32", "Sender of the message whose way caused it, where one did."),
    nullable("dst_rank", "int32", "Its receiver."),
    since_minor=1,
)

LINKS = table(
    "links",
    "One row per pair of ranks and direction that exchange messages in the observed step, as measured.",
    Column("src_rank", "int32", "Sending rank."),
    Column("dst_rank", "int32", "Receiving rank."),
    Column("kind", "category", "F (activation) or B (gradient)."),
    Column("messages", "int32", "Messages in the step."),
    nullable("payload_bytes", "int64", "Bytes of one message; null if they differ or are unknown."),
    Column("transfer_ns", "int64", "Median time of one message once both sides were ready."),
    nullable(
        "bandwidth_bytes_per_s",
        "int64",
        "Fitted over messages of several sizes where there are any, else payload_bytes over transfer_ns.",
    ),
    nullable("latency_ns", "int64", "Fitted start-up time of a message; null without messages of several sizes."),
    nullable("exposed_ns", "int64", "Time of the receiver's operations on it during which the rank computed nothing."),
)

METRICS = table(
    "metrics",
    "One row per metric of a Timeline.",
    _TIMELINE,
    Column("metric", "category", "Name; the unit is its suffix."),
    nullable("rank", "int32", "Rank, or null for the whole pipeline."),
    Column("value", "float64", "Value in the unit of the name."),
)

_OF_THE_TRACES = (SOURCES, PROBLEMS, RANKS, GROUPS, STEPS, EVENTS, COMMS, MEMORY, VENDOR_FIGURES)
_SURVEYED = (FINDINGS, COORDINATES, CLOCKS, WAITS)
_OF_A_TIMELINE = (OPS, TRANSFERS, MEMORY_CURVE, IDLES)
OF_A_PIPELINE = (STEP_FACTS, COSTS, KERNEL_ACTIONS, LAYERS, STAGES, *_OF_A_TIMELINE, LINKS, METRICS)
"""Those that only a reconstructed pipeline fills."""
TABLES: dict[str, Table] = {table.name: table for table in (*_OF_THE_TRACES, *_SURVEYED, *OF_A_PIPELINE)}
