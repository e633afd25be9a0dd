SELECT served::text AS served FROM models ORDER BY seq
