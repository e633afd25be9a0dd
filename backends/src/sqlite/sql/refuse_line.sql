INSERT INTO refused_lines (batch, line, custom_id, status, body, ended_order)
VALUES (?1, ?2, ?3, ?4, ?5, 1 + coalesce((SELECT ended_order FROM last_ended WHERE batch = ?1), 0))
ON CONFLICT (batch, line) DO NOTHING
