SELECT id FROM jobs WHERE state IN ('queued', 'running') AND deadline <= ?1 ORDER BY deadline LIMIT ?2
