UPDATE segments SET jobs = jobs - 1
WHERE key = (SELECT substr(segment, 1, instr(segment, '#') - 1) FROM jobs WHERE id = ?1)
