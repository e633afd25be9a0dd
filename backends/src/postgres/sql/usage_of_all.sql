-- The days, and what waits to be moved there: one statement, so that nothing is between the two.
SELECT tenant, day - DATE '1970-01-01' AS day, release, model, class, sum(accepted)::bigint AS accepted,
       sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed, sum(cancelled)::bigint AS cancelled,
       sum(expired)::bigint AS expired, sum(prompt_tokens)::bigint AS prompt_tokens,
       sum(cached_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(wasted_prompt_tokens)::bigint AS wasted_prompt_tokens,
       sum(wasted_cached_tokens)::bigint AS wasted_cached_tokens,
       sum(wasted_output_tokens)::bigint AS wasted_output_tokens
FROM (
    SELECT * FROM usage_days
    WHERE day BETWEEN DATE '1970-01-01' + $1::integer AND DATE '1970-01-01' + $2::integer
    UNION ALL
    SELECT * FROM usage_changes
    WHERE day BETWEEN DATE '1970-01-01' + $1::integer AND DATE '1970-01-01' + $2::integer
) AS lines
GROUP BY day, tenant, release, model, class
ORDER BY day, tenant, release, model, class
LIMIT $3
