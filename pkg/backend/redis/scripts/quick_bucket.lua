
-- The common take of one bucket, before anything else is set up: one request, for which there are tokens, or places.
-- Decides as bucket.lua does, and leaves all other cases to it.
--
-- KEYS[1]  its state
-- ARGV[1]  if it has 34 bytes, packed: cost, den, burst, slack (ms) in 4 bytes each; us, window; flags: leaky, counts (refused
--          hits)
-- result   as in single.lua, up to the wait
--
-- Only for buckets that start full and have no debt and no steps, and for queues, which start empty; and only if no hits
-- are wanted in advance.
if #asked == 34 then
  local cost, den, burst, slack, us, window, leaky, counts = struct.unpack('<I4I4I4I4ddBB', asked)
  local floor = math.floor
  local state = redis.call('GET', KEYS[1])
  local at, num, same, expires, kept = now, 0, den, 0, 0
  if state then
    at, num, same, expires, kept = struct.unpack('<ddddd', state)
    if expires <= now or at < now then at, num, same = now, 0, den end
  end
  local left, lasts, wait = burst, cost * us, (at - now) * den
  if wait > 0 or num > 0 then
    local used = floor(wait / us)
    local rest = wait - used * us + num
    if rest >= us then
      local more = floor(rest / us)
      used, rest = used + more, rest - more * us
    end
    left = burst - used
    if rest > 0 and leaky == 0 then left = left - 1 end
  end
  if left >= cost and same == den and wait < 9007199254740992 and lasts < 9007199254740992 then
    local whole, turn = floor(lasts / den), leaky == 1 and (num > 0 and at + 1 or at) - now or 0
    at, num = at + whole, num + lasts - whole * den
    if num >= den then at, num = at + 1, num - den end
    expires = num > 0 and at + 1 or at
    if expires <= kept then
      redis.call('SET', KEYS[1], struct.pack('<ddddd', at, num, den, expires, kept), 'KEEPTTL')
    else
      kept = expires + math.max(expires - now, math.min(window, 10000000))
      redis.call('SET', KEYS[1], struct.pack('<ddddd', at, num, den, expires, kept), 'PX',
        string.format('%.0f', math.ceil((kept - now) / 1000) + slack))
    end
    return struct.pack('<dddddd', 1, left, expires - now, 0, 0, turn)
  end
  asked = struct.pack('<ddddBBBddddddddBB', cost, 1, 1, slack, 0, 0, 1,
    us, den, burst, burst + counts * burst + leaky, 0, burst, 0, window, leaky, counts)
end
