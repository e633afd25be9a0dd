WITH unleased AS (
    UPDATE jobs
    SET state = 'queued',
        attempt = jobs.attempt - 1,
        wake_at = store_now($1) + millis($4),
        worker = NULL,
        lease_until = NULL,
        started_at = NULL
    FROM unnest($2::uuid[], $3::integer[]) AS asked (id, attempt)
    WHERE jobs.id = asked.id AND jobs.attempt = asked.attempt AND jobs.state = $5
    RETURNING jobs.id, asked.attempt
)
DELETE FROM events
USING unleased
WHERE events.job = unleased.id AND events.attempt = unleased.attempt AND events.kind = 'leased'
