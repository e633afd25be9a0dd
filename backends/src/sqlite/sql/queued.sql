SELECT count(*) AS n
FROM jobs INDEXED BY jobs_waiting
WHERE release = ?1 AND class = ?2 AND state = 'queued' AND wake_at IS NOT NULL
