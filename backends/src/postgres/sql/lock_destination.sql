-- The webhook of a delivery, or the server that a job named: whoever ends all that waits for it comes after us.
SELECT CASE WHEN deliveries.webhook IS NULL THEN pg_advisory_xact_lock(hashtextextended(deliveries.destination, 0)) END,
       (SELECT webhooks.id FROM webhooks WHERE webhooks.id = deliveries.webhook FOR UPDATE)
FROM deliveries
WHERE deliveries.id = $1
