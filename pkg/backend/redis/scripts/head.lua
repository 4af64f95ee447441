-- The beginning of every script: the clock.
--
-- ARGV[2]  in tests: the time, in µs since the epoch
--
-- All numbers are integers below 2^53, which doubles represent exactly; a quotient that is rounded down is exact too.
local now = ARGV[2]
if now then
  now = now + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local asked = ARGV[1]
