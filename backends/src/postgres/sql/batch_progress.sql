-- `first` is the next of its jobs that waits; what is ahead of it is counted to a hundred thousand.
WITH first AS (
    SELECT release, class, tenant, seq
    FROM jobs
    WHERE batch = $2 AND finished_at IS NULL AND state = 'queued'
    ORDER BY line
    LIMIT 1
)
SELECT (SELECT count(*) FROM jobs WHERE batch = $2 AND finished_at IS NULL AND state = 'running') AS running,
       (SELECT count(*) FROM jobs WHERE batch = $2 AND finished_at > store_now($1) - millis($3)) AS recent,
       (SELECT (SELECT count(*)
                FROM (SELECT FROM jobs AS ahead
                      WHERE ahead.release = first.release AND ahead.class = first.class AND ahead.tenant = first.tenant
                        AND ahead.seq < first.seq AND ahead.state = 'queued' AND NOT ahead.held
                      LIMIT 100000) AS counted)
        FROM first) AS jobs_ahead
