SELECT id, tenant, release, route, class, kind, state, attempt, errors, losses, seed, metadata::text AS metadata, batch, line,
       sequence_key, on_failure,
       error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens, accepted_at,
       started_at, first_token_at, finished_at, deadline, keep_ms, expires_at, emptied_at, trajectory, NULL::bytea AS record,
       NULL::text AS record_ref, NULL::text AS segment, store_now($1) AS now
FROM jobs
WHERE tenant = $2
  AND id < $3
  AND ($4::text[] IS NULL OR state = ANY ($4))
  AND ($5::text IS NULL OR class = $5)
  AND ($6::uuid IS NULL OR batch = $6)
  AND ($7::text IS NULL OR metadata @> $7::jsonb)
ORDER BY id DESC
LIMIT $8
