-- Locks jobs in the order of their ids. Those of sequences are only looked at, unless $3 says that their sequences are
-- locked already.
WITH locked AS (
    SELECT id, tenant, release, class, state, attempt, errors, losses, worker, lease_until, deadline, started_at,
           error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens,
           batch IS NOT NULL AS is_line, sequence_key
    FROM jobs
    WHERE id = ANY ($2) AND (sequence_key IS NULL OR $3)
    ORDER BY id
    FOR UPDATE
)
SELECT *, store_now($1) AS now FROM locked
UNION ALL
SELECT id, tenant, release, class, state, attempt, errors, losses, worker, lease_until, deadline, started_at,
           error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens,
           batch IS NOT NULL AS is_line, sequence_key,
       store_now($1) AS now
FROM jobs
WHERE id = ANY ($2) AND sequence_key IS NOT NULL AND NOT $3
