SELECT id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until,
       store_now($1) AS now
FROM deliveries
WHERE id = $2 AND tenant = $3
