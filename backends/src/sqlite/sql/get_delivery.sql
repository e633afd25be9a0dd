SELECT id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until
FROM deliveries
WHERE id = ?1 AND tenant = ?2
