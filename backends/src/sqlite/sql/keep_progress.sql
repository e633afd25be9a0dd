UPDATE deliveries SET data = ?2 WHERE batch = ?1 AND event = 'batch.progress' AND state = 'waiting'
