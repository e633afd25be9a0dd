SELECT id, tenant, release, route, class, kind, state, attempt, errors, losses, seed, metadata::text AS metadata, batch, line,
       sequence_key, on_failure,
       error::text AS error, history::text AS history, prompt_tokens, cached_tokens, output_tokens, accepted_at,
       started_at, first_token_at, finished_at, deadline, keep_ms, expires_at, emptied_at, trajectory, record, record_ref, segment, custom_id,
       store_now($1) AS now,
       ended_order
FROM jobs
WHERE batch = $2 AND ended_order IS NOT NULL AND (ended_order, line) > ($3, $4) AND ended_order < $5
ORDER BY ended_order, line
LIMIT $6
