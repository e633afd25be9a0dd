INSERT INTO batches (id, tenant, endpoint, input, window_text, metadata, output_life_ms, state, created_at,
                     expires_at, run_after, only_lines, webhook, keep_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'validating', ?8, ?9, ?10, ?11, ?12, ?13)
