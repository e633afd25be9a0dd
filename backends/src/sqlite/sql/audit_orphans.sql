SELECT DISTINCT job
FROM events
WHERE at >= ?1 AND at < ?2 AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = events.job)
ORDER BY job
LIMIT ?3
