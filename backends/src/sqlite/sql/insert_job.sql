INSERT INTO jobs (id, tenant, release, route, class, kind, state, wake_at, deadline, seed, est_tokens, request, metadata,
                  batch, line, sequence_key, traceparent, accepted_at, trajectory, custom_id, webhook,
                  keep_ms, on_failure, told)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'queued', ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
        ?22,
        ?20 IS NOT NULL OR ?13 IS NULL AND EXISTS (
            SELECT 1 FROM webhooks WHERE tenant = ?2 AND url IS NOT NULL AND disabled_at IS NULL
        ))
