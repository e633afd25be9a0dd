-- The state is a parameter (`queued`), so that jobs are found by their ids and by nothing else.
WITH free AS (
    SELECT id FROM jobs
    WHERE id = ANY ($2) AND state = $7 AND NOT held AND wake_at <= store_now($1)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
taken AS (
    UPDATE jobs SET wake_at = store_now($1) + millis($3)
    FROM free
    WHERE jobs.id = free.id
    RETURNING jobs.id, jobs.attempt
),
turn AS (
    INSERT INTO turns (release, class, clock) VALUES ($4, $5, $6)
    ON CONFLICT (release, class) DO UPDATE SET clock = greatest(turns.clock, excluded.clock)
),
moved AS (
    INSERT INTO shares (release, class, tenant, next)
    SELECT $4, $5, tenant, next FROM unnest($8::text[], $9::bigint[]) AS moved (tenant, next) ORDER BY tenant
    ON CONFLICT (release, class, tenant) DO UPDATE SET next = excluded.next
)
SELECT taken.*
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS soon
CROSS JOIN taken
