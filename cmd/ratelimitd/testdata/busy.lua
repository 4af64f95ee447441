-- Keeps Redis busy.
--
-- ARGV[1]  for how long, in µs
-- result   0
local from, now = redis.call('TIME')
repeat now = redis.call('TIME') until (now[1] - from[1]) * 1000000 + now[2] - from[2] >= tonumber(ARGV[1])
return 0
