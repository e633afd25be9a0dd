INSERT INTO leaders (name, holder, until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE leaders.holder = excluded.holder OR leaders.until <= ?4
