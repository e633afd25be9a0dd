-- The tenants that have waiting jobs in a queue, one index seek each.
WITH RECURSIVE waiting (tenant) AS (
    SELECT min(tenant)
    FROM jobs
    WHERE release = ?1 AND class = ?2 AND state = 'queued' AND wake_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(jobs.tenant)
        FROM jobs
        WHERE release = ?1 AND class = ?2 AND state = 'queued' AND wake_at IS NOT NULL AND jobs.tenant > waiting.tenant
    )
    FROM waiting
    WHERE waiting.tenant IS NOT NULL
)
SELECT tenant FROM waiting WHERE tenant IS NOT NULL
