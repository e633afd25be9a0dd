SELECT line, custom_id, status, body::text AS body
FROM refused_lines
WHERE batch = $1 AND line >= $2
ORDER BY line
LIMIT $3
