SELECT 1
FROM jobs
WHERE tenant = ?1 AND sequence_key = ?2 AND sequence_key IS NOT NULL AND state IN ('queued', 'running')
LIMIT 1
