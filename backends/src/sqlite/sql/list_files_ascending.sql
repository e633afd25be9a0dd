SELECT id, tenant, filename, purpose, bytes, created_at, expires_at
FROM files
WHERE tenant = ?1 AND (?2 IS NULL OR purpose = ?2) AND (?3 IS NULL OR id > ?3)
ORDER BY id
LIMIT ?4
