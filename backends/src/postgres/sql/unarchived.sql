SELECT id, tenant, release, trajectory, record, record_ref, finished_at, store_now($1) AS now
FROM jobs
WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off'
ORDER BY finished_at
LIMIT $2
