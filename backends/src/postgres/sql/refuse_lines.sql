INSERT INTO refused_lines (batch, line, custom_id, status, body)
SELECT $1, line, custom_id, status, body::json
FROM unnest($2::bigint[], $3::text[], $4::integer[], $5::text[]) AS refused (line, custom_id, status, body)
ON CONFLICT (batch, line) DO NOTHING
