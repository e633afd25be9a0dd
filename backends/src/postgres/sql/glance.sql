-- The committed values of counters, without a wait for who is changing them; nothing if one of the jobs exists.
SELECT name, value FROM counters
WHERE name = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM jobs WHERE id = ANY ($2::uuid[]))
