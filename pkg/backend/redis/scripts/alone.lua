-- A single common take of a fixed window. It does the same as batch.lua for a group of kind 0, but costs Redis less, because it sets up
-- nothing for other operations. If it cannot decide, it leaves the state unchanged.
--
-- KEYS[1]  of the operation
-- ARGV     as described in head.lua and batch.lua, with one group of kind 0 and one operation. The cost does not exceed the
--          limit, and there is one request, or rejected hits count
--
-- result   packed: the 8 bytes; the time; and the hits consumed before. Or the error UNDECIDED, or READONLY
local proof, slack, _, _, cost, count, hits, window, _, counts = struct.unpack('<c8dBI4ddddBB', ARGV[1])
local now = ARGV[2]
if now then
  now = now + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local key, call, spent, start, by = KEYS[1], redis.pcall, cost * count, now - now % window, '1'
if spent ~= 1 then by = string.format('%.0f', spent) end
local state = call('INCRBY', key, by)
local used = type(state) == 'number' and state - start - spent
if used and used < 0 then -- the state is of a past window, or there was none
  local lasts = string.format('%.0f', math.ceil((start + window - now) / 1000) + slack)
  used = call('SET', key, string.format('%.0f', start + spent), 'PX', lasts).ok and 0
elseif used and used > (counts == 1 and window - 1 or math.min(hits, window - 1)) - spent then
  local undone = call('INCRBY', key, '-' .. by)
  used = counts == 0 and used < window and type(undone) == 'number' and used -- rejected
end
if used then return struct.pack('<c8dd', proof, now, used) end
if type(state) == 'table' and string.find(state.err, 'READONLY ', 1, true) then return {err = state.err} end -- another server must decide
return {err = 'UNDECIDED by the script for one operation'}
