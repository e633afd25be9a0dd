-- The queues that have unfinished jobs: one index seek for each release, and one for each of its classes.
WITH RECURSIVE unfinished (release) AS (
    (SELECT release FROM jobs WHERE finished_at IS NULL AND class IS NOT NULL ORDER BY release LIMIT 1)
    UNION ALL
    SELECT (
        SELECT jobs.release FROM jobs
        WHERE jobs.finished_at IS NULL AND jobs.class IS NOT NULL AND jobs.release > unfinished.release
        ORDER BY jobs.release LIMIT 1
    )
    FROM unfinished
    WHERE unfinished.release IS NOT NULL
)
SELECT unfinished.release, classes.class
FROM unfinished
CROSS JOIN (VALUES ('interactive'), ('standard'), ('bulk')) AS classes (class)
WHERE EXISTS (
    SELECT 1 FROM jobs
    WHERE jobs.finished_at IS NULL AND jobs.release = unfinished.release AND jobs.class = classes.class
)
