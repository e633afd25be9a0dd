INSERT INTO turns (release, class, clock) VALUES (?1, ?2, ?3)
ON CONFLICT (release, class) DO UPDATE SET clock = excluded.clock
