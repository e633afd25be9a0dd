UPDATE jobs SET wake_at = ?1 WHERE state = 'queued' AND wake_at > ?1
