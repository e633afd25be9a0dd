SELECT body_hash, job FROM idempotency WHERE tenant = ?1 AND key = ?2 AND created_at > ?3
