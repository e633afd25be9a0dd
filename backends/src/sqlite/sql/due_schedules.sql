SELECT id, next_at
FROM schedules
WHERE next_at <= ?1
ORDER BY next_at
LIMIT ?2
