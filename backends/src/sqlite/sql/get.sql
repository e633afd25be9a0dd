SELECT id, tenant, release, route, class, kind, state, attempt, errors, losses, seed, metadata, batch, line,
       sequence_key, on_failure, error,
       history, prompt_tokens, cached_tokens, output_tokens, accepted_at, started_at, first_token_at, finished_at,
       deadline, keep_ms, expires_at, emptied_at, trajectory, record, record_ref, segment
FROM jobs
WHERE tenant = ?1 AND id = ?2
