SELECT jobs.tenant, count(*) AS n
FROM events
LEFT JOIN jobs ON jobs.id = events.job
WHERE events.kind = 'accepted' AND events.at >= ?1 AND events.at < ?2 AND (?3 IS NULL OR jobs.tenant = ?3)
GROUP BY jobs.tenant
