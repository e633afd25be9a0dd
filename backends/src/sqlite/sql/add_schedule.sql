INSERT INTO schedules (id, tenant, name, cron, timezone, overlap, catch_up, input, endpoint, window_ms, window_text,
                       metadata, output_life_ms, webhook, created_at, next_at, keep_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
