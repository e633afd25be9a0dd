SELECT tenant, state, count(*) AS n
FROM jobs
WHERE accepted_at >= ?1 AND accepted_at < ?2 AND (?3 IS NULL OR tenant = ?3)
GROUP BY tenant, state
