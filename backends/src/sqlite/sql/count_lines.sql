SELECT state, count(*) AS n, sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
       sum(output_tokens) AS output_tokens
FROM jobs
WHERE batch = ?1
GROUP BY state
UNION ALL
SELECT 'refused', count(*), 0, 0, 0
FROM refused_lines
WHERE batch = ?1
