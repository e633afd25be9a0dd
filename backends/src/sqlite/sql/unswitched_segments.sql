SELECT key FROM segments WHERE announced_at <= ?1 - ?2 ORDER BY announced_at LIMIT ?3
