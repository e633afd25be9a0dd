UPDATE jobs SET wake_at = ?2 WHERE seq = ?1 AND state = 'queued' AND wake_at IS NOT NULL
