-- As lock_jobs.sql, without those that somebody else has locked.
WITH locked AS (
    SELECT id, tenant, release, class, state, attempt, errors, losses, worker, lease_until, deadline, started_at,
           error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens,
           batch IS NOT NULL AS is_line, sequence_key
    FROM jobs
    WHERE id = ANY ($2) AND (sequence_key IS NULL OR $3)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
SELECT *, store_now($1) AS now FROM locked
UNION ALL
SELECT id, tenant, release, class, state, attempt, errors, losses, worker, lease_until, deadline, started_at,
           error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens,
           batch IS NOT NULL AS is_line, sequence_key,
       store_now($1) AS now
FROM jobs
WHERE id = ANY ($2) AND sequence_key IS NOT NULL AND NOT $3
