SELECT id, tenant, url, events, description, secrets, created_at, disabled_at, disabled_why
FROM webhooks
WHERE tenant = ?1 AND url IS NOT NULL
ORDER BY id DESC
