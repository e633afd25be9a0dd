SELECT key FROM segments WHERE announced_at <= store_now($1) - millis($2) ORDER BY announced_at LIMIT $3
