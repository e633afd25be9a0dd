-- Without a reason: only if it took nothing since this event.
UPDATE webhooks SET disabled_at = store_now($1), disabled_why = coalesce($3, $5)
WHERE id = $2 AND disabled_at IS NULL
  AND ($3 IS NOT NULL
       OR NOT EXISTS (SELECT FROM deliveries WHERE webhook = $2 AND state = 'delivered' AND ended_at >= $4))
