-- Interval arithmetic. A relation (a table, view or CTE by name) has the columns rank, start_ns and end_ns.

CREATE MACRO overlap_ns(one_start_ns, one_end_ns, other_start_ns, other_end_ns) AS
    greatest(0, least(one_end_ns, other_end_ns) - greatest(one_start_ns, other_start_ns));
COMMENT ON MACRO overlap_ns IS 'How long two intervals overlap.';

CREATE MACRO interval_union(relation) AS TABLE
WITH marked AS (
    SELECT
        rank, start_ns, end_ns,
        coalesce(start_ns > max(end_ns) OVER (
            PARTITION BY rank ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS is_apart
    FROM query_table(relation)
),
numbered AS (
    SELECT
        rank, start_ns, end_ns,
        count(*) FILTER (is_apart) OVER (PARTITION BY rank ORDER BY start_ns, end_ns ROWS UNBOUNDED PRECEDING) AS island
    FROM marked
)
SELECT
    rank,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    max(end_ns) - min(start_ns) AS duration_ns,
    count(*) AS intervals
FROM numbered
GROUP BY rank, island
ORDER BY rank, start_ns;
COMMENT ON MACRO TABLE interval_union IS 'The union of the intervals of each rank: what is covered by at least one of them.';

CREATE MACRO interval_gaps(relation) AS TABLE
WITH followed AS (
    SELECT rank, end_ns AS start_ns, lead(start_ns) OVER (PARTITION BY rank ORDER BY start_ns) AS end_ns
    FROM interval_union(relation)
)
SELECT rank, start_ns, end_ns, end_ns - start_ns AS duration_ns
FROM followed
WHERE end_ns IS NOT NULL
ORDER BY rank, start_ns;
COMMENT ON MACRO TABLE interval_gaps IS 'What no interval of a rank covers, between its first and its last one.';

CREATE MACRO interval_overlap(one, other) AS TABLE
WITH first_one AS (FROM interval_union(one)),
second_one AS (FROM interval_union(other))
SELECT
    rank,
    greatest(a.start_ns, b.start_ns) AS start_ns,
    least(a.end_ns, b.end_ns) AS end_ns,
    least(a.end_ns, b.end_ns) - greatest(a.start_ns, b.start_ns) AS duration_ns
FROM first_one AS a JOIN second_one AS b USING (rank)
WHERE a.start_ns < b.end_ns AND b.start_ns < a.end_ns
ORDER BY rank, start_ns;
COMMENT ON MACRO TABLE interval_overlap IS 'What two relations both cover, on each rank.';
