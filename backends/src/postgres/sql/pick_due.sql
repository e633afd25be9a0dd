-- The oldest due rows of the tenants that wait, with what decides whose turn it is. The tenants that have waiting jobs
-- cost a few index seeks each; of each, as many rows are looked at as can be its part of the limit if all have so many, or
-- that many times more. Every tenant's part is within one row of what its weight gives it, hence the room on top.
WITH RECURSIVE waiting (tenant) AS (
    (
        SELECT tenant FROM jobs
        WHERE release = $2 AND class = $3 AND state = 'queued' AND NOT held
        ORDER BY tenant LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT jobs.tenant FROM jobs
        WHERE jobs.release = $2 AND jobs.class = $3 AND jobs.state = 'queued' AND NOT jobs.held
          AND jobs.tenant > waiting.tenant
        ORDER BY jobs.tenant LIMIT 1
    )
    FROM waiting
    WHERE waiting.tenant IS NOT NULL
),
weighed AS (
    SELECT tenant,
           coalesce((SELECT weight FROM tenants WHERE tenants.tenant = waiting.tenant), 1) AS weight,
           coalesce((SELECT next FROM shares WHERE release = $2 AND class = $3 AND shares.tenant = waiting.tenant), 0) AS next
    FROM waiting
    WHERE tenant IS NOT NULL
),
bites AS (
    SELECT tenant, weight, next,
           least($4, (($4 + count(*) OVER ()) * weight / (sum(weight) OVER ())::bigint + 2) * $5) AS bite
    FROM weighed
)
SELECT due.id, due.attempt, due.rank, bites.tenant, bites.weight, bites.next, bites.bite,
       coalesce((SELECT clock FROM turns WHERE release = $2 AND class = $3), 0) AS clock
FROM bites
CROSS JOIN LATERAL (
    SELECT oldest.id, oldest.attempt, row_number() OVER (ORDER BY oldest.seq) AS rank
    FROM (
        SELECT id, attempt, seq FROM jobs
        WHERE release = $2 AND class = $3 AND tenant = bites.tenant AND state = 'queued' AND NOT held
          AND wake_at <= store_now($1)
        ORDER BY seq
        LIMIT bites.bite
    ) AS oldest
) AS due
ORDER BY bites.tenant, due.rank
