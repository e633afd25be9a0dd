SELECT id FROM jobs WHERE state = 'running' AND worker = ?1 AND lease_until <= ?2 AND deadline > ?3 ORDER BY seq
