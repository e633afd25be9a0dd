SELECT EXISTS (
    SELECT FROM unnest($3::text[]) AS asked (key)
    JOIN idempotency ON idempotency.tenant = $2 AND idempotency.key = asked.key
    WHERE idempotency.created_at > store_now($1) - millis($4) AND idempotency.body_hash <> $5
) AS is_reused
