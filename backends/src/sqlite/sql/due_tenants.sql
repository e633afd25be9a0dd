-- The tenants that have waiting jobs in a queue, one index seek each, with what decides whose turn it is.
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
SELECT tenant,
       coalesce((SELECT weight FROM tenants WHERE tenants.tenant = waiting.tenant), 1) AS weight,
       coalesce((SELECT next FROM shares WHERE release = ?1 AND class = ?2 AND shares.tenant = waiting.tenant), 0) AS next,
       coalesce((SELECT clock FROM turns WHERE release = ?1 AND class = ?2), 0) AS clock
FROM waiting
WHERE tenant IS NOT NULL
