SELECT known.tenant, known.key, known.body_hash, known.job
FROM unnest($2::text[], $3::text[]) AS asked (tenant, key)
JOIN idempotency AS known ON known.tenant = asked.tenant AND known.key = asked.key
WHERE known.created_at > store_now($1) - millis($4)
