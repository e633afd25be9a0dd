SELECT destination FROM deliveries
WHERE state = 'waiting' AND destination > ?1
ORDER BY destination
LIMIT 1
