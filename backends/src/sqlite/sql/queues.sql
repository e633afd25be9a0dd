-- The queues that have unfinished jobs, one index seek each.
WITH RECURSIVE unfinished (release, class) AS (
    SELECT * FROM (
        SELECT release, class
        FROM jobs INDEXED BY jobs_unfinished
        WHERE state IN ('queued', 'running')
        ORDER BY release, class
        LIMIT 1
    )
    UNION ALL
    SELECT following.release, following.class
    FROM unfinished
    JOIN jobs AS following ON following.seq = (
        SELECT seq
        FROM jobs INDEXED BY jobs_unfinished
        WHERE state IN ('queued', 'running') AND (release, class) > (unfinished.release, unfinished.class)
        ORDER BY release, class
        LIMIT 1
    )
)
SELECT release, class FROM unfinished
