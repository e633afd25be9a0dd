INSERT INTO turns (release, class, tenant) VALUES (?1, ?2, ?3)
ON CONFLICT (release, class) DO UPDATE SET tenant = excluded.tenant
