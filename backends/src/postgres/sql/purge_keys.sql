DELETE FROM idempotency
USING (
    SELECT tenant, key FROM idempotency
    WHERE created_at <= store_now($1) - millis($2)
    ORDER BY created_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
) AS old
WHERE idempotency.tenant = old.tenant AND idempotency.key = old.key
