-- Opens a Run in any DuckDB client.
--   SET VARIABLE run = 'path/to/x.run';
--   .read schemas/duckdb.sql
-- Interval arithmetic. A relation (a table, view or CTE by name) has the columns rank, start_ns and end_ns; where it has
-- a column run besides, as tables of several Runs do, or timeline, ranks of other Runs and Timelines are other ranks.

CREATE MACRO overlap_ns(one_start_ns, one_end_ns, other_start_ns, other_end_ns) AS CASE
    WHEN one_start_ns IS NULL OR one_end_ns IS NULL OR other_start_ns IS NULL OR other_end_ns IS NULL THEN NULL
    ELSE greatest(0, least(one_end_ns, other_end_ns) - greatest(one_start_ns, other_start_ns))
END;
COMMENT ON MACRO overlap_ns IS 'How long two intervals overlap; null if one of their ends is.';

-- Not for queries: the rows of a relation with what tells ranks apart. Within the subquery, run and timeline are the
-- relation's own columns, or else those of the row beside it.
CREATE MACRO keyed_by_rank(relation) AS TABLE
SELECT rows_of.*
FROM (SELECT NULL::VARCHAR AS run, NULL::VARCHAR AS timeline) AS single, LATERAL (
    SELECT *, {'run': run, 'timeline': timeline, 'rank': rank} AS of_rank FROM query_table(relation)
) AS rows_of;

