SELECT line, custom_id, status, body, ended_order
FROM refused_lines
WHERE batch = ?1 AND ended_order > ?2
ORDER BY ended_order
LIMIT ?3
