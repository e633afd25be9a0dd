UPDATE deliveries SET state = 'failed', next_at = NULL, ended_at = ?2
WHERE destination = ?1 AND state = 'waiting'
