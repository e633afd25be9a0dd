INSERT INTO leaders AS l (name, holder, until) VALUES ($2, $3, store_now($1) + millis($4))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until <= store_now($1)
