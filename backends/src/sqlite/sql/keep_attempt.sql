INSERT INTO delivery_attempts (delivery, n, at, status, error, took_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
