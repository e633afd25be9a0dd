SELECT id, tenant, name, prefix, hash, scopes, created_at, expires_at, revoked_at
FROM keys
WHERE prefix = ?1
