WITH ended AS (
    UPDATE deliveries
    SET attempts = attempts + 1, tries = tries + 1,
        state = $3,
        next_at = CASE WHEN $3 = 'waiting' THEN store_now($1) + millis($4) END,
        ended_at = CASE WHEN $3 = 'waiting' THEN NULL ELSE store_now($1) END
    WHERE id = $2 AND (state = 'waiting' OR state = 'failed' AND $3 = 'delivered')
    RETURNING id, attempts, webhook, destination, url, at
),
kept AS (
    INSERT INTO delivery_attempts (delivery, n, at, status, error, took_ms)
    SELECT id, attempts, store_now($1), $5, $6, $7 FROM ended
)
SELECT webhook, destination, url, at FROM ended
