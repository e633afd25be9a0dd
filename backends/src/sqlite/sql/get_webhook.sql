SELECT id, tenant, url, events, description, secrets, created_at, disabled_at, disabled_why
FROM webhooks
WHERE id = ?1 AND tenant = ?2
