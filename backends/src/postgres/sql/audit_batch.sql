SELECT state, count(*) AS n
FROM jobs
WHERE batch = $1
GROUP BY state
UNION ALL
-- A line that was expanded twice may be both; then the job is what ran.
SELECT 'refused', count(*)
FROM refused_lines
WHERE batch = $1
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.batch = refused_lines.batch AND jobs.line = refused_lines.line)
UNION ALL
SELECT 'accepted', count(*)
FROM jobs JOIN events ON events.job = jobs.id
WHERE jobs.batch = $1 AND events.kind = 'accepted'
