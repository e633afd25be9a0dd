INSERT INTO segments (key, jobs) VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET jobs = jobs + 1, announced_at = NULL
