-- The state is a parameter (`running`), so that jobs are found by their ids and by nothing else.
WITH renewed AS (
    UPDATE jobs
    SET lease_until = store_now($1) + millis(asked.ttl)
    FROM unnest($2::uuid[], $3::integer[], $4::bigint[]) AS asked (id, attempt, ttl)
    WHERE jobs.id = asked.id AND jobs.attempt = asked.attempt AND jobs.state = $5
    RETURNING jobs.id, jobs.attempt
)
SELECT renewed.*
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS soon
CROSS JOIN renewed
