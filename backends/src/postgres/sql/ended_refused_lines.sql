SELECT line, custom_id, status, body::text AS body, ended_order
FROM refused_lines
WHERE batch = $1 AND (ended_order, line) > ($2, $3) AND ended_order < $4
ORDER BY ended_order, line
LIMIT $5
