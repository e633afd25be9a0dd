SELECT id, tenant, release, trajectory, record, record_ref, finished_at
FROM jobs INDEXED BY jobs_unarchived
WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off'
ORDER BY finished_at
LIMIT ?1
