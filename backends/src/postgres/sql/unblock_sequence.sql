DELETE FROM blocked_sequences WHERE tenant = $1 AND sequence_key = $2
