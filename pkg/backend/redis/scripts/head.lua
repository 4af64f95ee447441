-- The beginning of the script: the clock and the arguments.
--
-- KEYS     of the operations, one after the other
-- ARGV[1]  packed; integers are doubles and flags are bytes unless stated otherwise: 8 bytes that come back; slack, the
--          addition to the lifetime of keys, in ms; and groups of operations, as described in batch.lua
-- ARGV[2]  in tests: the time, in µs since the epoch
--
-- result   packed: the 8 bytes; the time; and an answer to each operation, in order, as described in batch.lua. If
--          operations failed, a list of that and the errors, in order.
--
-- All numbers are integers below 2^53, which doubles represent exactly; quotients rounded down are exact too.
local now = ARGV[2]
if now then
  now = now + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local asked = ARGV[1]
local slack, pos = struct.unpack('<d', asked, 9)
