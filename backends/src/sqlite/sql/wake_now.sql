UPDATE jobs SET wake_at = ?2 WHERE id = ?1 AND state = 'queued' AND wake_at > ?2
