-- Sequences in which a new job is held: it comes behind another one, or the sequence is blocked. One look each into an
-- index: with OR between the two, whole indexes would be read.
SELECT tenant, key
FROM unnest($1::text[], $2::text[]) AS asked (tenant, key)
CROSS JOIN LATERAL (
    SELECT
    FROM jobs
    WHERE jobs.tenant = asked.tenant AND jobs.sequence_key = asked.key AND jobs.sequence_key IS NOT NULL
      AND jobs.finished_at IS NULL
    LIMIT 1
) AS unfinished
UNION ALL
SELECT asked.tenant, asked.key
FROM unnest($1::text[], $2::text[]) AS asked (tenant, key)
CROSS JOIN LATERAL (
    SELECT
    FROM blocked_sequences AS blocked
    WHERE blocked.tenant = asked.tenant AND blocked.sequence_key = asked.key
    LIMIT 1
) AS blocked
