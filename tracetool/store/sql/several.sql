-- What does a step take in each Run?
SELECT run, timeline, step_ns / 1e6 AS step_ms, window_ns / 1e6 AS window_ms, round(bubble_ratio, 4) AS bubble_ratio,
       peak_hbm_bytes / 2 ** 30 AS peak_gib
FROM schedule_comparison
ORDER BY run, timeline;

-- Which stages are slower, and by how much: each Run over the fastest one?
SELECT stage, kind, run, median(duration_ns) / 1e6 AS median_ms,
       median_ms / min(median_ms) OVER (PARTITION BY stage, kind) AS over_fastest
FROM ops
WHERE stage >= 0 AND timeline = 'observed'
GROUP BY stage, kind, run
ORDER BY stage, kind, run;

-- Where does each Run idle: bubbles by cause?
SELECT timeline, cause, run, mean_ns / 1e6 AS mean_ms
FROM bubbles_by_cause
ORDER BY timeline, cause, run;

-- Which kernels differ most between the Runs?
SELECT stage, kind, name, string_agg(run || ' ' || round(duration_ns / 1e6, 2), ', ' ORDER BY run) AS ms,
       (max(duration_ns) - if(count(*) = (SELECT count(DISTINCT run) FROM ops), min(duration_ns), 0)) / 1e6 AS apart_ms
FROM (SELECT run, stage, kind, name, sum(duration_ns) AS duration_ns FROM kernel_time_by_stage GROUP BY ALL)
WHERE stage IS NOT NULL
GROUP BY stage, kind, name
ORDER BY apart_ms DESC, stage, kind, name
LIMIT 10;

-- How much of the time that messages are on their way does the receiving rank of each Run compute?
WITH moving AS (SELECT run, timeline, dst_rank AS rank, start_ns, end_ns FROM transfers),
computing AS (SELECT run, timeline, rank, start_ns, start_ns + duration_ns AS end_ns FROM ops WHERE stage >= 0),
hidden AS (
    SELECT run, timeline, rank, sum(duration_ns) AS hidden_ns
    FROM interval_overlap(moving, computing)
    GROUP BY run, timeline, rank
)
SELECT run, timeline, rank, sum(duration_ns) / 1e6 AS moving_ms, coalesce(any_value(hidden_ns), 0) / 1e6 AS hidden_ms
FROM interval_union(moving) LEFT JOIN hidden USING (run, timeline, rank)
GROUP BY run, timeline, rank
ORDER BY run, timeline, rank;
