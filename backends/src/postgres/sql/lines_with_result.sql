SELECT line FROM jobs WHERE batch = $1 AND state = 'succeeded' ORDER BY line
