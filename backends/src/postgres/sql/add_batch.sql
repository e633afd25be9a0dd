INSERT INTO batches (id, tenant, endpoint, input, window_text, metadata, output_life_ms, state, created_at,
                     run_after, expires_at, only_lines, webhook, keep_ms)
VALUES ($2, $3, $4, $5, $6, $7::jsonb, $8, 'validating', store_now($1), $10,
        greatest(store_now($1), $10) + millis($9), $11, $12::jsonb, $13)
RETURNING id, tenant, endpoint, model, input, window_text, metadata::text AS metadata, output_life_ms, keep_ms, state,
          errors::text AS errors, output, error_file, total, next_line, next_byte, created_at, in_progress_at, expires_at,
          run_after, schedule, finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at, store_now($1) AS now
