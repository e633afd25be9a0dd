-- All that waits for a webhook, or for one address of a server that jobs named. In the order of ids, as everybody locks them.
WITH waiting AS (
    SELECT id FROM deliveries
    WHERE destination = $2 AND state = 'waiting' AND ($3::text IS NULL OR url = $3)
    ORDER BY id
    FOR UPDATE
)
UPDATE deliveries SET state = 'failed', next_at = NULL, ended_at = store_now($1)
FROM waiting
WHERE deliveries.id = waiting.id
