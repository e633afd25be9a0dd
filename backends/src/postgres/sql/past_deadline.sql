SELECT id
FROM jobs
WHERE finished_at IS NULL AND deadline <= store_now($1)
ORDER BY deadline, seq
LIMIT $2
