-- The queues that have unfinished jobs: one index seek for each release, and one for each of its classes.
WITH RECURSIVE unfinished (release) AS (
    SELECT min(release) FROM jobs INDEXED BY jobs_unfinished WHERE state IN ('queued', 'running')
    UNION ALL
    SELECT (
        SELECT min(jobs.release)
        FROM jobs INDEXED BY jobs_unfinished
        WHERE state IN ('queued', 'running') AND jobs.release > unfinished.release
    )
    FROM unfinished
    WHERE unfinished.release IS NOT NULL
)
SELECT unfinished.release AS release, classes.class AS class
FROM unfinished, (SELECT 'interactive' AS class UNION ALL SELECT 'standard' UNION ALL SELECT 'bulk') AS classes
WHERE EXISTS (
    SELECT 1
    FROM jobs INDEXED BY jobs_unfinished
    WHERE state IN ('queued', 'running') AND jobs.release = unfinished.release AND jobs.class = classes.class
)
