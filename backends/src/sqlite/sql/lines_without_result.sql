SELECT line FROM jobs WHERE batch = ?1 AND state <> 'succeeded'
UNION ALL
SELECT line FROM refused_lines WHERE batch = ?1
ORDER BY line
