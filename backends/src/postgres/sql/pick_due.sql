-- Due rows, tenants in turn from the one after the tenant that was served last. The tenants that have waiting jobs cost
-- one index seek each; of each, `bite` rows are looked at.
WITH RECURSIVE tenants (tenant) AS (
    (
        SELECT tenant FROM jobs
        WHERE release = $2 AND class = $3 AND state = 'queued' AND NOT held
        ORDER BY tenant LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT jobs.tenant FROM jobs
        WHERE jobs.release = $2 AND jobs.class = $3 AND jobs.state = 'queued' AND NOT jobs.held
          AND jobs.tenant > tenants.tenant
        ORDER BY jobs.tenant LIMIT 1
    )
    FROM tenants
    WHERE tenants.tenant IS NOT NULL
),
bites AS (
    SELECT coalesce($5, ($4 + count(tenant) - 1) / greatest(count(tenant), 1)) AS bite FROM tenants
)
SELECT due.id, due.attempt, tenants.tenant, due.rank, bites.bite
FROM bites
CROSS JOIN tenants
CROSS JOIN LATERAL (
    SELECT oldest.id, oldest.attempt, row_number() OVER (ORDER BY oldest.seq) AS rank
    FROM (
        SELECT id, attempt, seq FROM jobs
        WHERE release = $2 AND class = $3 AND tenant = tenants.tenant AND state = 'queued' AND NOT held
          AND wake_at <= store_now($1)
        ORDER BY seq
        LIMIT bites.bite
    ) AS oldest
) AS due
WHERE tenants.tenant IS NOT NULL
ORDER BY due.rank,
         tenants.tenant <= coalesce((SELECT tenant FROM turns WHERE release = $2 AND class = $3), ''),
         tenants.tenant
LIMIT $4
