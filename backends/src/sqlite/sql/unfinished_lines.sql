SELECT id
FROM jobs
WHERE batch = ?1 AND state IN ('queued', 'running')
ORDER BY line
LIMIT ?2
