-- Counters that are not the number of the rows they count. One that is missing is at 0, and other names count other things.
WITH unfinished AS (
    SELECT release, class, tenant, batch IS NOT NULL AS is_line, count(*) AS n
    FROM jobs
    WHERE finished_at IS NULL AND class IS NOT NULL
    GROUP BY release, class, tenant, batch IS NOT NULL
),
counted AS (
    SELECT name, sum(n)::bigint AS n
    FROM (
        SELECT 'queue:' || release || ':' || class AS name, n FROM unfinished WHERE NOT is_line
        UNION ALL
        SELECT CASE WHEN is_line THEN 'lines:' ELSE 'tenant:' END || tenant, n FROM unfinished
    ) AS names
    GROUP BY name
)
SELECT name, coalesce(counters.value, 0) AS value, coalesce(counted.n, 0) AS n
FROM counters
FULL JOIN counted USING (name)
WHERE coalesce(counters.value, 0) <> coalesce(counted.n, 0)
  AND CASE WHEN $1::text IS NULL THEN name ~ '^(queue|tenant|lines):' ELSE name IN ('tenant:' || $1, 'lines:' || $1) END
ORDER BY name
LIMIT $2
