SELECT coalesce((SELECT ended_order FROM jobs WHERE id = ?2 AND batch = ?1),
                (SELECT ended_order FROM refused_lines WHERE batch = ?1 AND line = ?3)) AS ended_order