CREATE MACRO interval_union(relation) AS TABLE
WITH marked AS (
    SELECT
        *,
        coalesce(start_ns > max(end_ns) OVER (
            PARTITION BY of_rank ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS is_apart
    FROM keyed_by_rank(relation)
),
numbered AS (
    -- Not count(*) FILTER, which takes quadratic time as a window function.
    SELECT
        *,
        sum(is_apart::INTEGER) OVER (
            PARTITION BY of_rank ORDER BY start_ns, end_ns ROWS UNBOUNDED PRECEDING
        ) AS island
    FROM marked
)
SELECT
    any_value(COLUMNS('^(run|timeline|rank)$')) AS '\1',
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    max(end_ns) - min(start_ns) AS duration_ns,
    count(*) AS intervals
FROM numbered
GROUP BY of_rank, island
ORDER BY of_rank, start_ns;
COMMENT ON MACRO TABLE interval_union IS 'The union of the intervals of each rank, of a relation with rank, start_ns and end_ns (and run or timeline).';

CREATE MACRO interval_gaps(relation) AS TABLE
WITH covered AS (FROM interval_union(relation)),
followed AS (
    SELECT * REPLACE (end_ns AS start_ns, lead(start_ns) OVER (PARTITION BY of_rank ORDER BY start_ns) AS end_ns)
    FROM keyed_by_rank(covered)
)
SELECT COLUMNS('^(run|timeline|rank)$'), start_ns, end_ns, end_ns - start_ns AS duration_ns
FROM followed
WHERE end_ns IS NOT NULL
ORDER BY of_rank, start_ns;
COMMENT ON MACRO TABLE interval_gaps IS 'What no interval of a rank covers, between its first and its last one, of such a relation.';

CREATE MACRO interval_overlap(one, other) AS TABLE
WITH first_one AS (FROM interval_union(one)),
ranks AS (SELECT DISTINCT * FROM (SELECT COLUMNS('^(run|timeline|rank)$') FROM first_one)),
-- Of a relation without runs or Timelines, intervals of a rank are those of that rank in every one.
other_rows AS (
    SELECT rows_of.*
    FROM (SELECT NULL::VARCHAR AS run, NULL::VARCHAR AS timeline) AS single, LATERAL (
        SELECT ranks.*, start_ns, end_ns
        FROM ranks JOIN (SELECT of_rank AS its, start_ns, end_ns FROM keyed_by_rank(other))
            ON rank = its.rank
            AND (run = its.run OR run IS NULL OR its.run IS NULL)
            AND (timeline = its.timeline OR timeline IS NULL OR its.timeline IS NULL)
    ) AS rows_of
),
second_one AS (FROM interval_union(other_rows)),
edges AS (
    SELECT COLUMNS('^(run|timeline|rank)$'), unnest([start_ns, end_ns]) AS start_ns, unnest([1, -1]) AS sides FROM first_one
    UNION ALL BY NAME
    SELECT COLUMNS('^(run|timeline|rank)$'), unnest([start_ns, end_ns]) AS start_ns, unnest([1, -1]) AS sides FROM second_one
),
moments AS (SELECT * REPLACE (sum(sides) AS sides) FROM edges GROUP BY ALL),
swept AS (
    SELECT
        * REPLACE (sum(sides) OVER (PARTITION BY of_rank ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS sides),
        lead(start_ns) OVER (PARTITION BY of_rank ORDER BY start_ns) AS end_ns
    FROM keyed_by_rank(moments)
)
SELECT COLUMNS('^(run|timeline|rank)$'), start_ns, end_ns, end_ns - start_ns AS duration_ns
FROM swept
WHERE sides = 2
ORDER BY of_rank, start_ns;
COMMENT ON MACRO TABLE interval_overlap IS 'What two such relations both cover, on each rank.';
CREATE VIEW sources AS SELECT * FROM read_parquet(getvariable('run') || '/sources/*.parquet');
COMMENT ON VIEW sources IS 'One row per source (the files of one rank, read by one reader), and per file that was left.';
COMMENT ON COLUMN sources.source IS 'Number of the source within the Run; files that were left follow.';
COMMENT ON COLUMN sources.path IS 'File or folder it was read from, as it was named; with the member of an archive.';
COMMENT ON COLUMN sources.status IS 'read, failed (nothing of it is in the Run) or left.';
COMMENT ON COLUMN sources.reason IS 'Why it failed or was left.';
COMMENT ON COLUMN sources.reader IS 'Reader that took it.';
COMMENT ON COLUMN sources.digest IS 'XXH3 (128 bits) over the bytes of its files.';
COMMENT ON COLUMN sources.size_bytes IS 'Size of its files on disk.';
COMMENT ON COLUMN sources.rank IS 'Rank the source belongs to.';
COMMENT ON COLUMN sources.rows IS 'Records seen in the files.';
COMMENT ON COLUMN sources.dropped IS 'Records that could not be used.';
COMMENT ON COLUMN sources.repaired IS 'Records changed while reading (clamped, completed).';
COMMENT ON COLUMN sources.skipped IS 'Records that no table needs.';
COMMENT ON COLUMN sources.clock_offset_ns IS 'Added to this source''s times to align its clock with the first one.';
CREATE VIEW problems AS SELECT * FROM read_parquet(getvariable('run') || '/problems/*.parquet');
COMMENT ON VIEW problems IS 'One row per source and reason for which records were dropped or changed while reading.';
COMMENT ON COLUMN problems.source IS 'Source the records are of.';
COMMENT ON COLUMN problems.rank IS 'Its rank.';
COMMENT ON COLUMN problems.action IS 'dropped or repaired.';
COMMENT ON COLUMN problems.reason IS 'What was wrong with them.';
COMMENT ON COLUMN problems.records IS 'How many.';
COMMENT ON COLUMN problems.file IS 'File of the first one, where its place is known.';
COMMENT ON COLUMN problems.at IS 'Offset of the first one: bytes (after decompression) or line.';
COMMENT ON COLUMN problems.unit IS 'byte or line.';
CREATE VIEW ranks AS SELECT * FROM read_parquet(getvariable('run') || '/ranks/*.parquet');
COMMENT ON VIEW ranks IS 'One row per recorded rank.';
COMMENT ON COLUMN ranks.rank IS 'Global rank.';
COMMENT ON COLUMN ranks.source IS 'Source it was read from.';
COMMENT ON COLUMN ranks.world_size IS 'Ranks in the job, as the trace says.';
COMMENT ON COLUMN ranks.pp_rank IS 'Position in its pipeline-parallel group, as the trace names it.';
COMMENT ON COLUMN ranks.dp_rank IS 'Position in its data-parallel group.';
COMMENT ON COLUMN ranks.tp_rank IS 'Position in its tensor-parallel group.';
COMMENT ON COLUMN ranks.host IS 'Host name.';
COMMENT ON COLUMN ranks.device IS 'Index of the device on its host.';
COMMENT ON COLUMN ranks.device_name IS 'Device model.';
COMMENT ON COLUMN ranks.sm_count IS 'Streaming multiprocessors (CUDA) of the device.';
COMMENT ON COLUMN ranks.hbm_bytes IS 'Device memory.';
CREATE VIEW groups AS SELECT * FROM read_parquet(getvariable('run') || '/groups/*.parquet');
COMMENT ON VIEW groups IS 'One row per process group and recorded rank in it.';
COMMENT ON COLUMN groups.rank IS 'Global rank.';
COMMENT ON COLUMN groups.name IS 'Name of the group, unique only together with its ranks.';
COMMENT ON COLUMN groups.description IS 'What the group is for: pp, dp, tp, default_pg ...';
COMMENT ON COLUMN groups.ranks IS 'Global ranks in group order.';
CREATE VIEW steps AS SELECT * FROM read_parquet(getvariable('run') || '/steps/*.parquet');
COMMENT ON VIEW steps IS 'One row per training step and rank, as marked in the trace.';
COMMENT ON COLUMN steps.rank IS 'Global rank.';
COMMENT ON COLUMN steps.step IS 'Step number in the trace.';
COMMENT ON COLUMN steps.start_ns IS 'Start of the mark.';
COMMENT ON COLUMN steps.end_ns IS 'End of the mark.';
COMMENT ON COLUMN steps.vendor_bubble_ns IS 'Ascend''s own Bubble column: sum of its receive operators.';
COMMENT ON COLUMN steps.vendor_computing_ns IS 'Ascend''s own Computing column.';
CREATE VIEW events AS SELECT * FROM read_parquet(getvariable('run') || '/events/*.parquet');
COMMENT ON VIEW events IS 'One row per event of a trace that has a duration.';
COMMENT ON COLUMN events.event IS 'Number of the event within its rank.';
COMMENT ON COLUMN events.rank IS 'Global rank.';
COMMENT ON COLUMN events.category IS 'kernel, memcpy, memset, launch, op, annotation, overhead (profiler''s) or python.';
COMMENT ON COLUMN events.name IS 'Name in the trace.';
COMMENT ON COLUMN events.start_ns IS 'Start, Unix time.';
COMMENT ON COLUMN events.duration_ns IS 'Duration.';
COMMENT ON COLUMN events.thread IS 'Host thread (launch, op, annotation).';
COMMENT ON COLUMN events.stream IS 'Device stream (kernel, memcpy, memset).';
COMMENT ON COLUMN events.correlation IS 'Joins a kernel to its launch.';
COMMENT ON COLUMN events.external_id IS 'Joins a kernel or launch to the op that caused it.';
COMMENT ON COLUMN events.sequence_number IS 'Autograd sequence number of an op: joins backward to forward.';
COMMENT ON COLUMN events.kernel_class IS 'Ascend kernel type (FlashAttentionScoreGrad ...).';
COMMENT ON COLUMN events.blocks IS 'Thread blocks of a kernel''s grid (CUDA, ROCm).';
COMMENT ON COLUMN events.label IS 'Pipeline action that the trace names, such as 2F0 (stage, kind, microbatch): of annotations (PP:2F0), and of operations listed by action.';
COMMENT ON COLUMN events.args IS 'The event''s arguments as JSON text (only with --keep args).';
CREATE VIEW comms AS SELECT * FROM read_parquet(getvariable('run') || '/comms/*.parquet');
COMMENT ON VIEW comms IS 'One row per communication operation on one rank (each send and receive of a batch has its own).';
COMMENT ON COLUMN comms.rank IS 'Global rank.';
COMMENT ON COLUMN comms.position IS 'Order of posting on the rank.';
COMMENT ON COLUMN comms.operation IS 'send, recv, allreduce, allgather ...';
COMMENT ON COLUMN comms.group IS 'Process group name.';
COMMENT ON COLUMN comms.group_ranks IS 'Global ranks of the group.';
COMMENT ON COLUMN comms.peer IS 'Global rank of the other side (send, recv).';
COMMENT ON COLUMN comms.payload_bytes IS 'Bytes of the message.';
COMMENT ON COLUMN comms.posted_ns IS 'When the host posted it (Ascend: when the device started it).';
COMMENT ON COLUMN comms.thread IS 'Host thread that posted it.';
COMMENT ON COLUMN comms.batch IS 'Operations launched as one kernel share a batch.';
COMMENT ON COLUMN comms.stream IS 'Device stream of the communicator.';
COMMENT ON COLUMN comms.start_ns IS 'Start of the kernel: waiting is included.';
COMMENT ON COLUMN comms.end_ns IS 'End of the kernel.';
COMMENT ON COLUMN comms.evidence IS 'How peer and bytes are known: metadata, matrix, label, inferred, stated, unknown.';
COMMENT ON COLUMN comms.label IS 'Pipeline action, such as 2SEND_F0, where a trace lists operations by action.';
COMMENT ON COLUMN comms.communicator IS 'Id of the communicator as the trace writes it (Comms Id: unsigned 64 bits).';
CREATE VIEW memory AS SELECT * FROM read_parquet(getvariable('run') || '/memory/*.parquet');
COMMENT ON VIEW memory IS 'One row per change of allocated device memory, in the order of the host''s calls.';
COMMENT ON COLUMN memory.rank IS 'Global rank.';
COMMENT ON COLUMN memory.component IS 'Whose memory: torch (caching allocator), torch snapshot (the same, from its own history), PTA (Ascend''s caching allocator), GE, APP (the whole process), module HCCL (a library, as the driver counts it) ...';
COMMENT ON COLUMN memory.time_ns IS 'Host time of the change.';
COMMENT ON COLUMN memory.delta_bytes IS 'Bytes allocated (+) or freed (-).';
COMMENT ON COLUMN memory.allocated_bytes IS 'Allocated after the change.';
COMMENT ON COLUMN memory.reserved_bytes IS 'Reserved after the change; of a component that allocates nothing: all it holds.';
COMMENT ON COLUMN memory.block IS 'What was allocated or freed: its address, or a number of its own where the trace lists both ends of an allocation. The next free of the same block ends it.';
CREATE VIEW vendor_figures AS SELECT * FROM read_parquet(getvariable('run') || '/vendor_figures/*.parquet');
COMMENT ON VIEW vendor_figures IS 'One row per figure that the vendor''s own analysis gives, under its own name: its definitions are not ours.';
COMMENT ON COLUMN vendor_figures.source IS 'Source it was read from.';
COMMENT ON COLUMN vendor_figures.subject IS 'What it is about: rank, stage, link, operation or group.';
COMMENT ON COLUMN vendor_figures.name IS 'Which one: the rank, the ranks of the stage, src-dst of the link, the operation.';
COMMENT ON COLUMN vendor_figures.rank IS 'Global rank, where it is about one.';
COMMENT ON COLUMN vendor_figures.step IS 'Step number; null if the figure names none.';
COMMENT ON COLUMN vendor_figures.metric IS 'The vendor''s own name of the figure, unit included.';
COMMENT ON COLUMN vendor_figures.value IS 'Its value in the vendor''s unit.';
CREATE VIEW findings AS SELECT * FROM read_parquet(getvariable('run') || '/findings/*.parquet');
COMMENT ON VIEW findings IS 'One row per fact that reconstruction found: how it is known, and how sure it is.';
COMMENT ON COLUMN findings.fact IS 'steps, pipeline, coordinates, clocks, segments, schedule, transfers, memory, layers ...';
COMMENT ON COLUMN findings.subject IS 'What it is about: a rank, a stage, a link, or all.';
COMMENT ON COLUMN findings.value IS 'What was found, for people.';
COMMENT ON COLUMN findings.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
COMMENT ON COLUMN findings.confidence IS 'Share of the independent checks that agree; 1 where the trace says it.';
COMMENT ON COLUMN findings.detail IS 'What disagrees, or what the evidence leaves open.';
CREATE VIEW coordinates AS SELECT * FROM read_parquet(getvariable('run') || '/coordinates/*.parquet');
COMMENT ON VIEW coordinates IS 'One row per rank of the job: its position along each parallel dimension.';
COMMENT ON COLUMN coordinates.rank IS 'Global rank.';
COMMENT ON COLUMN coordinates.pipeline IS 'Number of its pipeline: pipelines side by side are counted by their lowest rank.';
COMMENT ON COLUMN coordinates.pp IS 'Pipeline rank: position in stage order.';
COMMENT ON COLUMN coordinates.dp IS 'Data-parallel position.';
COMMENT ON COLUMN coordinates.tp IS 'Tensor-parallel position.';
COMMENT ON COLUMN coordinates.cp IS 'Context-parallel position.';
COMMENT ON COLUMN coordinates.ep IS 'Expert-parallel position.';
COMMENT ON COLUMN coordinates.recorded IS 'Whether its trace is in the Run.';
COMMENT ON COLUMN coordinates.copied_from IS 'Recorded rank of the same stage whose trace stands for it, where asked for.';
COMMENT ON COLUMN coordinates.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
COMMENT ON COLUMN coordinates.confidence IS 'Share of the independent checks that agree; 1 where the trace says it.';
CREATE VIEW clocks AS SELECT * FROM read_parquet(getvariable('run') || '/clocks/*.parquet');
COMMENT ON VIEW clocks IS 'One row per rank: its clock against that of the reference rank, from messages and collectives both took part in.';
COMMENT ON COLUMN clocks.rank IS 'Global rank.';
COMMENT ON COLUMN clocks.reference_rank IS 'Rank whose clock is kept.';
COMMENT ON COLUMN clocks.time_ns IS 'Time on the rank''s own clock at which the offset holds.';
COMMENT ON COLUMN clocks.offset_ns IS 'Add it to the rank''s times to align them; null if nothing joins the two ranks.';
COMMENT ON COLUMN clocks.drift_ppm IS 'Growth of the offset with time, parts per million; null if not to be told.';
COMMENT ON COLUMN clocks.residual_ns IS 'Median distance of the anchors from the alignment.';
COMMENT ON COLUMN clocks.anchors IS 'Messages and collectives that were used.';
COMMENT ON COLUMN clocks.applied IS 'Whether reconstruction moved the rank''s times by it.';
COMMENT ON COLUMN clocks.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
COMMENT ON COLUMN clocks.confidence IS 'Share of the independent checks that agree; 1 where the trace says it.';
CREATE VIEW waits AS SELECT * FROM read_parquet(getvariable('run') || '/waits/*.parquet');
COMMENT ON VIEW waits IS 'One row per communication operation of ``comms`` that ran: how long it waited, and how long it moved bytes.';
COMMENT ON COLUMN waits.rank IS 'Global rank.';
COMMENT ON COLUMN waits.position IS 'The operation''s position in ``comms``.';
COMMENT ON COLUMN waits.operation IS 'send, recv, allreduce ...';
COMMENT ON COLUMN waits.pair IS 'Same number on both sides of a message, or on all ranks of a collective; null: unmatched.';
COMMENT ON COLUMN waits.kernel IS 'Position of the first operation of its kernel: operations launched as one kernel have the same. Each has the kernel''s time: to sum, take one per rank and kernel (the longest wait), or use exposed_communication.';
COMMENT ON COLUMN waits.wait_ns IS 'From its start until the last side was ready; see kernel before summing.';
COMMENT ON COLUMN waits.transfer_ns IS 'From then to its end; of a send that was buffered: its own duration.';
COMMENT ON COLUMN waits.exposed_ns IS 'Part of its duration during which its rank computed nothing; null without kernels.';
COMMENT ON COLUMN waits.upper_bound IS 'The other side was not recorded: waiting may be inside transfer_ns.';
COMMENT ON COLUMN waits.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
CREATE VIEW step_facts AS SELECT * FROM read_parquet(getvariable('run') || '/step_facts/*.parquet');
COMMENT ON VIEW step_facts IS 'One row per training step of the pipeline that was looked at.';
COMMENT ON COLUMN step_facts.step IS 'Step number.';
COMMENT ON COLUMN step_facts.start_ns IS 'Earliest start on its ranks.';
COMMENT ON COLUMN step_facts.duration_ns IS 'To the latest end on its ranks.';
COMMENT ON COLUMN step_facts.status IS 'complete, first, last (the capture begins or ends inside it) or partial.';
COMMENT ON COLUMN step_facts.chosen IS 'Whether stages, ops and transfers are of it.';
COMMENT ON COLUMN step_facts.messages IS 'Sends and receives in it, all ranks.';
COMMENT ON COLUMN step_facts.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
CREATE VIEW costs AS SELECT * FROM read_parquet(getvariable('run') || '/costs/*.parquet');
COMMENT ON VIEW costs IS 'One row per action of every complete step of the same work: the distribution behind ``stages``.';
COMMENT ON COLUMN costs.step IS 'Step number.';
COMMENT ON COLUMN costs.rank IS 'Global rank.';
COMMENT ON COLUMN costs.stage IS 'Global (virtual) stage.';
COMMENT ON COLUMN costs.kind IS 'F, B, I, W or R.';
COMMENT ON COLUMN costs.microbatch IS 'Microbatch.';
COMMENT ON COLUMN costs.duration_ns IS 'Compute time: kernels and the launch gaps between them.';
COMMENT ON COLUMN costs.kernel_ns IS 'Time its kernels ran (union).';
COMMENT ON COLUMN costs.beside_ns IS 'Part of that during which a communication kernel ran beside it.';
CREATE VIEW kernel_actions AS SELECT * FROM read_parquet(getvariable('run') || '/kernel_actions/*.parquet');
COMMENT ON VIEW kernel_actions IS 'One row per device kernel of the chosen step: the action it belongs to. Joins ``events`` by rank and event.';
COMMENT ON COLUMN kernel_actions.rank IS 'Global rank.';
COMMENT ON COLUMN kernel_actions.event IS 'Number of the event within its rank.';
COMMENT ON COLUMN kernel_actions.stage IS 'Global (virtual) stage; null if it belongs to no stage.';
COMMENT ON COLUMN kernel_actions.kind IS 'F, B, I, W, R, REDUCE_GRAD, OPTIMIZER, COMMUNICATION or OTHER.';
COMMENT ON COLUMN kernel_actions.microbatch IS 'Microbatch.';
COMMENT ON COLUMN kernel_actions.part IS 'Of a backward: input or weight, the gradient that it computes; recompute.';
COMMENT ON COLUMN kernel_actions.layer IS 'Layer within the stage; null before the first and after the last one.';
CREATE VIEW layers AS SELECT * FROM read_parquet(getvariable('run') || '/layers/*.parquet');
COMMENT ON VIEW layers IS 'One row per part of a stage''s forward or backward: what is ahead of the repeated layers, each of them, the rest.';
COMMENT ON COLUMN layers.stage IS 'Global (virtual) stage.';
COMMENT ON COLUMN layers.kind IS 'F, B, I or W.';
COMMENT ON COLUMN layers.layer IS 'Layer in model order within the stage; -1 ahead of the layers, -2 after them.';
COMMENT ON COLUMN layers.kernels IS 'Kernels of one microbatch in it.';
COMMENT ON COLUMN layers.duration_ns IS 'Median over microbatches: kernels and the launch gaps between them.';
COMMENT ON COLUMN layers.uncontended_ns IS 'The same without slowdown beside waiting communication kernels.';
COMMENT ON COLUMN layers.evidence IS 'label, metadata, autograd, kernels, messages, order, schedule fit, inferred, copied or assumed: the best that the trace holds.';
COMMENT ON COLUMN layers.confidence IS 'Share of the independent checks that agree; 1 where the trace says it.';
CREATE VIEW stages AS SELECT * FROM read_parquet(getvariable('run') || '/stages/*.parquet');
COMMENT ON VIEW stages IS 'One row per pipeline stage.';
COMMENT ON COLUMN stages.stage IS 'Global (virtual) stage.';
COMMENT ON COLUMN stages.rank IS 'Global rank.';
COMMENT ON COLUMN stages.pipeline_rank IS 'Position of the rank in its pipeline.';
COMMENT ON COLUMN stages.forward_ns IS 'Median forward time of one microbatch.';
COMMENT ON COLUMN stages.backward_ns IS 'Median full backward time of one microbatch.';
COMMENT ON COLUMN stages.backward_input_ns IS 'Median input-gradient time, where the trace splits it.';
COMMENT ON COLUMN stages.backward_weight_ns IS 'Median weight-gradient time, where the trace splits it.';
COMMENT ON COLUMN stages.activation_bytes IS 'Bytes one microbatch keeps from forward to backward.';
COMMENT ON COLUMN stages.transient_bytes IS 'Bytes that an action needs at most beyond what it keeps.';
COMMENT ON COLUMN stages.gradient_bytes IS 'Bytes that the first backward of a step allocates and later ones add to.';
COMMENT ON COLUMN stages.static_bytes IS 'Bytes allocated when the step starts (of the rank).';
COMMENT ON COLUMN stages.forward_payload_bytes IS 'Bytes sent to the next stage.';
COMMENT ON COLUMN stages.backward_payload_bytes IS 'Bytes sent to the previous stage.';
COMMENT ON COLUMN stages.evidence IS 'How the stage''s actions were found: label, autograd or kernels.';
CREATE VIEW ops AS SELECT * FROM read_parquet(getvariable('run') || '/ops/*.parquet');
COMMENT ON VIEW ops IS 'A Timeline''s computes: one row per action on one rank.';
COMMENT ON COLUMN ops.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN ops.rank IS 'Global rank.';
COMMENT ON COLUMN ops.stage IS 'Global (virtual) stage; -1 for the whole rank.';
COMMENT ON COLUMN ops.kind IS 'F, B, I, W, R, REDUCE_GRAD or OPTIMIZER.';
COMMENT ON COLUMN ops.microbatch IS 'Microbatch; -1 for the whole rank.';
COMMENT ON COLUMN ops.start_ns IS 'Start, from the start of the pipeline window.';
COMMENT ON COLUMN ops.duration_ns IS 'Compute time: kernels and the launch gaps between them.';
CREATE VIEW transfers AS SELECT * FROM read_parquet(getvariable('run') || '/transfers/*.parquet');
COMMENT ON VIEW transfers IS 'A Timeline''s messages between stages: one row per matched send and receive.';
COMMENT ON COLUMN transfers.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN transfers.kind IS 'F (activation to a later stage) or B (gradient to an earlier one).';
COMMENT ON COLUMN transfers.microbatch IS 'Microbatch.';
COMMENT ON COLUMN transfers.src_stage IS 'Sending stage.';
COMMENT ON COLUMN transfers.dst_stage IS 'Receiving stage.';
COMMENT ON COLUMN transfers.src_rank IS 'Sending rank.';
COMMENT ON COLUMN transfers.dst_rank IS 'Receiving rank.';
COMMENT ON COLUMN transfers.payload_bytes IS 'Bytes of the message.';
COMMENT ON COLUMN transfers.send_posted_ns IS 'When the sender''s side was ready, from the start of the window.';
COMMENT ON COLUMN transfers.recv_posted_ns IS 'When the receiver''s side was ready, from the start of the window.';
COMMENT ON COLUMN transfers.start_ns IS 'When bytes began to move: both sides ready and the link free.';
COMMENT ON COLUMN transfers.end_ns IS 'When the receiver could use the data.';
COMMENT ON COLUMN transfers.link IS 'Cross-DC link it used, as ''dc0-dc1''; null inside a DC.';
CREATE VIEW memory_curve AS SELECT * FROM read_parquet(getvariable('run') || '/memory_curve/*.parquet');
COMMENT ON VIEW memory_curve IS 'A Timeline''s allocated memory per rank, at every change.';
COMMENT ON COLUMN memory_curve.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN memory_curve.rank IS 'Global rank.';
COMMENT ON COLUMN memory_curve.time_ns IS 'From the start of the pipeline window.';
COMMENT ON COLUMN memory_curve.allocated_bytes IS 'Allocated from then on.';
CREATE VIEW idles AS SELECT * FROM read_parquet(getvariable('run') || '/idles/*.parquet');
COMMENT ON VIEW idles IS 'A Timeline''s idle time within the pipeline window: one row per rank, interval and cause.';
COMMENT ON COLUMN idles.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN idles.rank IS 'Global rank.';
COMMENT ON COLUMN idles.start_ns IS 'From the start of the pipeline window.';
COMMENT ON COLUMN idles.duration_ns IS 'Length.';
COMMENT ON COLUMN idles.cause IS 'What held the rank''s next action back longest; names as in a report''s idle.';
COMMENT ON COLUMN idles.before_action IS 'The rank''s next action, as in 2F0; null after its last one.';
COMMENT ON COLUMN idles.src_rank IS 'Sender of the message whose way caused it, where one did.';
COMMENT ON COLUMN idles.dst_rank IS 'Its receiver.';
CREATE VIEW links AS SELECT * FROM read_parquet(getvariable('run') || '/links/*.parquet');
COMMENT ON VIEW links IS 'One row per pair of ranks and direction that exchange messages in the observed step, as measured.';
COMMENT ON COLUMN links.src_rank IS 'Sending rank.';
COMMENT ON COLUMN links.dst_rank IS 'Receiving rank.';
COMMENT ON COLUMN links.kind IS 'F (activation) or B (gradient).';
COMMENT ON COLUMN links.messages IS 'Messages in the step.';
COMMENT ON COLUMN links.payload_bytes IS 'Bytes of one message; null if they differ or are unknown.';
COMMENT ON COLUMN links.transfer_ns IS 'Median time of one message once both sides were ready.';
COMMENT ON COLUMN links.bandwidth_bytes_per_s IS 'Fitted over messages of several sizes where there are any, else payload_bytes over transfer_ns.';
COMMENT ON COLUMN links.latency_ns IS 'Fitted start-up time of a message; null without messages of several sizes.';
COMMENT ON COLUMN links.exposed_ns IS 'Time of the receiver''s operations on it during which the rank computed nothing.';
CREATE VIEW metrics AS SELECT * FROM read_parquet(getvariable('run') || '/metrics/*.parquet');
COMMENT ON VIEW metrics IS 'One row per metric of a Timeline.';
COMMENT ON COLUMN metrics.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN metrics.metric IS 'Name; the unit is its suffix.';
COMMENT ON COLUMN metrics.rank IS 'Rank, or null for the whole pipeline.';
COMMENT ON COLUMN metrics.value IS 'Value in the unit of the name.';
-- Views over the tables of a Run. Every view and column carries a comment; times are int64 ns.

CREATE VIEW bubbles AS
WITH busy AS (
    SELECT timeline, rank, stage, kind, microbatch, start_ns, start_ns + duration_ns AS end_ns
    FROM ops
    WHERE stage >= 0
),
edges AS (
    SELECT timeline, max(end_ns) AS window_ns FROM busy GROUP BY timeline
),
gaps AS (
    SELECT
        timeline, rank,
        coalesce(lag(end_ns) OVER (PARTITION BY timeline, rank ORDER BY start_ns), 0) AS start_ns,
        start_ns AS end_ns,
        stage || kind || microbatch AS before_action
    FROM busy
    UNION ALL
    SELECT b.timeline, b.rank, max(b.end_ns), any_value(e.window_ns), NULL
    FROM busy AS b JOIN edges AS e USING (timeline)
    GROUP BY b.timeline, b.rank
)
SELECT timeline, rank, start_ns, duration_ns, before_action, cause, src_rank, dst_rank
FROM idles
UNION ALL
SELECT timeline, rank, start_ns, end_ns - start_ns, before_action, NULL, NULL, NULL
FROM gaps
WHERE end_ns > start_ns AND timeline NOT IN (SELECT timeline FROM idles)
ORDER BY timeline, rank, start_ns;
COMMENT ON VIEW bubbles IS 'Idle time of each rank within the pipeline window, an interval for each cause.';
COMMENT ON COLUMN bubbles.timeline IS 'Timeline the interval belongs to.';
COMMENT ON COLUMN bubbles.rank IS 'Global rank.';
COMMENT ON COLUMN bubbles.start_ns IS 'From the start of the pipeline window.';
COMMENT ON COLUMN bubbles.duration_ns IS 'Length of the idle interval.';
COMMENT ON COLUMN bubbles.before_action IS 'Action that ended the wait; null after the last one.';
COMMENT ON COLUMN bubbles.cause IS 'Why it idled, as in idles; null in a Run of schema 4.0, whose intervals are whole.';
COMMENT ON COLUMN bubbles.src_rank IS 'Sender of the message whose way caused it, where one did.';
COMMENT ON COLUMN bubbles.dst_rank IS 'Its receiver.';

CREATE VIEW bubbles_by_cause AS
WITH sizes AS (SELECT timeline, count(DISTINCT rank) AS ranks FROM ops GROUP BY timeline),
sums AS (
    SELECT
        timeline, cause, any_value(ranks) AS ranks, sum(duration_ns)::BIGINT AS duration_ns, count(*) AS intervals
    FROM bubbles JOIN sizes USING (timeline)
    GROUP BY timeline, cause
),
turns AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY timeline ORDER BY duration_ns % ranks DESC, cause) AS turn,
        sum(duration_ns) OVER (PARTITION BY timeline) // ranks
        - sum(duration_ns // ranks) OVER (PARTITION BY timeline) AS missing
    FROM sums
)
SELECT
    timeline, cause, duration_ns,
    (duration_ns // ranks + CASE WHEN turn <= missing THEN 1 ELSE 0 END)::BIGINT AS mean_ns,
    intervals
FROM turns
ORDER BY timeline, duration_ns DESC;
COMMENT ON VIEW bubbles_by_cause IS 'Idle time of all ranks by cause, most first.';
COMMENT ON COLUMN bubbles_by_cause.timeline IS 'Timeline the row belongs to.';
COMMENT ON COLUMN bubbles_by_cause.cause IS 'Why ranks idled, as in idles.';
COMMENT ON COLUMN bubbles_by_cause.duration_ns IS 'Summed over ranks.';
COMMENT ON COLUMN bubbles_by_cause.mean_ns IS 'Mean over ranks, rounded so that all causes sum to the bubble.';
COMMENT ON COLUMN bubbles_by_cause.intervals IS 'How many intervals.';

CREATE VIEW step_breakdown AS
WITH spans AS (
    SELECT timeline, max(start_ns + duration_ns) FILTER (stage >= 0) AS window_ns FROM ops GROUP BY timeline
)
SELECT
    o.timeline, o.rank,
    any_value(s.window_ns) AS window_ns,
    coalesce(sum(duration_ns) FILTER (kind = 'F'), 0)::BIGINT AS forward_ns,
    coalesce(sum(duration_ns) FILTER (kind IN ('B', 'I', 'W')), 0)::BIGINT AS backward_ns,
    (any_value(s.window_ns) - coalesce(sum(duration_ns) FILTER (stage >= 0), 0))::BIGINT AS idle_ns,
    coalesce(sum(duration_ns) FILTER (kind = 'REDUCE_GRAD'), 0)::BIGINT AS reduce_grad_ns,
    coalesce(sum(duration_ns) FILTER (kind = 'OPTIMIZER'), 0)::BIGINT AS optimizer_ns
FROM ops AS o JOIN spans AS s USING (timeline)
GROUP BY o.timeline, o.rank
ORDER BY o.timeline, o.rank;
COMMENT ON VIEW step_breakdown IS 'Where the time of each rank goes: forward + backward + idle = window.';
COMMENT ON COLUMN step_breakdown.timeline IS 'Timeline the row belongs to.';
COMMENT ON COLUMN step_breakdown.rank IS 'Global rank.';
COMMENT ON COLUMN step_breakdown.window_ns IS 'First forward on any rank to last backward on any rank.';
COMMENT ON COLUMN step_breakdown.forward_ns IS 'Forward compute.';
COMMENT ON COLUMN step_breakdown.backward_ns IS 'Backward compute (B, or I and W).';
COMMENT ON COLUMN step_breakdown.idle_ns IS 'Window minus compute: the rank''s bubble.';
COMMENT ON COLUMN step_breakdown.reduce_grad_ns IS 'Gradient reduction after the last backward.';
COMMENT ON COLUMN step_breakdown.optimizer_ns IS 'Optimizer after the last backward.';

CREATE VIEW link_utilization AS
SELECT
    timeline, src_rank, dst_rank, link, kind,
    count(*) AS messages,
    sum(payload_bytes)::BIGINT AS payload_bytes,
    sum(end_ns - start_ns)::BIGINT AS moving_ns,
    median(end_ns - start_ns)::BIGINT AS median_ns,
    sum(greatest(start_ns - send_posted_ns, 0))::BIGINT AS send_wait_ns,
    sum(greatest(start_ns - recv_posted_ns, 0))::BIGINT AS recv_wait_ns
FROM transfers
GROUP BY ALL
ORDER BY ALL;
COMMENT ON VIEW link_utilization IS 'Messages between each pair of ranks, and how long each side waited.';
COMMENT ON COLUMN link_utilization.timeline IS 'Timeline the row belongs to.';
COMMENT ON COLUMN link_utilization.src_rank IS 'Sending rank.';
COMMENT ON COLUMN link_utilization.dst_rank IS 'Receiving rank.';
COMMENT ON COLUMN link_utilization.link IS 'Cross-DC link, null inside a DC.';
COMMENT ON COLUMN link_utilization.kind IS 'F activation, B gradient.';
COMMENT ON COLUMN link_utilization.messages IS 'Number of messages.';
COMMENT ON COLUMN link_utilization.payload_bytes IS 'Bytes of all of them.';
COMMENT ON COLUMN link_utilization.moving_ns IS 'Time from both sides ready to data usable, summed.';
COMMENT ON COLUMN link_utilization.median_ns IS 'The same, median of one message.';
COMMENT ON COLUMN link_utilization.send_wait_ns IS 'Time senders waited for the receiver or the link.';
COMMENT ON COLUMN link_utilization.recv_wait_ns IS 'Time receivers waited for the sender or the link.';

CREATE VIEW peak_memory AS
SELECT timeline, rank, max(allocated_bytes)::BIGINT AS peak_bytes, arg_max(time_ns, allocated_bytes)::BIGINT AS time_ns
FROM memory_curve
GROUP BY timeline, rank
ORDER BY timeline, rank;
COMMENT ON VIEW peak_memory IS 'Highest allocation of each rank.';
COMMENT ON COLUMN peak_memory.timeline IS 'Timeline the row belongs to.';
COMMENT ON COLUMN peak_memory.rank IS 'Global rank.';
COMMENT ON COLUMN peak_memory.peak_bytes IS 'Highest allocation.';
COMMENT ON COLUMN peak_memory.time_ns IS 'When, from the start of the pipeline window.';

CREATE VIEW slowest_actions AS
SELECT
    timeline, rank, stage, kind, microbatch, duration_ns,
    duration_ns / median(duration_ns) OVER (PARTITION BY timeline, stage, kind) AS over_median_ratio
FROM ops
WHERE stage >= 0
ORDER BY over_median_ratio DESC;
COMMENT ON VIEW slowest_actions IS 'Actions against the median of their stage and kind, slowest first.';
COMMENT ON COLUMN slowest_actions.timeline IS 'Timeline the row belongs to.';
COMMENT ON COLUMN slowest_actions.rank IS 'Global rank.';
COMMENT ON COLUMN slowest_actions.stage IS 'Stage.';
COMMENT ON COLUMN slowest_actions.kind IS 'F, B, I or W.';
COMMENT ON COLUMN slowest_actions.microbatch IS 'Microbatch.';
COMMENT ON COLUMN slowest_actions.duration_ns IS 'Compute time.';
COMMENT ON COLUMN slowest_actions.over_median_ratio IS 'Compute time over the median of stage and kind.';

CREATE VIEW schedule_comparison AS
SELECT
    timeline,
    max(value) FILTER (metric = 'step_ns')::BIGINT AS step_ns,
    max(value) FILTER (metric = 'window_ns')::BIGINT AS window_ns,
    max(value) FILTER (metric = 'bubble_ns')::BIGINT AS bubble_ns,
    max(value) FILTER (metric = 'bubble_ratio') AS bubble_ratio,
    max(value) FILTER (metric = 'peak_hbm_bytes')::BIGINT AS peak_hbm_bytes,
    max(value) FILTER (metric = 'cross_dc_bubble_ns')::BIGINT AS cross_dc_bubble_ns,
    max(value) FILTER (metric = 'cross_dc_step_ns')::BIGINT AS cross_dc_step_ns,
    max(value) FILTER (metric = 'seen_error_ratio') AS seen_error_ratio,
    max(value) FILTER (metric = 'step_change_ratio') AS step_change_ratio,
    max(value) FILTER (metric = 'step_change_error_ratio') AS step_change_error_ratio,
    max(value) FILTER (metric = 'slowest_pipeline')::BIGINT AS slowest_pipeline,
    max(value) FILTER (metric = 'slowest_rank')::BIGINT AS slowest_rank,
    max(value) FILTER (metric = 'fits')::BOOLEAN AS fits,
    max(value) FILTER (metric = 'unproven')::BOOLEAN AS unproven,
    (['blocking', 'grouped', 'in-order', 'per-edge', 'posted-ahead'])[1 + max(value) FILTER (metric = 'p2p')::INTEGER] AS p2p
FROM metrics
GROUP BY timeline
ORDER BY timeline;
COMMENT ON VIEW schedule_comparison IS 'One row per Timeline of the Run: its metrics side by side.';
COMMENT ON COLUMN schedule_comparison.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
COMMENT ON COLUMN schedule_comparison.step_ns IS 'First forward to the end of gradient reduction and optimizer.';
COMMENT ON COLUMN schedule_comparison.window_ns IS 'First forward on any rank to last backward on any rank.';
COMMENT ON COLUMN schedule_comparison.bubble_ns IS 'Idle time within the window, mean over ranks.';
COMMENT ON COLUMN schedule_comparison.bubble_ratio IS 'Idle share of the window.';
COMMENT ON COLUMN schedule_comparison.cross_dc_bubble_ns IS 'Window minus the window with free cross-DC links. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.cross_dc_step_ns IS 'What cross-DC links add to the step: it minus the step with free ones; null if not replayed. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.seen_error_ratio IS 'Largest step time error of such predictions on recorded runs; null if none was like it. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.step_change_ratio IS 'step_ns over the baseline''s, minus one. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.step_change_error_ratio IS 'Error of step_change_ratio, as pairs of recorded runs tell it; null if none was like both. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.slowest_pipeline IS 'Number of the pipeline that sets the step; null where one is replayed by itself. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.slowest_rank IS 'Global rank, of it or of one as slow, whose kernels are slower than others of its stage; null if none is. NULL if observed.';
COMMENT ON COLUMN schedule_comparison.p2p IS 'How its transfers are issued: blocking, grouped, in-order, per-edge or posted-ahead. NULL of what was only recorded.';
COMMENT ON COLUMN schedule_comparison.peak_hbm_bytes IS 'Highest allocation of any rank.';
COMMENT ON COLUMN schedule_comparison.fits IS 'Whether it fits the memory limit; NULL if observed, unknown or without a limit.';
COMMENT ON COLUMN schedule_comparison.unproven IS 'Whether the prediction rests on what no recorded step was like; NULL if observed.';

CREATE VIEW exposed_communication AS
WITH kernels AS (
    -- Operations launched as one kernel share its time: it counts once.
    SELECT
        c.rank,
        CASE WHEN c.operation IN ('send', 'recv') THEN 'p2p' ELSE c.operation END AS operation,
        c."group",
        min(c.start_ns) AS start_ns, max(c.end_ns) AS end_ns,
        max(w.wait_ns) AS wait_ns, bool_or(w.upper_bound) AS upper_bound
    FROM comms AS c JOIN waits AS w USING (rank, position)
    GROUP BY c.rank, 2, c."group", w.kernel
),
spans AS (
    SELECT 'moving' AS what, rank, operation, "group", start_ns, end_ns FROM kernels
    UNION ALL
    SELECT 'waiting', rank, operation, "group", start_ns, start_ns + wait_ns FROM kernels
    UNION ALL
    SELECT 'compute', rank, NULL, NULL, start_ns, start_ns + duration_ns
    FROM events
    WHERE category = 'kernel' AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
),
marked AS (
    SELECT *, coalesce(start_ns > max(end_ns) OVER (
        PARTITION BY what, rank, operation, "group" ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), true) AS is_apart
    FROM spans
),
numbered AS (
    -- Not count(*) FILTER, which takes quadratic time as a window function.
    SELECT *, sum(is_apart::INTEGER) OVER (
        PARTITION BY what, rank, operation, "group" ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS island
    FROM marked
),
islands AS (
    -- What overlaps, on several streams or threads, counts once.
    SELECT what, rank, operation, "group", island, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM numbered
    GROUP BY ALL
),
computes AS (
    -- With how long each rank computed before: an interval is covered by the difference between its ends.
    SELECT rank, start_ns, end_ns, coalesce(sum(end_ns - start_ns) OVER (
        PARTITION BY rank ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS before_ns
    FROM islands
    WHERE what = 'compute'
),
edges AS (
    SELECT rank, operation, "group", start_ns AS at_ns, -1 AS sign FROM islands WHERE what = 'moving'
    UNION ALL
    SELECT rank, operation, "group", end_ns, 1 FROM islands WHERE what = 'moving'
),
covered AS (
    SELECT
        c.rank, c.operation, c."group",
        sum(c.sign * (k.before_ns + least(c.at_ns, k.end_ns) - k.start_ns)) AS covered_ns
    FROM edges AS c ASOF JOIN computes AS k ON k.rank = c.rank AND k.start_ns <= c.at_ns
    GROUP BY ALL
),
lengths AS (
    SELECT
        rank, operation, "group",
        sum(end_ns - start_ns) FILTER (what = 'moving') AS duration_ns,
        sum(end_ns - start_ns) FILTER (what = 'waiting') AS wait_ns
    FROM islands
    WHERE what <> 'compute'
    GROUP BY ALL
),
counted AS (
    SELECT rank, operation, "group", count(*) AS operations, bool_or(upper_bound) AS has_upper_bounds
    FROM kernels
    GROUP BY ALL
)
SELECT
    n.rank, n.operation, n."group", n.operations,
    l.duration_ns::BIGINT AS duration_ns,
    l.wait_ns::BIGINT AS wait_ns,
    CASE WHEN n.rank IN (SELECT rank FROM islands WHERE what = 'compute')
        THEN l.duration_ns - coalesce(v.covered_ns, 0) END::BIGINT AS exposed_ns,
    n.has_upper_bounds
FROM counted AS n
JOIN lengths AS l ON (l.rank, l.operation, l."group") IS NOT DISTINCT FROM (n.rank, n.operation, n."group")
LEFT JOIN covered AS v ON (v.rank, v.operation, v."group") IS NOT DISTINCT FROM (n.rank, n.operation, n."group")
ORDER BY n.rank, exposed_ns DESC;
COMMENT ON VIEW exposed_communication IS 'Communication of each rank by kind and process group over the whole capture; rows of a rank may overlap in time.';
COMMENT ON COLUMN exposed_communication.rank IS 'Global rank.';
COMMENT ON COLUMN exposed_communication.operation IS 'p2p (sends and receives) or the collective.';
COMMENT ON COLUMN exposed_communication.group IS 'Process group.';
COMMENT ON COLUMN exposed_communication.operations IS 'Kernels: a batch of sends and receives is one.';
COMMENT ON COLUMN exposed_communication.duration_ns IS 'Time with at least one of the kernels on, waiting included.';
COMMENT ON COLUMN exposed_communication.wait_ns IS 'Of it, time in which one waited for its last side.';
COMMENT ON COLUMN exposed_communication.exposed_ns IS 'Of it, time during which the rank computed nothing.';
COMMENT ON COLUMN exposed_communication.has_upper_bounds IS 'Whether a side was not recorded, so that waiting counts as moving.';

CREATE VIEW kernel_time_by_stage AS
SELECT
    a.stage, a.kind, a.part, e.name,
    count(*) AS kernels,
    sum(e.duration_ns)::BIGINT AS duration_ns
FROM kernel_actions AS a JOIN events AS e USING (rank, event)
GROUP BY ALL
ORDER BY duration_ns DESC;
COMMENT ON VIEW kernel_time_by_stage IS 'Kernels of the chosen step by stage and kind of action, longest first.';
COMMENT ON COLUMN kernel_time_by_stage.stage IS 'Global (virtual) stage; null if they belong to none.';
COMMENT ON COLUMN kernel_time_by_stage.kind IS 'F, B, I, W, REDUCE_GRAD, OPTIMIZER, COMMUNICATION or OTHER.';
COMMENT ON COLUMN kernel_time_by_stage.part IS 'Of a backward: input or weight gradient; recompute.';
COMMENT ON COLUMN kernel_time_by_stage.name IS 'Name of the kernel.';
COMMENT ON COLUMN kernel_time_by_stage.kernels IS 'How many.';
COMMENT ON COLUMN kernel_time_by_stage.duration_ns IS 'Their time.';

CREATE VIEW traffic AS
WITH placed AS (
    SELECT c.rank, c.operation, c.group_ranks, c.peer, c.payload_bytes, s.step
    FROM comms AS c ASOF LEFT JOIN steps AS s ON s.rank = c.rank AND s.start_ns <= c.posted_ns
    WHERE c.payload_bytes IS NOT NULL
),
named AS (
    SELECT *, regexp_replace(lower(operation), '[^a-z]', '', 'g') AS name, len(group_ranks) AS members,
           list_position(group_ranks, rank) AS place
    FROM placed
    WHERE operation NOT IN ('send', 'recv', 'exchange', 'barrier') AND len(group_ranks) > 1
),
rings AS (
    SELECT step, rank AS src_rank, group_ranks[place % members + 1] AS dst_rank, operation,
           payload_bytes * (members - 1) / members * CASE WHEN name LIKE '%allreduce%' THEN 2 ELSE 1 END AS payload_bytes
    FROM named
    WHERE name LIKE '%allreduce%' OR name LIKE '%allgather%' OR name LIKE '%reducescatter%'
),
sends AS (
    SELECT step, rank AS src_rank, unnest(group_ranks) AS dst_rank, operation, payload_bytes / members AS payload_bytes
    FROM named
    WHERE name LIKE '%alltoall%'
),
moved AS (
    SELECT step, rank AS src_rank, peer AS dst_rank, operation, payload_bytes::DOUBLE AS payload_bytes
    FROM placed WHERE operation = 'send' AND peer IS NOT NULL
    UNION ALL SELECT * FROM rings
    UNION ALL SELECT * FROM sends WHERE src_rank <> dst_rank
)
SELECT step, src_rank, dst_rank, operation, count(*) AS operations, round(sum(payload_bytes))::BIGINT AS payload_bytes
FROM moved
GROUP BY ALL
ORDER BY step, src_rank, dst_rank, operation;
COMMENT ON VIEW traffic IS 'What recorded ranks hand each other: messages, and of collectives what rings or straight sends carry.';
COMMENT ON COLUMN traffic.step IS 'Step in which it was posted; null outside of any.';
COMMENT ON COLUMN traffic.src_rank IS 'Global rank that sends.';
COMMENT ON COLUMN traffic.dst_rank IS 'Global rank that receives.';
COMMENT ON COLUMN traffic.operation IS 'send, allreduce, allgather ...';
COMMENT ON COLUMN traffic.operations IS 'How many.';
COMMENT ON COLUMN traffic.payload_bytes IS 'Bytes of all of them.';

CREATE VIEW layer_overlaps AS
WITH computes AS (
    SELECT
        rank, event, name, start_ns, start_ns + duration_ns AS end_ns,
        regexp_matches(lower(name), 'nvjet|gemm|cutlass|xmma|cublas|cijk|mat_?mul') AS is_product,
        max(start_ns + duration_ns) OVER (
            PARTITION BY rank ORDER BY start_ns, event ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS last_end_ns
    FROM events
    WHERE category = 'kernel' AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
),
collectives AS (
    SELECT
        c.rank, c.position, c.operation, c."group", c.group_ranks, c.payload_bytes, c.start_ns, c.end_ns,
        k.event, w.wait_ns, w.transfer_ns, w.exposed_ns, w.upper_bound
    FROM comms AS c
    JOIN waits AS w USING (rank, position)
    LEFT JOIN events AS k
        ON k.rank = c.rank AND k.category = 'kernel' AND k.start_ns = c.start_ns AND k.stream = c.stream
    WHERE c.operation NOT IN ('send', 'recv', 'barrier')
),
around AS (
    -- The last compute kernel that had started before it, before its end, and the first one after its end.
    SELECT
        c.*,
        CASE WHEN before.is_product THEN before.name END AS fed_by,
        CASE WHEN behind.is_product THEN behind.name END AS eaten_by,
        greatest(0, c.end_ns - greatest(c.start_ns, coalesce(until.last_end_ns, c.start_ns))) AS tail_ns
    FROM collectives AS c
    ASOF LEFT JOIN computes AS before ON before.rank = c.rank AND before.start_ns < c.start_ns
    ASOF LEFT JOIN computes AS until ON until.rank = c.rank AND until.start_ns < c.end_ns
    ASOF LEFT JOIN computes AS behind ON behind.rank = c.rank AND behind.start_ns >= c.end_ns
),
fused AS (
    SELECT rank, event, name, start_ns, end_ns
    FROM computes
    WHERE regexp_matches(lower(name), 'mat_?mul.*(all_?reduce|reduce_?scatter|all_?gather)')
        OR regexp_matches(lower(name), '(all_?reduce|reduce_?scatter|all_?gather).*mat_?mul')
)
SELECT
    o.rank, o.position, g.description AS parallelism, o."group", len(o.group_ranks)::INTEGER AS group_size, o.operation,
    a.stage, a.kind, a.microbatch, a.layer, o.payload_bytes, o.start_ns, o.end_ns - o.start_ns AS duration_ns,
    o.transfer_ns AS own_ns, o.exposed_ns, o.tail_ns, o.fed_by, o.eaten_by, false AS is_fused, o.upper_bound
FROM around AS o
LEFT JOIN kernel_actions AS a ON a.rank = o.rank AND a.event = o.event
LEFT JOIN (SELECT DISTINCT rank, name, ranks, description FROM groups) AS g
    ON g.rank = o.rank AND g.name = o."group" AND g.ranks = o.group_ranks
UNION ALL
SELECT
    f.rank, NULL, NULL, NULL, NULL, f.name, a.stage, a.kind, a.microbatch, a.layer, NULL, f.start_ns,
    f.end_ns - f.start_ns, NULL, NULL, NULL, NULL, NULL, true, false
FROM fused AS f
LEFT JOIN kernel_actions AS a USING (rank, event)
ORDER BY rank, start_ns;
COMMENT ON VIEW layer_overlaps IS 'Collectives beside compute: of which layer, how much of each is exposed, and what it leaves at its end; the whole capture.';
COMMENT ON COLUMN layer_overlaps.rank IS 'Global rank.';
COMMENT ON COLUMN layer_overlaps.position IS 'The operation''s position in comms; null of a fused kernel.';
COMMENT ON COLUMN layer_overlaps.parallelism IS 'What its process group is for, as the trace says: tp, dp, ...; null if it does not.';
COMMENT ON COLUMN layer_overlaps.group IS 'Process group.';
COMMENT ON COLUMN layer_overlaps.group_size IS 'Ranks of the group.';
COMMENT ON COLUMN layer_overlaps.operation IS 'The collective, or the fused kernel.';
COMMENT ON COLUMN layer_overlaps.stage IS 'Global (virtual) stage; null outside the chosen step and of what no action holds.';
COMMENT ON COLUMN layer_overlaps.kind IS 'F, B, I, W, REDUCE_GRAD, OPTIMIZER, COMMUNICATION or OTHER; null outside the chosen step.';
COMMENT ON COLUMN layer_overlaps.microbatch IS 'Microbatch.';
COMMENT ON COLUMN layer_overlaps.layer IS 'Layer within the stage.';
COMMENT ON COLUMN layer_overlaps.payload_bytes IS 'Bytes of the message.';
COMMENT ON COLUMN layer_overlaps.start_ns IS 'Start of its kernel, Unix time.';
COMMENT ON COLUMN layer_overlaps.duration_ns IS 'Its kernel''s time, waiting included.';
COMMENT ON COLUMN layer_overlaps.own_ns IS 'Of it, once all ranks were there.';
COMMENT ON COLUMN layer_overlaps.exposed_ns IS 'Of it, during which the rank computed nothing.';
COMMENT ON COLUMN layer_overlaps.tail_ns IS 'Of it, what is left at its end when all compute that began before is done.';
COMMENT ON COLUMN layer_overlaps.fed_by IS 'Matrix product that was the last compute kernel to start before it; null if another was.';
COMMENT ON COLUMN layer_overlaps.eaten_by IS 'Matrix product that was the first compute kernel to start after it; null if another was.';
COMMENT ON COLUMN layer_overlaps.is_fused IS 'Whether one kernel holds product and communication: it overlaps already.';
COMMENT ON COLUMN layer_overlaps.upper_bound IS 'Whether a rank was not recorded, so that waiting may be inside own_ns.';

CREATE VIEW overlap_by_layer AS
SELECT
    parallelism, operation, stage, kind, layer, is_fused,
    count(*) AS operations,
    median(payload_bytes)::BIGINT AS payload_bytes,
    sum(duration_ns)::BIGINT AS duration_ns,
    sum(own_ns)::BIGINT AS own_ns,
    sum(exposed_ns)::BIGINT AS exposed_ns,
    sum(tail_ns)::BIGINT AS tail_ns
FROM layer_overlaps
WHERE kind IS NOT NULL
GROUP BY ALL
ORDER BY exposed_ns DESC NULLS LAST;
COMMENT ON VIEW overlap_by_layer IS 'Collectives of the chosen step by parallelism, stage and layer, over all ranks and microbatches; most exposed first.';
COMMENT ON COLUMN overlap_by_layer.parallelism IS 'What the process group is for.';
COMMENT ON COLUMN overlap_by_layer.operation IS 'The collective, or the fused kernel.';
COMMENT ON COLUMN overlap_by_layer.stage IS 'Global (virtual) stage.';
COMMENT ON COLUMN overlap_by_layer.kind IS 'Kind of action.';
COMMENT ON COLUMN overlap_by_layer.layer IS 'Layer within the stage.';
COMMENT ON COLUMN overlap_by_layer.is_fused IS 'Whether one kernel holds product and communication.';
COMMENT ON COLUMN overlap_by_layer.operations IS 'How many.';
COMMENT ON COLUMN overlap_by_layer.payload_bytes IS 'Median bytes of one.';
COMMENT ON COLUMN overlap_by_layer.duration_ns IS 'Sum of their time, waiting included.';
COMMENT ON COLUMN overlap_by_layer.own_ns IS 'Of it, once all ranks were there.';
COMMENT ON COLUMN overlap_by_layer.exposed_ns IS 'Of it, during which a rank computed nothing.';
COMMENT ON COLUMN overlap_by_layer.tail_ns IS 'Of it, what was left at the end when all compute that began before was done.';
