INSERT INTO shares (release, class, tenant, next) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (release, class, tenant) DO UPDATE SET next = excluded.next
