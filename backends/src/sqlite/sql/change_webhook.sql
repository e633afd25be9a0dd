UPDATE webhooks
SET url = CASE WHEN url IS NULL THEN NULL ELSE coalesce(?3, url) END,
    events = coalesce(?4, events),
    description = coalesce(?5, description),
    disabled_at = CASE ?6 WHEN 1 THEN NULL WHEN 0 THEN coalesce(disabled_at, ?8) ELSE disabled_at END,
    disabled_why = CASE ?6 WHEN 1 THEN NULL WHEN 0 THEN coalesce(disabled_why, 'disabled by its owner') ELSE disabled_why END,
    secrets = coalesce(?7, secrets)
WHERE id = ?1 AND tenant = ?2
RETURNING id, tenant, url, events, description, secrets, created_at, disabled_at, disabled_why
