SELECT state, attempt, usage_attempt FROM jobs WHERE id = ?1
