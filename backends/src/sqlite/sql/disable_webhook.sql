-- Without a reason: only if it took nothing since this event.
UPDATE webhooks SET disabled_at = ?2, disabled_why = coalesce(?3, ?5)
WHERE id = ?1 AND disabled_at IS NULL
  AND (?3 IS NOT NULL
       OR NOT EXISTS (SELECT 1 FROM deliveries WHERE webhook = ?1 AND state = 'delivered' AND ended_at >= ?4))
