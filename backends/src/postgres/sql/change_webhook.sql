UPDATE webhooks
SET url = CASE WHEN url IS NULL THEN NULL ELSE coalesce($4, url) END,
    events = coalesce($5, events),
    description = coalesce($6, description),
    disabled_at = CASE $7 WHEN true THEN NULL WHEN false THEN coalesce(disabled_at, store_now($1)) ELSE disabled_at END,
    disabled_why = CASE $7 WHEN true THEN NULL WHEN false THEN coalesce(disabled_why, 'disabled by its owner') ELSE disabled_why END,
    secrets = coalesce($8::jsonb, secrets)
WHERE id = $2 AND tenant = $3
RETURNING id, tenant, url, events, description, secrets::text AS secrets, created_at, disabled_at, disabled_why,
          store_now($1) AS now
