SELECT id, tenant, url, events, description, secrets::text AS secrets, created_at, disabled_at, disabled_why,
       store_now($1) AS now
FROM webhooks
WHERE id = $2 AND tenant = $3
