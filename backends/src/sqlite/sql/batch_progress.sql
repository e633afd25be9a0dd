-- What is ahead of the next of its jobs that waits is counted to a hundred thousand.
WITH first AS (
    SELECT release, class, tenant, seq FROM jobs WHERE batch = ?1 AND state = 'queued' ORDER BY line LIMIT 1
)
SELECT (SELECT count(*) FROM jobs WHERE batch = ?1 AND state = 'running') AS running,
       (SELECT count(*) FROM jobs WHERE batch = ?1 AND finished_at > ?2) AS recent,
       (SELECT (SELECT count(*)
                FROM (SELECT 1 FROM jobs AS ahead
                      WHERE ahead.release = first.release AND ahead.class = first.class AND ahead.tenant = first.tenant
                        AND ahead.seq < first.seq AND ahead.state = 'queued' AND ahead.wake_at IS NOT NULL
                      LIMIT 100000))
        FROM first) AS jobs_ahead
