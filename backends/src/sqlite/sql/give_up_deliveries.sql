-- All that waits for a webhook, or for one address of a server that jobs named.
UPDATE deliveries SET state = 'failed', next_at = NULL, ended_at = ?2
WHERE destination = ?1 AND state = 'waiting' AND (?3 IS NULL OR url = ?3)
