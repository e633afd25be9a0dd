DELETE FROM deliveries WHERE batch = ?1 AND event = 'batch.progress' AND state = 'waiting' RETURNING id
