INSERT INTO segments (key, jobs, announced_at) VALUES ($2, 0, store_now($1)) ON CONFLICT (key) DO NOTHING
