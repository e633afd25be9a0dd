SELECT id, tenant, name, prefix, hash, scopes, created_at, expires_at, revoked_at, store_now($1) AS now
FROM keys
WHERE prefix = $2
