-- The beginning of the script: the clock, and what is asked.
--
-- KEYS     of the operations, one after the other
-- ARGV[1]  packed, integers as doubles unless a width is said, and flags as bytes: 8 bytes that come back; slack, how much
--          longer than needed keys are kept, in ms; and groups of operations, as described in batch.lua
-- ARGV[2]  in tests: the time, in µs since the epoch
--
-- result   packed: the 8 bytes; the time; and for each operation, in order, an answer as described in batch.lua. If operations
--          failed, a list of that and of the errors, in order.
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
local slack, pos = struct.unpack('<d', asked, 9)
