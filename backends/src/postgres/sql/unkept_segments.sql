SELECT key FROM segments WHERE jobs = 0 ORDER BY key LIMIT $1
