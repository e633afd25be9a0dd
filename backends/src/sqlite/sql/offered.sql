SELECT name, served
FROM models
ORDER BY seq
