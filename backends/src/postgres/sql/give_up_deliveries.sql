UPDATE deliveries SET state = 'failed', next_at = NULL, ended_at = store_now($1)
WHERE destination = $2 AND state = 'waiting'
