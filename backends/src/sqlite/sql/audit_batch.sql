SELECT state, count(*) AS n
FROM jobs
WHERE batch = ?1
GROUP BY state
UNION ALL
SELECT 'refused', count(*) FROM refused_lines WHERE batch = ?1
UNION ALL
SELECT 'accepted', count(*)
FROM jobs JOIN events ON events.job = jobs.id
WHERE jobs.batch = ?1 AND events.kind = 'accepted'
