SELECT id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until,
       store_now($1) AS now
FROM deliveries
WHERE tenant = $2 AND ($3::uuid IS NULL OR webhook = $3) AND ($4::text IS NULL OR state = $4)
  AND ($5::uuid IS NULL OR seq < (SELECT seq FROM deliveries AS known WHERE known.id = $5 AND known.tenant = $2))
ORDER BY seq DESC
LIMIT $6
