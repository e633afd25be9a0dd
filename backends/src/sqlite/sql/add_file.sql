INSERT INTO files (id, tenant, filename, purpose, bytes, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
RETURNING id, tenant, filename, purpose, bytes, created_at, expires_at
