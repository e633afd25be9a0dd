SELECT id, tenant, filename, purpose, bytes, created_at, expires_at, store_now($1) AS now
FROM files
WHERE tenant = $2 AND ($3::text IS NULL OR purpose = $3) AND ($4::uuid IS NULL OR id < $4)
ORDER BY id DESC
LIMIT $5
