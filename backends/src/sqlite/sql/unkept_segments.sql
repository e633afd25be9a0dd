SELECT key FROM segments WHERE jobs = 0 AND announced_at IS NULL ORDER BY key LIMIT ?1
