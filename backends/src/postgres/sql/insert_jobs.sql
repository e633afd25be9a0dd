WITH accepted AS (
    INSERT INTO jobs (id, tenant, release, route, class, kind, state, wake_at, deadline, seed, est_tokens, request,
                      metadata, batch, line, sequence_key, traceparent, accepted_at, trajectory, custom_id,
                      webhook, keep_ms, on_failure, told)
    SELECT id, tenant, release, route, class, kind, 'queued', store_now($1) + millis(wait),
           store_now($1) + millis(deadline_in), seed, est_tokens, request::json, metadata::jsonb, batch, line,
           sequence_key, traceparent, store_now($1), trajectory, custom_id, webhook::jsonb, keep_ms,
           on_failure,
           webhook IS NOT NULL OR batch IS NULL AND EXISTS (
               SELECT FROM webhooks
               WHERE webhooks.tenant = new.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
           )
    FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
                $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::uuid[], $15::bigint[], $16::text[],
                $17::text[], $18::text[], $19::text[], $20::text[], $21::bigint[], $22::text[])
      AS new (id, tenant, release, route, class, kind, wait, deadline_in, seed, est_tokens, request, metadata, batch,
              line, sequence_key, traceparent, trajectory, custom_id, webhook, keep_ms,
              on_failure)
    RETURNING id, tenant, release, route, class
),
told AS (
    INSERT INTO events (job, kind, state, attempt, at)
    SELECT id, 'accepted', 'queued', 0, store_now($1) FROM accepted
),
summed AS (
    INSERT INTO usage_changes (tenant, day, release, model, class, accepted)
    SELECT tenant, (store_now($1) AT TIME ZONE 'UTC')::date, release, left(route, 200), class, count(*)
    FROM accepted
    GROUP BY tenant, release, left(route, 200), class
)
SELECT store_now($1) AS at
