SELECT id, tenant, filename, purpose, bytes, created_at, expires_at, store_now($1) AS now
FROM files
WHERE id = $2 AND tenant = $3
