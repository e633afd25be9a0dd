WITH old AS (
    SELECT id FROM deliveries
    WHERE ended_at <= store_now($1) - millis($2)
    ORDER BY ended_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
attempts AS (
    DELETE FROM delivery_attempts USING old WHERE delivery_attempts.delivery = old.id
)
DELETE FROM deliveries USING old WHERE deliveries.id = old.id
