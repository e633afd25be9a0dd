SELECT id, tenant, state, total, created_at
FROM batches
WHERE created_at >= ?1 AND created_at < ?2 AND (?3 IS NULL OR tenant = ?3)
ORDER BY created_at, id
LIMIT ?4
