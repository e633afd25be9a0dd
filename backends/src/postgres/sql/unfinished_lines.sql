SELECT id
FROM jobs
WHERE batch = $1 AND finished_at IS NULL
ORDER BY line
LIMIT $2
