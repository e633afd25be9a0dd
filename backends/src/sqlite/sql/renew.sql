UPDATE jobs SET lease_until = ?3 WHERE id = ?1 AND attempt = ?2 AND state = 'running'
