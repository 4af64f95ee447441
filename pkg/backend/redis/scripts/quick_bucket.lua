
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
  local at, n, part, unit, expires, kept = now, 0, 0, us, 0, 0
  if state then
    if #state == 48 then
      at, n, part, unit, expires, kept = struct.unpack('<dddddd', state)
      if expires <= now then at, n, part, unit = now, 0, 0, us end
    else
      unit = 0
    end
  end
  expires = math.max(expires, now)
  local came = (now - at) * den
  if unit == us and came >= 0 and came < 9007199254740992 and part >= 0 and part < us and kept < 18014398509481984
    and n % 1 == 0 and part % 1 == 0 and came % 1 == 0 then -- else no script wrote this
    local whole, turn = floor(came / us), 0
    n, part = n - whole, part - (came - whole * us)
    if part < 0 then n, part = n - 1, part + us end
    if n < 0 then n, part = 0, 0 end
    local queued, spent, left = n * us + part, (n + cost) * us + part, burst - n
    if leaky == 1 then
      turn = floor(queued / den)
      if queued > turn * den then turn = turn + 1 end
    elseif part > 0 then
      left = left - 1
    end
    if left >= cost and spent < 9007199254740992 and (leaky == 0 or expires - now == turn) then
      expires = floor(spent / den)
      if spent > expires * den then expires = expires + 1 end
      expires = now + expires
      if expires <= kept then
        redis.call('SET', KEYS[1], struct.pack('<dddddd', now, n + cost, part, us, expires, kept), 'KEEPTTL')
      else
        kept = expires + math.max(expires - now, math.min(window, 10000000))
        redis.call('SET', KEYS[1], struct.pack('<dddddd', now, n + cost, part, us, expires, kept), 'PX',
          string.format('%.0f', math.ceil((kept - now) / 1000) + slack))
      end
      return struct.pack('<dddddd', 1, left, expires - now, 0, 0, turn)
    end
  end
  asked = struct.pack('<ddddBBBddddddddBB', cost, 1, 1, slack, 0, 0, 1,
    us, den, burst, burst + counts * burst, 0, burst, 0, window, leaky, counts)
end
