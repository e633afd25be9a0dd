SELECT id, next_at
FROM schedules
WHERE next_at <= store_now($1)
ORDER BY next_at
LIMIT $2
