SELECT id, batch, line FROM jobs WHERE id = ANY ($1)
UNION ALL
SELECT jobs.id, jobs.batch, jobs.line
FROM unnest($2::uuid[], $3::bigint[]) AS asked (batch, line)
JOIN jobs ON jobs.batch = asked.batch AND jobs.line = asked.line AND jobs.batch IS NOT NULL
