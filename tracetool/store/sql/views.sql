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
    {figures of a step},
    max(value) FILTER (metric = 'peak_hbm_bytes')::BIGINT AS peak_hbm_bytes,
    {figures of a prediction},
    max(value) FILTER (metric = 'fits')::BOOLEAN AS fits,
    max(value) FILTER (metric = 'unproven')::BOOLEAN AS unproven,
    ({modes of transfers})[1 + max(value) FILTER (metric = 'p2p')::INTEGER] AS p2p
FROM metrics
GROUP BY timeline
ORDER BY timeline;
COMMENT ON VIEW schedule_comparison IS 'One row per Timeline of the Run: its metrics side by side.';
COMMENT ON COLUMN schedule_comparison.timeline IS 'Timeline of the row: ''observed'', or a replayed schedule (replay --run).';
{what they mean};
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
