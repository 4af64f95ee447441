
-- The common take of one fixed window, before anything else is set up: hits are counted first, because the state is a
-- number to which Redis itself can add, and the result is examined afterwards. Decides as fixed.lua does, and leaves all
-- other cases to it.
--
-- KEYS[1]  its state
-- ARGV[1]  if it has 25 bytes, packed: cost, count, hits, slack (ms) in 4 bytes each; window; flag: counts (refused hits)
-- result   as in single.lua, up to the window
--
-- Only for windows aligned to the clock, and only if no hits are wanted in advance; cost·count is less than 2^31.
if #asked == 25 then
  local cost, count, hits, slack, window, counts = struct.unpack('<I4I4I4I4dB', asked)
  local start, spent, by = now - now % window, cost * count, '1'
  if spent ~= 1 then by = string.format('%.0f', spent) end
  local state = redis.pcall('INCRBY', KEYS[1], by)
  if type(state) == 'number' then
    local used = state - spent - start
    local new = used < 0 -- the state is of a window that has ended, or there was none
    if new then used = 0 end
    local left, reset = used < hits and hits - used or 0, start + window - now
    if used + spent < window and (counts == 1 or left >= spent) then
      if new then
        redis.call('SET', KEYS[1], string.format('%.0f', start + spent), 'PX',
          string.format('%.0f', math.ceil(reset / 1000) + slack))
      end
      if left >= spent then return struct.pack('<ddddd', count, left, reset, 0, start) end
      return struct.pack('<ddddd', math.floor(left / cost), left, reset, reset, start)
    end
    if state == spent then redis.call('DEL', KEYS[1]) else redis.call('DECRBY', KEYS[1], by) end
  end
  asked = struct.pack('<ddddBBBddBB', cost, count, count, slack, 0, 0, 0, hits, window, 0, counts)
end
