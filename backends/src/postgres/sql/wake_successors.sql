-- The oldest unfinished job of each sequence that is not blocked, if it is held; if it is not, the sequence is on its
-- way.
UPDATE jobs
SET wake_at = store_now($1)
FROM unnest($2::text[], $3::text[]) AS ended (tenant, key)
CROSS JOIN LATERAL (
    SELECT id
    FROM jobs AS waiting
    WHERE waiting.tenant = ended.tenant AND waiting.sequence_key = ended.key AND waiting.sequence_key IS NOT NULL
      AND waiting.finished_at IS NULL
    ORDER BY waiting.seq
    LIMIT 1
) AS first
WHERE jobs.id = first.id AND jobs.state = 'queued' AND jobs.wake_at IS NULL
  AND NOT EXISTS (
      SELECT FROM blocked_sequences AS blocked WHERE blocked.tenant = ended.tenant AND blocked.sequence_key = ended.key
  )
RETURNING jobs.release, jobs.class
