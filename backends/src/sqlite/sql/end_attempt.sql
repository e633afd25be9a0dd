UPDATE deliveries
SET attempts = attempts + 1, tries = tries + 1, state = ?2, next_at = ?3, ended_at = ?4
WHERE id = ?1 AND (state = 'waiting' OR state = 'failed' AND ?2 = 'delivered')
RETURNING attempts, webhook, destination, url, at
