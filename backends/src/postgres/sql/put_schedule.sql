UPDATE schedules
SET name = $2, cron = $3, timezone = $4, overlap = $5, catch_up = $6, input = $7, endpoint = $8, window_ms = $9,
    window_text = $10, metadata = $11, output_life_ms = $12, webhook = $13, next_at = $14, last_at = $15,
    last_batch = $16, last_error = $17, runs = $18, skipped = $19, keep_ms = $20
WHERE id = $1
