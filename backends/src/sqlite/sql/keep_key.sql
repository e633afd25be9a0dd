INSERT OR REPLACE INTO idempotency (tenant, key, body_hash, job, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
