-- The jobs are locked already. A trajectory that is off is archived by nobody.
WITH expired AS (
    SELECT id, split_part(segment, '#', 1) AS key
    FROM jobs
    -- In other words than the index of what expires, or all of that is looked through for some.
    WHERE id = ANY ($2::uuid[]) AND emptied_at IS NULL AND coalesce(expires_at <= store_now($1), false)
      AND NOT EXISTS (
          SELECT FROM batches
          WHERE batches.id = jobs.batch AND batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
      )
),
emptied AS (
    UPDATE jobs
    SET emptied_at = store_now($1),
        request = '{}',
        request_ref = NULL,
        record = CASE state WHEN 'succeeded' THEN ''::bytea END,
        record_ref = NULL,
        segment = NULL,
        trajectory = 'off',
        metadata = '{}',
        sequence_key = NULL,
        webhook = NULL,
        traceparent = NULL
    FROM expired
    WHERE jobs.id = expired.id
    RETURNING expired.key
),
left_segments AS (
    SELECT key, count(*) AS n FROM emptied WHERE key IS NOT NULL GROUP BY key
),
locked AS (
    SELECT segments.key FROM segments WHERE key IN (SELECT key FROM left_segments) ORDER BY key FOR UPDATE
),
counted AS (
    UPDATE segments SET jobs = segments.jobs - left_segments.n
    FROM left_segments, locked
    WHERE segments.key = left_segments.key AND locked.key = segments.key
)
SELECT count(*) AS n FROM emptied
