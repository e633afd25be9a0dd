SELECT seq, id, attempt
FROM jobs INDEXED BY jobs_waiting
WHERE release = ?1 AND class = ?2 AND tenant = ?3 AND seq > ?4 AND state = 'queued' AND wake_at IS NOT NULL
  AND wake_at <= ?5
ORDER BY seq
LIMIT ?6
