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
