SELECT batch, state, count(*) AS n, sum(prompt_tokens)::bigint AS prompt_tokens,
       sum(cached_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens
FROM jobs
WHERE batch = ANY ($1::uuid[])
GROUP BY batch, state
UNION ALL
SELECT batch, 'refused', count(*), 0, 0, 0
FROM refused_lines
WHERE batch = ANY ($1::uuid[])
GROUP BY batch
