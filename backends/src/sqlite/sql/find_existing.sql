SELECT id FROM jobs WHERE id = ?1 OR (batch = ?2 AND batch IS NOT NULL AND line = ?3) LIMIT 1
