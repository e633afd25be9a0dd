INSERT INTO segments (key, jobs) VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET jobs = jobs + 1
