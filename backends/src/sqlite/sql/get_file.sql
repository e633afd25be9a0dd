SELECT id, tenant, filename, purpose, bytes, created_at, expires_at
FROM files
WHERE id = ?1 AND tenant = ?2
