-- What would the step take under other schedules (of a Run that tracetool replay --run wrote)?
SELECT timeline, step_ns / 1e6 AS step_ms, seen_error_ratio, unproven, fits, round(bubble_ratio, 4) AS bubble_ratio,
       cross_dc_step_ns / 1e6 AS cross_dc_ms, peak_hbm_bytes / 2 ** 30 AS peak_gib
FROM schedule_comparison
ORDER BY step_ns, timeline;

-- How long does each rank compute and idle in the pipeline window?
SELECT timeline, rank, forward_ns / 1e6 AS forward_ms, backward_ns / 1e6 AS backward_ms, idle_ns / 1e6 AS idle_ms
FROM step_breakdown
ORDER BY timeline, rank;

-- Why do ranks idle: bubbles by cause?
SELECT timeline, cause, mean_ns / 1e6 AS mean_ms, intervals
FROM bubbles_by_cause
ORDER BY timeline, mean_ns DESC, cause;

-- Which idle intervals are the longest, and what came after them?
SELECT timeline, rank, cause, before_action, duration_ns / 1e6 AS idle_ms
FROM bubbles
ORDER BY duration_ns DESC, timeline, rank
LIMIT 10;

-- Which actions took longer than usual for their stage and kind?
SELECT timeline, stage, kind, microbatch, duration_ns / 1e6 AS ms, round(over_median_ratio, 3) AS over_median
FROM slowest_actions
ORDER BY over_median_ratio DESC, timeline, stage, kind, microbatch
LIMIT 10;

-- How even are the stages: median time of each action?
SELECT timeline, stage, kind, count(*) AS actions,
       median(duration_ns) / 1e6 AS median_ms, max(duration_ns) / 1e6 AS longest_ms
FROM ops
WHERE stage >= 0
GROUP BY timeline, stage, kind
ORDER BY timeline, stage, kind;

-- What moves between ranks, and which side waits?
SELECT timeline, src_rank, dst_rank, kind, messages, payload_bytes / messages AS bytes_each,
       median_ns / 1e6 AS moving_ms, send_wait_ns / 1e6 AS send_wait_ms, recv_wait_ns / 1e6 AS recv_wait_ms
FROM link_utilization
ORDER BY timeline, src_rank, dst_rank, kind;

-- How much communication does compute not hide?
SELECT rank, operation, operations, duration_ns / 1e6 AS ms, wait_ns / 1e6 AS waiting_ms, exposed_ns / 1e6 AS exposed_ms
FROM exposed_communication
ORDER BY exposed_ns DESC NULLS LAST, rank, operation
LIMIT 10;

-- Which kernels take the most time on each stage?
SELECT stage, kind, name, kernels, duration_ns / 1e6 AS ms
FROM kernel_time_by_stage
WHERE stage IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY stage ORDER BY duration_ns DESC, name) <= 3
ORDER BY stage, duration_ns DESC, name;

-- Where is the memory peak of each rank, and which action runs then?
SELECT p.timeline, p.rank, p.peak_bytes / 2 ** 30 AS peak_gib, p.time_ns / 1e6 AS at_ms,
       any_value(o.stage || o.kind || o.microbatch) AS during
FROM peak_memory AS p
LEFT JOIN ops AS o
    ON o.timeline = p.timeline AND o.rank = p.rank AND o.stage >= 0
    AND p.time_ns BETWEEN o.start_ns AND o.start_ns + o.duration_ns
GROUP BY ALL
ORDER BY p.timeline, p.rank;

-- How much of the time that messages are on their way does the receiving rank compute?
WITH moving AS (SELECT timeline, dst_rank AS rank, start_ns, end_ns FROM transfers),
computing AS (SELECT timeline, rank, start_ns, start_ns + duration_ns AS end_ns FROM ops WHERE stage >= 0),
hidden AS (
    SELECT timeline, rank, sum(duration_ns) AS hidden_ns FROM interval_overlap(moving, computing) GROUP BY timeline, rank
)
SELECT timeline, rank, sum(duration_ns) / 1e6 AS moving_ms, coalesce(any_value(hidden_ns), 0) / 1e6 AS hidden_ms
FROM interval_union(moving) LEFT JOIN hidden USING (timeline, rank)
GROUP BY timeline, rank
ORDER BY timeline, rank;

-- What was found in the traces, and how sure is it?
SELECT fact, subject, value, evidence, confidence
FROM findings
ORDER BY confidence, fact, subject
LIMIT 20;

-- Who sends most to whom in a step?
SELECT step, src_rank, dst_rank, operation, payload_bytes / 2 ** 20 AS mib
FROM traffic
ORDER BY step, payload_bytes DESC, src_rank, dst_rank, operation;
