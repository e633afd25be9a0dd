SELECT seq, id, tenant, release, class, state, attempt, errors, losses, wake_at, worker, deadline, started_at, error,
       history, prompt_tokens, cached_tokens, output_tokens, batch, sequence_key
FROM jobs
WHERE id = ?1
