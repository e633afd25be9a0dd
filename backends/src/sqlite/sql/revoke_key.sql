UPDATE keys SET revoked_at = coalesce(revoked_at, ?2)
WHERE id = ?1
RETURNING id, tenant, name, prefix, scopes, created_at, expires_at, revoked_at
