SELECT id, tenant, release, trajectory, record, record_ref, finished_at
FROM jobs INDEXED BY jobs_unarchived
WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off'
  -- What is about to be removed is not kept for long.
  AND (expires_at IS NULL OR expires_at > ?2)
ORDER BY finished_at
LIMIT ?1
