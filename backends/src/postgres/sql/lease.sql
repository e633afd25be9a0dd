-- The state is a parameter (`queued`), so that jobs are found by their ids and by nothing else.
WITH leased AS (
    UPDATE jobs
    SET state = 'running',
        attempt = jobs.attempt + 1,
        wake_at = NULL,
        worker = asked.worker,
        lease_until = store_now($1) + millis(asked.ttl),
        started_at = store_now($1),
        first_token_at = NULL
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::bigint[]) AS asked (id, attempt, worker, ttl)
    WHERE jobs.id = asked.id AND jobs.attempt = asked.attempt AND jobs.state = $6 AND NOT jobs.held
      AND jobs.deadline > store_now($1)
    RETURNING jobs.id, jobs.attempt, jobs.worker, jobs.tenant, jobs.class, jobs.request::text AS request, jobs.seed,
              jobs.losses, jobs.deadline, jobs.traceparent
),
told AS (
    INSERT INTO events (job, kind, state, attempt, worker, at)
    SELECT id, 'leased', 'running', attempt, worker, store_now($1) FROM leased
)
SELECT leased.*, store_now($1) AS now
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS soon
CROSS JOIN leased
