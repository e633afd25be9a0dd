INSERT INTO models (name, release, served, seq, offered_at)
VALUES (?1, ?2, ?3, (SELECT coalesce(max(seq), 0) + 1 FROM models), ?4)
ON CONFLICT (name) DO UPDATE SET release = excluded.release, served = excluded.served, offered_at = excluded.offered_at
