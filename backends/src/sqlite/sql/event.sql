INSERT INTO events (job, kind, state, attempt, worker, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
