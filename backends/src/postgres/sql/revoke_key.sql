UPDATE keys SET revoked_at = coalesce(revoked_at, store_now($1))
WHERE id = $2
RETURNING id, tenant, name, prefix, scopes, created_at, expires_at, revoked_at
