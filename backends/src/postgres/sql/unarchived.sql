SELECT id, tenant, release, trajectory, record, record_ref, finished_at, store_now($1) AS now
FROM jobs
WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off'
  -- What is about to be removed is not kept for long.
  AND (expires_at IS NULL OR expires_at > store_now($1))
ORDER BY finished_at
LIMIT $2
