SELECT body_hash, job
FROM idempotency
WHERE tenant = $2 AND key = $3 AND created_at > store_now($1) - millis($4)
