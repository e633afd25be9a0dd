UPDATE counters SET value = value - 1 WHERE name IN (?1, ?2)
