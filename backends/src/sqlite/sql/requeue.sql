UPDATE jobs
SET state = 'queued', errors = ?3, losses = ?4, wake_at = ?5, worker = NULL, lease_until = NULL, error = ?6,
    history = ?7
WHERE seq = ?1 AND attempt = ?2 AND state = 'running'
