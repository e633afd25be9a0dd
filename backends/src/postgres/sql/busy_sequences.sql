-- Sequences in which a new job is held: it comes behind another one, or the sequence is blocked.
SELECT tenant, key
FROM unnest($1::text[], $2::text[]) AS asked (tenant, key)
WHERE EXISTS (
    SELECT 1
    FROM jobs
    WHERE jobs.tenant = asked.tenant AND jobs.sequence_key = asked.key AND jobs.sequence_key IS NOT NULL
      AND jobs.finished_at IS NULL
)
   OR EXISTS (
    SELECT 1
    FROM blocked_sequences AS blocked
    WHERE blocked.tenant = asked.tenant AND blocked.sequence_key = asked.key
)
