UPDATE jobs
SET state = 'running', attempt = ?3, wake_at = NULL, worker = ?4, lease_until = ?5, started_at = ?6,
    first_token_at = NULL
WHERE seq = ?1 AND attempt = ?2 AND state = 'queued' AND wake_at IS NOT NULL
