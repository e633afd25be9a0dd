UPDATE deliveries
SET state = 'waiting', tries = 0, ended_at = NULL, next_at = ?3, retry_until = ?3 + 259200000
WHERE id = ?1 AND tenant = ?2
  AND (webhook IS NULL OR EXISTS (SELECT 1 FROM webhooks WHERE webhooks.id = deliveries.webhook))
RETURNING id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until
