INSERT INTO models (name, release, served, offered_at) VALUES ($2, $3, $4::text::json, store_now($1))
ON CONFLICT (name) DO UPDATE SET release = excluded.release, served = excluded.served, offered_at = excluded.offered_at
