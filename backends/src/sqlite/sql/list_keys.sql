SELECT id, tenant, name, prefix, scopes, created_at, expires_at, revoked_at
FROM keys
WHERE ?1 IS NULL OR tenant = ?1
ORDER BY id DESC
