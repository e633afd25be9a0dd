INSERT INTO segments (key, jobs, announced_at) VALUES (?1, 0, ?2) ON CONFLICT (key) DO NOTHING
