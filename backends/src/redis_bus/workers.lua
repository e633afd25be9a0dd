-- The infos of the workers that live. KEYS as for a beat.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local alive = {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')) do
  local info = redis.call('HGET', KEYS[2], worker)
  if info then alive[#alive + 1] = info end
end
return alive
