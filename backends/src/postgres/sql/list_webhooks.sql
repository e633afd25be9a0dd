SELECT id, tenant, url, events, description, secrets::text AS secrets, created_at, disabled_at, disabled_why,
       store_now($1) AS now
FROM webhooks
WHERE tenant = $2 AND url IS NOT NULL
ORDER BY id DESC
