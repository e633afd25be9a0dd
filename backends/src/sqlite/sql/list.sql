SELECT id, tenant, release, route, class, kind, state, attempt, errors, losses, seed, metadata, batch, line,
       sequence_key, on_failure, error,
       history, prompt_tokens, cached_tokens, output_tokens, accepted_at, started_at, first_token_at, finished_at,
       deadline, keep_ms, expires_at, emptied_at, trajectory, NULL AS record, NULL AS record_ref, NULL AS segment
FROM jobs INDEXED BY jobs_tenant
WHERE tenant = ?1
  AND id < ?2
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR class = ?4)
  AND (?5 IS NULL OR batch = ?5)
  -- No asked pair that the job lacks.
  AND (?6 IS NULL OR NOT EXISTS (
      SELECT 1
      FROM json_each(?6) AS asked
      WHERE NOT EXISTS (
          SELECT 1 FROM json_each(jobs.metadata) AS own WHERE own.key = asked.key AND own.value = asked.value
      )
  ))
ORDER BY id DESC
LIMIT ?7
