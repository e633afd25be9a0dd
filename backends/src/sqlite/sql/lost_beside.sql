SELECT 1 FROM events WHERE kind = 'lost' AND worker = ?1 AND at >= ?2 AND job <> ?3 LIMIT 1
