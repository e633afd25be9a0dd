INSERT INTO keys (id, tenant, name, prefix, hash, scopes, created_at, expires_at)
VALUES ($2, $3, $4, $5, $6, $7, store_now($1), store_now($1) + millis($8))
RETURNING id, tenant, name, prefix, scopes, created_at, expires_at, revoked_at
