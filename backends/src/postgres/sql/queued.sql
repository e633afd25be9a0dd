SELECT count(*) AS n
FROM jobs
WHERE release = $1 AND class = $2 AND state = 'queued' AND NOT held
