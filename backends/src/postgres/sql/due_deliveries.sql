-- The addresses that something waits for cost one index seek each; of each, the first due ones are taken.
WITH RECURSIVE destinations (destination) AS (
    (SELECT destination FROM deliveries WHERE state = 'waiting' ORDER BY destination LIMIT 1)
    UNION ALL
    SELECT (
        SELECT deliveries.destination FROM deliveries
        WHERE deliveries.state = 'waiting' AND deliveries.destination > destinations.destination
        ORDER BY deliveries.destination LIMIT 1
    )
    FROM destinations
    WHERE destinations.destination IS NOT NULL
),
due AS (
    SELECT first.id
    FROM destinations
    CROSS JOIN LATERAL (
        SELECT id FROM deliveries
        WHERE deliveries.destination = destinations.destination AND state = 'waiting' AND next_at <= store_now($1)
        ORDER BY next_at
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS first
    WHERE destinations.destination IS NOT NULL AND destinations.destination <> ALL ($2)
    LIMIT $4
),
taken AS (
    UPDATE deliveries SET next_at = store_now($1) + millis($5)
    FROM due
    WHERE deliveries.id = due.id
    RETURNING deliveries.*
)
SELECT taken.id, taken.tenant, taken.webhook, taken.url, taken.event, taken.job, taken.batch, taken.sequence, taken.at,
       taken.state, taken.attempts, taken.tries, taken.next_at, taken.retry_until, store_now($1) AS now, taken.seq, taken.data,
       (SELECT webhooks.secrets::text FROM webhooks
        WHERE webhooks.id = taken.webhook
           OR taken.webhook IS NULL AND webhooks.tenant = taken.tenant AND webhooks.url IS NULL
        LIMIT 1) AS secrets
FROM taken
ORDER BY taken.seq
