
-- Fixed windows. Mirrors pkg/engine/fixedwindow.go and, with edges, calendar.go.
--
-- state  start + hits, as a decimal number, if the window starts at a multiple of its length and has fewer hits than µs;
--        otherwise '=' and, packed, start, hits. The window ends one length after its start. With edges it is always '='
--        and, packed, start, hits, end.
-- limit  hits, window, flags: first (begins with its first hit), counts (rejected hits). With edges, also the boundaries of
--        the windows around the time of packing, on another clock than this one. If the second is MAX, the window never
--        ends: its key has no TTL, and reset and retry are MAX
local function fixed(format, calendar)
  local packing, size = calendar and '<ddd' or '<dd', calendar and 25 or 17

  local function limit(key, hits, window, first, counts, ...)
    return {key = key, hits = hits, window = window, first = first == 1, counts = counts == 1, edges = calendar and {...},
      endless = calendar and select(2, ...) == MAX}
  end

  -- window_at returns the window that contains now, or that a hit at now would begin. Before the first edge and after the last, windows
  -- have the length of the nearest one between edges, so every time is in exactly one window.
  local function window_at(l)
    local start, window = now, l.window
    local e = l.edges
    if e then
      local i = 1
      while i < #e - 1 and now >= e[i + 1] do i = i + 1 end
      window = e[i + 1] - e[i]
      start = e[i] + math.floor((now - e[i]) / window) * window
    elseif not l.first then
      start = now - now % window
    end
    return start, start + window
  end

  -- view.current is true if the state is of the current window; otherwise moved is true if it is from the future.
  local function view(l)
    local state = redis.call('GET', l.key)
    local v = {start = 0, stop = 0, used = 0, begun = not l.first, current = false, moved = false}
    if state then
      local start, used, stop = tonumber(state), 0, 0
      if start then
        used = start % l.window
        start = start - used
        stop = start + l.window
      elseif #state == size then
        start, used, stop = struct.unpack(packing, state, 2)
        stop = calendar and stop or start + l.window
      end
      if now < stop and integer(start, MAX) and integer(used, MAX)
        and (integer(stop, start + 281474976710656) or l.endless and stop == MAX) then
        v.used, v.begun = used, true
        if start <= now then
          v.start, v.stop, v.current = start, stop, true
          return v
        end
        v.moved = true
      end
    end
    v.start, v.stop = window_at(l)
    return v
  end

  local function left(l, v) return math.max(0, l.hits - v.used) end

  -- If rejected hits count, a check of cost 0 is admitted at exactly the limit, as in envoyproxy/ratelimit.
  local function room(l, v)
    if a.probe and l.counts and not a.listed and v.used <= l.hits then return a.want end
    return fit(left(l, v))
  end

  local function write(l, v)
    local state
    if calendar then
      state = '=' .. struct.pack('<ddd', v.start, v.used, v.stop)
    elseif v.used < l.window and v.start % l.window == 0 then
      state = string.format('%.0f', v.start + v.used)
    else
      state = '=' .. struct.pack('<dd', v.start, v.used)
    end
    if l.endless then
      redis.call('SET', l.key, state)
    elseif v.current then
      redis.call('SET', l.key, state, 'KEEPTTL')
    else
      redis.call('SET', l.key, state, 'PX', ttl(v.stop))
    end
    v.begun, v.current = true, true
  end

  local function decision(l, v, admitted, left)
    if v.begun then return {admitted, left, l.endless and MAX or v.stop - now, 0, v.start, 0, 0, 0, 0} end
    return {admitted, left, 0, 0, 0, 0, 0, 0, 0}
  end

  local function take(l, v)
    local left = left(l, v)
    local admitted, rejects = judge(room(l, v))
    local spent = spends(admitted, l.counts)
    if spent > 0 or v.moved and a.write then
      v.used = math.min(v.used + spent, MAX)
      write(l, v)
    end
    local d = decision(l, v, admitted, left)
    if rejects then d[4] = d[3] end
    return d, rejects
  end

  -- give does not refund hits consumed before the current window. A count of MAX does not change: it may have lost hits, so a refund
  -- could open the window.
  local function give(l, v)
    local hits = a.cost
    if a.count ~= 0 and a.count < v.start or v.used == MAX then hits = 0 end
    if v.moved or v.current and hits > 0 then
      v.used = math.max(0, v.used - hits)
      write(l, v)
    end
    return decision(l, v, 0, left(l, v))
  end

  return {format = format, limit = limit, view = view, room = room, take = take, give = give, windows = true}
end
families[0] = function() return fixed('<ddBB', false) end
families[4] = function() return fixed('<ddBBdddddd', true) end
