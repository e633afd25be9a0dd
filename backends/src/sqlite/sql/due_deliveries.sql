SELECT id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until, data,
       (SELECT webhooks.secrets FROM webhooks
        WHERE webhooks.id = deliveries.webhook
           OR deliveries.webhook IS NULL AND webhooks.tenant = deliveries.tenant AND webhooks.url IS NULL
        LIMIT 1) AS secrets
FROM deliveries
WHERE destination = ?1 AND state = 'waiting' AND next_at <= ?2
ORDER BY next_at
LIMIT ?3
