UPDATE deliveries
SET state = 'waiting', tries = 0, ended_at = NULL, next_at = store_now($1), retry_until = store_now($1) + interval '72 hours'
WHERE id = $2 AND tenant = $3
  AND (webhook IS NULL OR EXISTS (SELECT FROM webhooks WHERE webhooks.id = deliveries.webhook))
RETURNING id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until,
       store_now($1) AS now
