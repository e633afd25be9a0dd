INSERT INTO jobs (id, tenant, release, route, class, kind, state, wake_at, deadline, seed, est_tokens, request, metadata,
                  batch, line, sequence_key, traceparent, accepted_at, trajectory)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'queued', ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
