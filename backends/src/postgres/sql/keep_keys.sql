-- A key that is there already may be one that was forgotten, which is replaced.
INSERT INTO idempotency (tenant, key, body_hash, job, created_at)
SELECT tenant, key, body_hash, job, store_now($1)
FROM unnest($2::text[], $3::text[], $4::bytea[], $5::uuid[]) AS new (tenant, key, body_hash, job)
ON CONFLICT (tenant, key) DO UPDATE
SET body_hash = excluded.body_hash, job = excluded.job, created_at = excluded.created_at
WHERE idempotency.created_at <= excluded.created_at - millis($6)
