SELECT line, custom_id, status, body
FROM refused_lines
WHERE batch = ?1 AND line >= ?2
ORDER BY line
LIMIT ?3
