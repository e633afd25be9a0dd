INSERT INTO files (id, tenant, filename, purpose, bytes, created_at, expires_at)
VALUES ($2, $3, $4, $5, $6, store_now($1), store_now($1) + millis($7))
RETURNING id, tenant, filename, purpose, bytes, created_at, expires_at, store_now($1) AS now
